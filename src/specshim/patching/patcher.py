"""The life cycle of patches: arm hooks, patch each target as it is imported, keep records, undo."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from specshim.errors import PatchFailedError, SpecshimError, SpecshimWarning
from specshim.patching.hooks import ImportHook
from specshim.patching.model import Outcome, Record, Target
from specshim.patching.switches import is_strict

if TYPE_CHECKING:
    from specshim.patching.changes import Change
    from specshim.patching.versions import Distributions

logger = logging.getLogger("specshim")

# Held only while attributes are set and records are written, never while anything is imported: a thread that waits
# for it while it holds an import lock could otherwise wait for ever.
_LOCK = threading.RLock()
# A child forked while another thread holds the lock would find it held for ever.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


class Patcher:
    """Patches the targets of a table as their modules are imported, and keeps a record of each."""

    def __init__(self, targets: tuple[Target, ...], distributions: Distributions) -> None:
        """Take the adapter table and, for each import package, the distribution names it may be installed under."""
        self.targets = targets
        self.distributions = distributions
        self._hooks = {target.id: ImportHook(target.module, partial(self._on_import, target)) for target in targets}
        self._active = False
        self._records: dict[str, Record] = {}
        self._changes: dict[str, list[Change]] = {}
        # The module object that a target's record speaks of: each one is dealt with once.
        self._settled: dict[str, ModuleType] = {}
        self._unverified_warned = False

    def install(self) -> None:
        """Arm the import hooks; patch at once the targets that are already imported. Idempotent.

        In strict mode the first failure is raised after all targets have had their turn.
        """
        self._active = True
        errors: list[Exception] = []
        for hook in self._hooks.values():
            try:
                hook.arm()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def uninstall(self) -> None:
        """Undo every patch; if somebody else has displaced one, its target is left alone, with a warning."""
        displaced: list[Record] = []
        with _LOCK:
            self._active = False
            for target_id in list(self._settled):
                if _displaced(self._changes.get(target_id, [])):
                    displaced.append(self._current(target_id))
                    continue
                del self._settled[target_id]
                changes = self._changes.pop(target_id, [])
                for change in reversed(changes):
                    change.undo()
                if changes:
                    self._records[target_id] = self._records[target_id]._replace(
                        outcome=Outcome.UNDONE, reason="uninstall() was called"
                    )
        for record in displaced:
            _warn(f"{record.target} was not undone: {record.reason}. Undo that first, then call uninstall() again.")

    def records(self) -> list[Record]:
        """Return what became of each target whose module has been imported, in table order."""
        with _LOCK:
            found = []
            for target in self.targets:
                if self._hooks[target.id].waiting and self._active:
                    found.append(_deferred(target))
                elif target.id in self._records:
                    found.append(self._current(target.id))
            return found

    def _current(self, target_id: str) -> Record:
        record = self._records[target_id]
        displaced = _displaced(self._changes.get(target_id, []))
        if not displaced:
            return record
        return record._replace(
            outcome=Outcome.DISPLACED, reason=f"after specshim, somebody else replaced {', '.join(displaced)}"
        )

    def _on_import(self, target: Target, module: ModuleType, late: bool) -> None:
        # Loaded with the first target: `import specshim` does not need it.
        from specshim.patching.changes import apply_all
        from specshim.patching.planning import plan

        if self._is_settled(target, module):
            return
        try:
            record, changes = plan(target, module, self.distributions, late)
            with _LOCK:
                if self._is_settled(target, module):  # by another thread
                    return
                apply_all(changes)
                self._changes.setdefault(target.id, []).extend(changes)
                self._settle(target, module, record)
        except Exception as error:
            self._fail(target, module, error)
        else:
            self._report(target, record)

    def _is_settled(self, target: Target, module: ModuleType) -> bool:
        return not self._active or self._settled.get(target.id) is module

    def _settle(self, target: Target, module: ModuleType, record: Record) -> None:
        self._settled[target.id] = module
        self._records[target.id] = record

    def _fail(self, target: Target, module: ModuleType, error: Exception) -> None:
        reason = str(error) if isinstance(error, SpecshimError) else f"{type(error).__name__}: {error}"
        message = f"{target.id} was not patched and {target.module} is as installed: {reason}"
        strict = is_strict()
        with _LOCK:
            if self._is_settled(target, module):  # by another thread, or switched off meanwhile
                return
            self._records[target.id] = Record(target.id, target.module, Outcome.FAILED, reason)
            if not strict:
                self._settled[target.id] = module
        if strict:
            if isinstance(error, SpecshimError):
                raise error
            raise PatchFailedError(message) from error
        logger.debug("%s", message, exc_info=error)
        _warn(f"{message} (`specshim doctor` shows the details; SPECSHIM_STRICT=1 makes this an error)")

    def _report(self, target: Target, record: Record) -> None:
        logger.info("%s: %s (%s)", record.target, record.outcome.value, record.reason)
        for note in record.notes:
            _warn(f"{target.id}: {note}. Import specshim first.")
        if not record.verified and not self._unverified_warned:
            self._unverified_warned = True
            installed = ", ".join(f"{package} {version}" for package, version in record.versions.items())
            newest = ", ".join(f"{package} {version}" for package, version in target.last_verified.items())
            _warn(
                f"{target.id} was patched on versions that nobody has verified yet: {installed}"
                f"{f' (verified up to {newest})' if newest else ''}. Everything that the patches rely on is there; "
                "compare a few rows with a verified version before long runs. This is said once for all targets."
            )


def _displaced(changes: list[Change]) -> list[str]:
    return [str(change) for change in changes if not change.is_in_place()]


def _deferred(target: Target) -> Record:
    reason = "its import had begun before specshim's; it is patched when that import ends, or by specshim.install()"
    return Record(target.id, target.module, Outcome.DEFERRED, reason)


def _warn(message: str) -> None:
    warnings.warn(f"specshim: {message}", SpecshimWarning, stacklevel=2)
