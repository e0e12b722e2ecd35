"""`python -m specshim` is the command `specshim`."""

import sys

from specshim.cli import main

sys.exit(main())
