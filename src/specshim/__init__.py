"""specshim: `import specshim` before `speculators`, and its hidden-state generation is right on newer vLLM.

Importing this package arms import hooks and nothing else: torch, vLLM, transformers and speculators are not
imported by it. When a speculators module that specshim knows is imported, the installed versions select adapters,
each adapter's contract is checked, and all patches of that module are applied, or none. `status()` says what
happened; `uninstall()` undoes it; `SPECSHIM_DISABLE=1` switches it off; `SPECSHIM_STRICT=1` turns warnings about a
failed patch into errors.
"""

from __future__ import annotations

import logging

from specshim._patcher import patcher
from specshim._version import __version__
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
from specshim.patching.switches import is_off

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


def install() -> None:
    """Arm the import hooks, and patch targets that are already imported. Importing specshim does this for you.

    Does nothing under `SPECSHIM_DISABLE=1`. With `SPECSHIM_STRICT=1` it raises if a target that is already imported
    cannot be patched.
    """
    if not is_off():
        patcher.install()


def uninstall() -> None:
    """Give every patched name its original object back.

    A target of which somebody else has displaced a patch is left alone, with a warning, and stays in `status()` as
    displaced. Whoever imported a patched module-level name by name keeps the patched object.
    """
    patcher.uninstall()


def status() -> list[Record]:
    """Return what became of each target in this process; each `Record` says which outcome, and why."""
    return patcher.records()


install()
