"""The adapter table is whole: ranges tile, names are unique, and files and rows match."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import specshim.adapters
from specshim.adapters import DISTRIBUTIONS, TARGETS
from specshim.patching.model import Entry, Target
from specshim.patching.planning import is_selected, load_adapter, packages
from specshim.patching.versions import in_range

ENTRIES = [(target, entry) for target in TARGETS for entry in target.entries]
ADAPTERS = [load_adapter(entry) for _, entry in ENTRIES]
WITH_SEVERAL = [target for target in TARGETS if len(target.entries) > 1]
FOLDER = Path(specshim.adapters.__file__).parent

LOWEST, HIGHEST = Version("0.dev0"), Version("9999")


def interval(specifiers: str) -> tuple[Version, Version]:
    """Return the half-open interval of a range, which is written with `>=` and `<` only."""
    low, high = LOWEST, HIGHEST
    for specifier in SpecifierSet(specifiers):
        assert specifier.operator in (">=", "<"), f"{specifier} is not half-open"
        assert Version(specifier.version).is_devrelease, f"{specifier} puts pre-releases of its bound on the wrong side"
        if specifier.operator == ">=":
            low = Version(specifier.version)
        else:
            high = Version(specifier.version)
    return low, high


def keyed_package(target: Target) -> str:
    """Return the one package whose ranges tell the target's entries apart."""
    differing = [p for p in packages(target) if len({entry.ranges.get(p) for entry in target.entries}) > 1]
    assert len(differing) == 1, f"{target.id} is told apart by {differing}"
    return differing[0]


@st.composite
def versions(draw: st.DrawFn) -> Version:
    """Draw a version near those that the table speaks of, in every form that PEP 440 knows."""
    release = draw(
        st.sampled_from(["0.10", "0.11", "0.16", "0.17", "0.24", "0.33", "0.3", "0.4", "0.5", "5.4", "5.24", "4.57"])
    )
    micro = draw(st.sampled_from(["", ".0", ".1", ".2"]))
    pre = draw(st.sampled_from(["", "a1", "b2", "rc1"]))
    post = draw(st.sampled_from(["", ".post1"]))
    dev = draw(st.sampled_from(["", ".dev0", ".dev7"]))
    local = draw(st.sampled_from(["", "+cu129", "+g0123abc"]))
    return Version(release + micro + pre + post + dev + local)


@pytest.mark.parametrize("entry", [entry for _, entry in ENTRIES], ids=lambda e: e.adapter.rpartition(".")[2])
def test_ranges_are_half_open_and_not_empty(entry: Entry) -> None:
    for specifiers in entry.ranges.values():
        low, high = interval(specifiers)
        assert low < high


@pytest.mark.parametrize("target", WITH_SEVERAL, ids=lambda t: t.id)
def test_the_ranges_of_a_target_touch_without_gap_or_overlap(target: Target) -> None:
    package = keyed_package(target)
    intervals = sorted(interval(entry.ranges[package]) for entry in target.entries)
    assert [high for _, high in intervals[:-1]] == [low for low, _ in intervals[1:]]


@pytest.mark.parametrize("target", WITH_SEVERAL, ids=lambda t: t.id)
@given(data=st.data())
def test_every_version_between_the_outer_bounds_selects_exactly_one_entry(target: Target, data: st.DataObject) -> None:
    package = keyed_package(target)
    intervals = sorted(interval(entry.ranges[package]) for entry in target.entries)
    version = data.draw(versions())
    inside = intervals[0][0] <= version < intervals[-1][1]
    assert sum(in_range(version, entry.ranges[package]) for entry in target.entries) == int(inside)


@given(data=st.data())
def test_no_target_has_two_entries_for_the_same_versions(data: st.DataObject) -> None:
    drawn = {package: data.draw(versions(), label=package) for package in DISTRIBUTIONS}
    for target in TARGETS:
        assert sum(is_selected(entry, drawn) for entry in target.entries) <= 1


def test_every_adapter_file_is_in_the_table_and_the_reverse() -> None:
    files = {
        f"specshim.adapters.{path.parent.name}.{path.stem}"
        for path in FOLDER.glob("*/*.py")
        if "_ge_" in path.stem or "_lt_" in path.stem
    }
    assert files == {entry.adapter for _, entry in ENTRIES}


def test_every_module_that_holds_an_adapter_is_named_after_its_break() -> None:
    holders = {p.stem for p in FOLDER.glob("*/*.py") if "\nADAPTER = " in p.read_text()}
    assert holders == {entry.adapter.rpartition(".")[2] for _, entry in ENTRIES}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: a.id)
def test_an_adapter_says_why_since_when_and_until_when(adapter: object) -> None:
    for field in ("id", "why", "upstream", "remove_when"):
        assert getattr(adapter, field).strip(), field
    assert adapter.patches  # type: ignore[attr-defined]


@pytest.mark.parametrize(("target", "entry"), ENTRIES, ids=lambda x: x.id if isinstance(x, Target) else "")
def test_an_adapters_id_is_its_modules_name(target: Target, entry: Entry) -> None:
    assert f"specshim.adapters.{load_adapter(entry).id}" == entry.adapter


def test_ids_are_unique() -> None:
    for ids in ([t.id for t in TARGETS], [a.id for a in ADAPTERS], [t.module for t in TARGETS]):
        assert sorted(ids) == sorted(set(ids))
    for adapter in ADAPTERS:
        patch_ids = [patch.id for patch in adapter.patches]
        assert sorted(patch_ids) == sorted(set(patch_ids))


def test_a_patch_id_belongs_to_one_target_and_is_no_target_id() -> None:
    owners: dict[str, set[str]] = {}
    for target, entry in ENTRIES:
        for patch in load_adapter(entry).patches:
            owners.setdefault(patch.id, set()).add(target.id)
    assert {patch for patch, targets in owners.items() if len(targets) > 1} == set()
    assert set(owners) & {target.id for target in TARGETS} == set()


def test_every_package_that_selects_has_its_distributions_listed() -> None:
    assert {package for target in TARGETS for package in packages(target)} <= set(DISTRIBUTIONS)
    for target in TARGETS:
        assert set(target.last_verified) <= set(packages(target))
