"""The one file that touches wrapt's import hooks and the import system.

wrapt calls a hook once, right after the module's body ran. Its limits, kept in here: an exception in a hook makes
the user's import fail and drops the hook, so that a second import would run unpatched; a hook for a module that is
already in `sys.modules` runs at once, also while that module's body is still running; a hook cannot be removed.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

from wrapt import register_post_import_hook

Callback = Callable[[ModuleType, bool], None]


class ImportHook:
    """Calls `callback(module, late)` when the module called `name` has been imported completely.

    `late` is True if its import had begun before the hook was there, so that others may hold names from it. `waiting`
    is True while such an import is still running.
    """

    def __init__(self, name: str, callback: Callback) -> None:
        """Remember what to call; nothing is registered before `arm`."""
        self.name = name
        self.waiting = False
        self._callback = callback
        self._registered = False
        self._registering_thread: int | None = None

    def arm(self) -> None:
        """Call back now if the module is there, and as soon as it is otherwise. May be called again at any time."""
        module = sys.modules.get(self.name)
        if module is None:
            self._register()
        elif not is_half_imported(module):
            self.waiting = False
            self._callback(module, True)
        elif not (self._registered or self.waiting):
            self.waiting = True
            when_complete(module, self._on_complete)

    def _register(self) -> None:
        if self._registered:
            return
        self._registered = True
        self._registering_thread = threading.get_ident()
        try:
            register_post_import_hook(self._on_import, self.name)
        finally:
            self._registering_thread = None

    def _on_import(self, module: ModuleType) -> None:
        if self._registering_thread == threading.get_ident():
            # wrapt found the module in sys.modules: another thread has begun to import it since `arm` looked.
            self._registered = False
            self.arm()
        else:
            self._call_during_import(module, late=False)

    def _on_complete(self) -> None:
        self.waiting = False
        module = sys.modules.get(self.name)
        if module is None:
            self._register()  # its import failed, and may be tried again
        else:
            self._call_during_import(module, late=True)

    def _call_during_import(self, module: ModuleType, late: bool) -> None:
        # A module may have put another object in its own place, as transformers does: that one is what users see.
        module = sys.modules.get(self.name, module)
        try:
            self._callback(module, late)
        except BaseException:
            # Strict mode: the import fails now, must fail again if it is tried again, and never succeed unpatched.
            sys.modules.pop(self.name, None)
            self._registered = False
            self._register()
            raise
        self._registered = False


def is_half_imported(module: ModuleType) -> bool:
    """Tell whether the module's body is still running."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _WatchedSpec(ModuleSpec):
    """The spec of a half imported module. The import system sets `_initializing` to False when the import ends.

    That is the one moment at which a module that somebody else is importing is complete and nobody has used it yet.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            _complete(self)


def when_complete(module: ModuleType, callback: Callable[[], None]) -> None:
    """Call `callback()` when the running import of `module` ends, well or not."""
    spec = module.__spec__
    if spec is None or type(spec) not in (ModuleSpec, _WatchedSpec):
        return  # an importer with specs of its own kind: the next `arm` looks again
    vars(spec).setdefault("_specshim_callbacks", deque()).append(callback)
    spec.__class__ = _WatchedSpec
    if not is_half_imported(module):
        _complete(spec)  # another thread has completed it since it was last looked at


def _complete(spec: ModuleSpec) -> None:
    spec.__class__ = ModuleSpec
    callbacks: deque[Callable[[], None]] = vars(spec)["_specshim_callbacks"]
    while callbacks:
        callbacks.popleft()()
