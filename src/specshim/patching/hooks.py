"""The one file that touches wrapt's import hooks and the import system.

wrapt keeps the hooks and calls each once. What it leaves to us: an exception in a hook makes the user's import fail
and drops the hook, so that a second import would run unpatched; a hook for a module that is already in `sys.modules`
runs at once, also while that module's body is still running; and its finder can deadlock (see `_Finder`).
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

from wrapt import notify_module_loaded, register_post_import_hook
from wrapt.importer import ImportHookFinder

Callback = Callable[[ModuleType, bool], None]

_CALLBACKS = "_specshim_callbacks"


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
            self._wait_for(module)

    def _register(self) -> None:
        if self._registered:
            return
        self._registered = True
        self._registering_thread = threading.get_ident()
        try:
            register_post_import_hook(self._on_import, self.name)
        finally:
            self._registering_thread = None
        _finder.find(self)

    def _wait_for(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None and _when_complete(spec, self._on_complete) and not is_half_imported(module):
            _call_back(spec)  # another thread has completed it since `arm` looked

    def _on_import(self, module: ModuleType) -> None:
        if self._registering_thread == threading.get_ident():
            # wrapt found the module in sys.modules: another thread has begun to import it since `arm` looked.
            self._registered = False
            self.arm()
        else:
            self.call_during_import(module, late=False)

    def _on_complete(self) -> None:
        self.waiting = False
        module = sys.modules.get(self.name)
        if module is None:
            self._register()  # its import failed, and may be tried again
        else:
            self.call_during_import(module, late=True)

    def call_during_import(self, module: ModuleType, late: bool) -> None:
        """Call back for a module whose import is about to end; if that raises, the import fails and is forgotten."""
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
    """A spec that tells when the import of its module ends: the import system then sets `_initializing` to False.

    Until it is set, other threads that import the module wait; so nobody sees the module before it is patched,
    whichever thread imports it and whoever began to import it.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name != "_initializing" or value:
            super().__setattr__(name, value)
            return
        try:
            _call_back(self)
        finally:
            super().__setattr__(name, value)
            self.__class__ = ModuleSpec  # type: ignore[assignment]
        _call_back(self)  # what another thread has added since


def _when_complete(spec: ModuleSpec, callback: Callable[[], None]) -> bool:
    """Call `callback()` when the import that has begun, or will begin, with this spec ends, well or not.

    Return False, and do nothing, for the spec of an importer that has a class of its own for its specs.
    """
    if type(spec) not in (ModuleSpec, _WatchedSpec):
        return False
    vars(spec).setdefault(_CALLBACKS, deque()).append(callback)
    spec.__class__ = _WatchedSpec
    return True


def _call_back(spec: ModuleSpec) -> None:
    callbacks: deque[Callable[[], None]] = vars(spec).get(_CALLBACKS, deque())
    while callbacks:
        callbacks.popleft()()


class _Finder:
    """Finds our targets ahead of wrapt's finder, and again if they are removed from `sys.modules` and imported anew.

    The import system calls finders while it holds its global lock, and wrapt's finder then imports the target's
    parent package. If another thread is importing that package, the two threads wait for each other for ever.
    """

    def __init__(self) -> None:
        self._hooks: dict[str, list[ImportHook]] = {}

    def find(self, hook: ImportHook) -> None:
        """Begin to find the hook's module."""
        hooks = self._hooks.setdefault(hook.name, [])
        if hook not in hooks:
            hooks.append(hook)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the other finders return, and have the hooks called when the import is over."""
        if name not in self._hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or isinstance(finder, ImportHookFinder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                # A spec that cannot be watched is left to wrapt's finder, which wraps its loader.
                return spec if _when_complete(spec, partial(self._notify, name)) else None
        return None

    def _notify(self, name: str) -> None:
        module = sys.modules.get(name)
        if module is None:
            return
        notify_module_loaded(module)
        # wrapt calls a hook for the first import only. To be called twice for one module does no harm.
        for hook in self._hooks[name]:
            hook.call_during_import(module, late=False)


_finder = _Finder()
