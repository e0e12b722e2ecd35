"""Decide what one target needs: find versions, select adapters, check contracts, load the new objects.

Nothing is changed in here, and no lock is held, because all of it imports modules. It is loaded with the first
target, not at `import specshim`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

from packaging.version import Version

from specshim.errors import TargetChangedError
from specshim.patching import contract
from specshim.patching.changes import Assignment, Change, Provision
from specshim.patching.model import Adapter, Entry, Outcome, Patch, Record, Target
from specshim.patching.switches import disabled_ids
from specshim.patching.versions import Distributions, in_range, installed_version, is_newer_release, is_plain_release


class Plan(NamedTuple):
    """The record that a target will have once `changes` have been made."""

    record: Record
    changes: list[Change]


def plan(target: Target, module: ModuleType, distributions: Distributions, late: bool = False) -> Plan:
    """Return what is to be done to `module`; raise TargetChangedError if no adapter's contract holds.

    `late` says that others may hold names from the module already.
    """
    off = disabled_ids()
    if target.id in off:
        return _nothing(target, Outcome.SKIPPED, "switched off by SPECSHIM_DISABLE")
    versions: dict[str, Version] = {}
    for package in packages(target):
        version = installed_version(package, distributions)
        if version is None:
            return _nothing(target, Outcome.SKIPPED, f"{package} is not installed")
        versions[package] = version

    problems: list[str] = []
    for entry in select(target.entries, versions):
        adapter = load_adapter(entry)
        patches = [patch for patch in adapter.patches if patch.id not in off]
        if not patches:
            return _nothing(target, Outcome.SKIPPED, "all its patches are switched off by SPECSHIM_DISABLE", versions)
        needed = [patch for patch in patches if _is_needed(patch, module)]
        if not needed:
            return _nothing(target, Outcome.NOT_NEEDED, "the installed module has everything", versions)
        found = _absent_attributes(needed, module) + contract.differences(adapter.contract)
        if found:
            problems += [f"{adapter.id}: {difference}" for difference in found]
            continue
        record = Record(
            target.id,
            target.module,
            Outcome.APPLIED,
            adapter.why,
            adapter=adapter.id,
            patches=tuple(patch.id for patch in needed),
            versions=_as_text(versions),
            verified=is_verified(target, entry, versions),
            notes=_unreachable(needed, module) if late else (),
        )
        return Plan(record, [change for patch in needed for change in _changes(patch, module)])
    if problems:
        installed = ", ".join(f"{package} {version}" for package, version in versions.items())
        raise TargetChangedError(
            f"{installed} differs from what the adapters for {target.id} rely on: {'; '.join(problems)}. "
            "Install a version that compat_matrix.yaml lists, or a newer specshim."
        )
    return _nothing(target, Outcome.NOT_NEEDED, "no adapter for these versions", versions)


def packages(target: Target) -> list[str]:
    """Return the packages whose versions select the target's adapter."""
    return sorted({package for entry in target.entries for package in entry.ranges})


def select(entries: tuple[Entry, ...], versions: dict[str, Version]) -> list[Entry]:
    """Return the entries to try, best first.

    For published releases that is the one entry whose ranges hold. A pre-release, a development version or a fork's
    number says little about the API, so there the entries that only such a number excludes follow, and the contract
    decides.
    """

    def possible(entry: Entry, package: str) -> bool:
        return not is_plain_release(versions[package]) or in_range(versions[package], entry.ranges[package])

    selected = [entry for entry in entries if is_selected(entry, versions)]
    return selected + [
        entry for entry in entries if entry not in selected and all(possible(entry, p) for p in entry.ranges)
    ]


def is_selected(entry: Entry, versions: dict[str, Version]) -> bool:
    """Tell whether every version lies in the entry's range for it."""
    return all(in_range(versions[package], specifiers) for package, specifiers in entry.ranges.items())


def is_verified(target: Target, entry: Entry, versions: dict[str, Version]) -> bool:
    """Tell whether ranges select the entry for these versions, and none is newer than the newest verified one."""
    return is_selected(entry, versions) and not any(
        is_newer_release(versions[package], newest) for package, newest in target.last_verified.items()
    )


def load_adapter(entry: Entry) -> Adapter:
    """Import the entry's adapter module and return its adapter."""
    adapter: Adapter = contract.resolve(f"{entry.adapter}:ADAPTER")
    return adapter


def _nothing(target: Target, outcome: Outcome, reason: str, versions: dict[str, Version] | None = None) -> Plan:
    return Plan(Record(target.id, target.module, outcome, reason, versions=_as_text(versions or {})), [])


def _as_text(versions: dict[str, Version]) -> dict[str, str]:
    return {package: str(version) for package, version in versions.items()}


def _holder(patch: Patch, module: ModuleType) -> Any:
    holder: Any = module
    for part in patch.attribute.split(".")[:-1]:
        holder = getattr(holder, part, None)
    return holder


def _name(patch: Patch) -> str:
    return patch.attribute.rpartition(".")[2]


def _is_needed(patch: Patch, module: ModuleType) -> bool:
    if patch.kind == "provide":
        return not _can_be_found(patch.attribute)
    return patch.kind != "alias" or not hasattr(_holder(patch, module), _name(patch))


def _can_be_found(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is a plain module, not a package
        return False


def _absent_attributes(patches: list[Patch], module: ModuleType) -> list[str]:
    found = []
    for patch in patches:
        if patch.kind == "provide":
            continue
        holder = _holder(patch, module)
        if holder is None or (patch.kind == "replace" and not hasattr(holder, _name(patch))):
            found.append(f"{module.__name__}:{patch.attribute} is absent, so patch {patch.id} has no place")
    return found


def _unreachable(patches: list[Patch], module: ModuleType) -> tuple[str, ...]:
    """Name the attributes of the module itself that others may have imported by name, so that they keep the old one.

    Methods are patched on their class, which everybody shares, and an additive patch replaces nothing.
    """
    names = [p.attribute for p in patches if p.kind in ("replace", "set") and _holder(p, module) is module]
    names = [name for name in names if hasattr(module, name)]
    if not names:
        return ()
    return (
        f"{module.__name__} was imported before specshim: whoever did `from {module.__name__} import "
        f"{', '.join(names)}` by then keeps the original",
    )


def _changes(patch: Patch, module: ModuleType) -> list[Change]:
    if patch.kind == "provide":
        return _provision(patch)
    return [Assignment(_holder(patch, module), _name(patch), _new_object(patch.value))]


def _new_object(path: str) -> Any:
    """Return the object as its owner holds it: a static method as such, not the function that it hands out."""
    module_name, _, qualname = path.partition(":")
    owner, _, name = qualname.rpartition(".")
    if not owner:
        return contract.resolve(path)
    return inspect.getattr_static(contract.resolve(f"{module_name}:{owner}"), name)


def _provision(patch: Patch) -> list[Change]:
    """Make a module like the one named by the patch's value, and bind it to its parent as an import would."""
    name = patch.attribute
    source = contract.resolve(patch.value)
    provided = ModuleType(name, source.__doc__)
    vars(provided).update({k: v for k, v in vars(source).items() if not k.startswith("__") or k == "__all__"})
    provided.__spec__ = ModuleSpec(name, loader=None, origin=f"specshim ({source.__name__})")
    parent, _, child = name.rpartition(".")
    return [Provision(name, provided), Assignment(sys.modules[parent], child, provided)]
