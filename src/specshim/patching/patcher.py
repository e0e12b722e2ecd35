"""Select adapters, check their contracts, apply all patches of a target or none, and undo them."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from packaging.version import Version

from specshim.errors import PatchFailedError, SpecshimError, SpecshimWarning, TargetChangedError
from specshim.patching import contract, hooks
from specshim.patching.model import Adapter, Entry, Outcome, Patch, Record, Target
from specshim.patching.versions import in_range, installed_version, is_plain_release

logger = logging.getLogger("specshim")

ABSENT: Any = object()


@dataclass(frozen=True)
class Assignment:
    """One attribute that a patch sets: where, what was there (`ABSENT` if nothing), and what is there now."""

    holder: Any
    name: str
    original: Any
    new: Any

    def current(self) -> Any:
        """Return what the holder's own namespace has now, without triggering descriptors or inheritance."""
        return vars(self.holder).get(self.name, ABSENT)

    def apply(self) -> None:
        """Set the new value."""
        setattr(self.holder, self.name, self.new)

    def undo(self) -> None:
        """Put the very same original object back, or remove what was absent before."""
        if self.original is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.original)


@dataclass(frozen=True)
class ModuleProvision:
    """A module put into `sys.modules` because the installed stack no longer has it."""

    name: str
    module: ModuleType

    def apply(self) -> None:
        """Make the module importable under its old name."""
        sys.modules[self.name] = self.module

    def undo(self) -> None:
        """Forget the module, if it is still ours."""
        if sys.modules.get(self.name) is self.module:
            del sys.modules[self.name]

    def current(self) -> Any:
        """Return what `sys.modules` has under the name."""
        return sys.modules.get(self.name, ABSENT)

    @property
    def new(self) -> ModuleType:
        """Return the provided module."""
        return self.module


Change = Assignment | ModuleProvision


class Patcher:
    """Applies the targets of a table as their modules are imported, and keeps a record of each."""

    def __init__(self, targets: tuple[Target, ...], distributions: dict[str, tuple[str, ...]]) -> None:
        """Take the adapter table and, for each import package, the distribution names it may be installed under."""
        self.targets = targets
        self._distributions = distributions
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._changes: dict[str, list[Change]] = {}
        self._registered: set[str] = set()
        self._active = False

    # -- life cycle ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Arm the import hooks; apply at once to targets that are already imported. Idempotent."""
        with self._lock:
            self._active = True
            for target in self.targets:
                if target.id in self._registered:
                    module = sys.modules.get(target.module)
                    if module is not None and target.id not in self._changes:
                        self._on_import(target, module)
                    continue
                self._registered.add(target.id)
                hooks.when_imported(target.module, self._callback(target))

    def uninstall(self) -> None:
        """Undo every patch; one that somebody else has displaced is left alone and reported as displaced."""
        with self._lock:
            self._active = False
            for target_id, changes in list(self._changes.items()):
                displaced = [c for c in changes if c.current() is not c.new]
                if displaced:
                    names = ", ".join(_describe(c) for c in displaced)
                    reason = f"{names} was replaced by somebody else after specshim; nothing was undone"
                    self._records[target_id] = replace(
                        self._records[target_id], outcome=Outcome.DISPLACED, reason=reason
                    )
                    warnings.warn(f"specshim: {target_id}: {reason}", SpecshimWarning, stacklevel=3)
                    continue
                for change in reversed(changes):
                    change.undo()
                del self._changes[target_id]
                self._records[target_id] = replace(
                    self._records[target_id], outcome=Outcome.UNDONE, reason="uninstall() was called"
                )

    def records(self) -> list[Record]:
        """Return what became of each target whose module has been imported, in table order."""
        with self._lock:
            return [self._records[t.id] for t in self.targets if t.id in self._records]

    # -- applying -----------------------------------------------------------------------------------------------

    def _callback(self, target: Target) -> Callable[[ModuleType], None]:
        def on_import(module: ModuleType) -> None:
            with self._lock:
                if self._active:
                    self._on_import(target, module)

        return on_import

    def _on_import(self, target: Target, module: ModuleType) -> None:
        if target.id in self._changes:
            return
        try:
            record = self._apply(target, module)
        except Exception as error:
            record = Record(target.id, target.module, Outcome.FAILED, f"{type(error).__name__}: {error}")
            self._records[target.id] = record
            message = (
                f"specshim: {target.id} was not patched and {target.module} is as installed: {error} "
                "(`specshim doctor` shows the details; SPECSHIM_STRICT=1 makes this an error)"
            )
            if is_strict():
                if isinstance(error, SpecshimError):
                    raise
                raise PatchFailedError(message) from error
            logger.debug("%s", message, exc_info=True)
            warnings.warn(message, SpecshimWarning, stacklevel=2)
        else:
            self._records[target.id] = record
            logger.info("%s: %s (%s)", record.target, record.outcome.value, record.reason)

    def _apply(self, target: Target, module: ModuleType) -> Record:
        off = disabled()
        if target.id in off:
            return Record(target.id, target.module, Outcome.SKIPPED, "switched off by SPECSHIM_DISABLE")
        packages = sorted({package for entry in target.entries for package in entry.ranges})
        versions: dict[str, Version] = {}
        for package in packages:
            version = installed_version(package, self._distributions.get(package, (package,)))
            if version is None:
                return Record(target.id, target.module, Outcome.SKIPPED, f"{package} is not installed")
            versions[package] = version
        shown = {package: str(version) for package, version in versions.items()}

        candidates = select(target.entries, versions)
        if not candidates:
            return Record(
                target.id, target.module, Outcome.NOT_NEEDED, "no adapter for these versions", versions=shown
            )
        adapter = self._first_that_holds(target, candidates)
        changes = self._plan(module, adapter, off)
        _apply_all(changes)
        if changes:
            self._changes[target.id] = changes
        verified = all(
            version <= Version(target.last_verified[package])
            for package, version in versions.items()
            if package in target.last_verified
        )
        if not verified and changes:
            warnings.warn(
                f"specshim: {target.id} was patched on versions newer than the last verified ones "
                f"({', '.join(f'{p} {v}' for p, v in shown.items())}; verified up to "
                f"{', '.join(f'{p} {v}' for p, v in target.last_verified.items())}). "
                "Every name it relies on is there; run `specshim doctor` and compare a few rows before long runs.",
                SpecshimWarning,
                stacklevel=2,
            )
        return Record(
            target.id,
            target.module,
            Outcome.APPLIED if changes else Outcome.NOT_NEEDED,
            adapter.why if changes else "the installed module has everything",
            adapter=adapter.id,
            patches=tuple(patch.id for patch in adapter.patches if patch.id not in off),
            versions=shown,
            verified=verified,
        )

    @staticmethod
    def _first_that_holds(target: Target, candidates: list[Entry]) -> Adapter:
        problems: list[str] = []
        for entry in candidates:
            adapter: Adapter = contract.resolve(f"{entry.adapter}:ADAPTER")
            found = contract.differences(adapter.contract)
            if not found:
                return adapter
            problems += [f"{adapter.id}: {difference}" for difference in found]
        raise TargetChangedError(
            f"the installed version differs from what the adapter for {target.id} relies on: {'; '.join(problems)}. "
            "Install a version from compat_matrix.yaml, or a newer specshim."
        )

    @staticmethod
    def _plan(module: ModuleType, adapter: Adapter, off: frozenset[str]) -> list[Change]:
        changes: list[Change] = []
        for patch in adapter.patches:
            if patch.id in off:
                continue
            change = _provision(patch) if patch.kind == "provide" else _assignment(module, patch)
            if change is not None:
                changes.append(change)
        return changes


def select(entries: tuple[Entry, ...], versions: dict[str, Version]) -> list[Entry]:
    """Return the entries to try, best first.

    For published releases that is the one entry whose ranges hold. A pre-release, a development version or a fork's
    number says little about the API, so there the other entries follow and the contract decides.
    """
    chosen = [e for e in entries if all(in_range(versions[p], spec) for p, spec in e.ranges.items())]
    if all(is_plain_release(version) for version in versions.values()):
        return chosen
    return chosen + [entry for entry in entries if entry not in chosen]


def disabled() -> frozenset[str]:
    """Return the patch and target ids that `SPECSHIM_DISABLE` leaves out."""
    return frozenset(filter(None, (part.strip() for part in os.environ.get("SPECSHIM_DISABLE", "").split(","))))


def is_strict() -> bool:
    """Tell whether `SPECSHIM_STRICT` asks for errors instead of warnings."""
    return os.environ.get("SPECSHIM_STRICT", "") not in ("", "0")


def _assignment(module: ModuleType, patch: Patch) -> Assignment | None:
    *parents, name = patch.attribute.split(".")
    holder: Any = module
    for parent in parents:
        holder = getattr(holder, parent)
    original = vars(holder).get(name, ABSENT)
    if patch.kind == "alias" and hasattr(holder, name):
        return None
    if patch.kind == "replace" and not hasattr(holder, name):
        raise TargetChangedError(f"{module.__name__}.{patch.attribute} is absent, so patch {patch.id} cannot replace it")
    return Assignment(holder, name, original, contract.resolve(patch.value))


def _provision(patch: Patch) -> ModuleProvision | None:
    name = patch.attribute
    if name in sys.modules or _can_be_found(name):
        return None
    source = importlib.import_module(patch.value.partition(":")[0])
    module = ModuleType(name, source.__doc__)
    module.__dict__.update({k: v for k, v in vars(source).items() if not k.startswith("__")})
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, origin=f"specshim ({source.__name__})")
    return ModuleProvision(name, module)


def _can_be_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a plain module, not a package
        return False


def _apply_all(changes: list[Change]) -> None:
    done: list[Change] = []
    try:
        for change in changes:
            change.apply()
            done.append(change)
    except BaseException:
        for change in reversed(done):
            change.undo()
        raise


def _describe(change: Change) -> str:
    if isinstance(change, ModuleProvision):
        return change.name
    return f"{getattr(change.holder, '__qualname__', getattr(change.holder, '__name__', change.holder))}.{change.name}"
