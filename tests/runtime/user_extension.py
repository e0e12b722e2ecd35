"""A worker extension of a user's own, which must live beside specshim's in the same worker."""

from __future__ import annotations

import os
import sys
from typing import Any


class UserExtension:
    def users_report(self, greeting: str) -> dict[str, Any]:
        import torch

        return {
            "greeting": f"{greeting} from {type(self).__name__}",
            "pid": os.getpid(),
            "cuda_initialised": torch.cuda.is_initialized(),
            "modules": [name for name in ("specshim", "speculators") if name in sys.modules],
        }
