"""The one patcher of this process.

It has a module of its own because that module outlives `importlib.reload(specshim)` and a failed `import specshim`:
a second patcher would patch what the first one has patched already.
"""

from __future__ import annotations

from specshim.adapters import DISTRIBUTIONS, TARGETS
from specshim.patching.patcher import Patcher

patcher = Patcher(TARGETS, DISTRIBUTIONS)
