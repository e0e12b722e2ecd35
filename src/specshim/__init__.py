"""specshim: `import specshim` before `speculators`, and its hidden-state generation is right on newer vLLM.

Importing this package arms import hooks and nothing else: torch, vLLM, transformers and speculators are not
imported by it. When a speculators module that specshim knows is imported, the installed versions select adapters,
each adapter's contract is checked, and all patches of that module are applied, or none. `status()` says what
happened; `uninstall()` undoes it; `SPECSHIM_DISABLE=1` switches it off; `SPECSHIM_STRICT=1` turns warnings about a
failed patch into errors.
"""

from __future__ import annotations

import logging
import os

from specshim._version import __version__
from specshim.adapters import DISTRIBUTIONS, TARGETS
from specshim.errors import (
    CaptureError,
    EngineFailedError,
    GeneratorClosedError,
    PatchFailedError,
    SpecshimError,
    SpecshimWarning,
    TargetChangedError,
)
from specshim.patching.model import Outcome, Record
from specshim.patching.patcher import Patcher

__all__ = [
    "CaptureError",
    "EngineFailedError",
    "GeneratorClosedError",
    "Outcome",
    "PatchFailedError",
    "Record",
    "SpecshimError",
    "SpecshimWarning",
    "TargetChangedError",
    "__version__",
    "install",
    "status",
    "uninstall",
]

logging.getLogger("specshim").addHandler(logging.NullHandler())

# `importlib.reload(specshim)` must not patch twice, so the patcher outlives this module's namespace.
_patcher: Patcher = globals().get("_patcher") or Patcher(TARGETS, DISTRIBUTIONS)


def install() -> None:
    """Arm the import hooks, and patch targets that are already imported. Importing specshim does this for you."""
    if os.environ.get("SPECSHIM_DISABLE") != "1":
        _patcher.install()


def uninstall() -> None:
    """Give every patched name its original object back; what somebody else has displaced is reported, not touched."""
    _patcher.uninstall()


def status() -> list[Record]:
    """Return what became of each target in this process: applied, not needed, skipped, failed, displaced or undone."""
    return _patcher.records()


install()
