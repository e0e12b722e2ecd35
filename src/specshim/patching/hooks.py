"""The one file that touches wrapt's import hooks.

wrapt calls a hook once, right after the module's body ran. Its limits, kept in here: an exception in a hook makes
the user's import fail and drops the hook, so that a second import would run unpatched; a hook for a module that is
already in `sys.modules` runs at once, also while that module is still half imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from wrapt import register_post_import_hook

Callback = Callable[[ModuleType], None]


def when_imported(module: str, callback: Callback) -> None:
    """Call `callback(module)` after `module` has been imported, at once if it already is."""

    def hook(imported: ModuleType) -> None:
        try:
            callback(imported)
        except BaseException:
            # Strict mode: the import must fail again if it is tried again, and never succeed unpatched.
            sys.modules.pop(module, None)
            register_post_import_hook(hook, module)
            raise

    register_post_import_hook(hook, module)


def is_half_imported(module: ModuleType) -> bool:
    """Tell whether the module's body is still running."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
