"""A contract notices each name that was removed or renamed, for made-up objects and for every adapter in the table."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from specshim.adapters import TARGETS
from specshim.patching.contract import differences, resolve
from specshim.patching.model import Adapter, Requires
from specshim.patching.planning import load_adapter

MODULE = "specshim_test_contract"


def thing(first: int, second: int = 2, *, third: int = 3) -> None:
    """Take three parameters."""


def anything(**options: Any) -> None:
    """Take whatever comes."""


@dataclasses.dataclass
class Fields:
    required: int
    optional: int = 0


class Slots:
    __slots__ = ("value",)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(MODULE)
    for obj in (thing, anything, Fields, Slots):
        setattr(made, obj.__name__, obj)
    made.number = 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


HOLDS = [
    Requires(f"{MODULE}:"),
    Requires(f"{MODULE}:thing", ("first", "second", "third")),
    Requires(f"{MODULE}:anything", ("whatever",)),
    Requires(f"{MODULE}:Fields", ("required",), ("required", "optional"), ("gone",)),
    Requires(f"{MODULE}:Fields.__init__", ("optional",)),
    Requires(f"{MODULE}:Slots", (), ("value",)),
]
BROKEN = [
    (Requires("specshim_absent:x"), "specshim_absent:x is absent (No module named 'specshim_absent')"),
    (
        Requires(f"{MODULE}:thing.part"),
        f"{MODULE}:thing.part is absent ('function' object has no attribute 'part')",
    ),
    (
        Requires(f"{MODULE}:thing", ("second", "fourth")),
        f"{MODULE}:thing no longer takes 'fourth' (it takes first, second, third)",
    ),
    (Requires(f"{MODULE}:number", ("x",)), f"{MODULE}:number has no readable signature (5 is not a callable object)"),
    (Requires(f"{MODULE}:Fields", (), ("required", "gone")), f"{MODULE}:Fields has no 'gone'"),
    (Requires(f"{MODULE}:Fields", (), (), ("required",)), f"{MODULE}:Fields has 'required'"),
    (Requires(f"{MODULE}:Slots", (), (), ("value",)), f"{MODULE}:Slots has 'value'"),
]


@pytest.mark.parametrize("requirement", HOLDS, ids=lambda r: str(r.path))
def test_an_expectation_that_holds_gives_no_difference(module: ModuleType, requirement: Requires) -> None:
    assert differences((requirement,)) == []


@pytest.mark.parametrize(("requirement", "sentence"), BROKEN, ids=lambda x: x.path if isinstance(x, Requires) else "")
def test_an_expectation_that_does_not_hold_is_one_sentence(
    module: ModuleType, requirement: Requires, sentence: str
) -> None:
    assert differences((requirement,)) == [sentence]


def test_every_difference_is_listed(module: ModuleType) -> None:
    broken = tuple(requirement for requirement, _ in BROKEN)
    assert differences((*HOLDS, *broken)) == [sentence for _, sentence in BROKEN]


def test_resolving_imports_the_submodule_that_is_named() -> None:
    assert resolve("specshim.patching.contract:resolve") is resolve
    assert resolve("specshim.patching.contract:").__name__ == "specshim.patching.contract"


# -- every adapter of the table, against a target made from its own contract -----------------------------------------

ADAPTERS = {adapter.id: adapter for target in TARGETS for adapter in map(load_adapter, target.entries)}
MUTATIONS = [
    (adapter_id, index, kind, name)
    for adapter_id, adapter in ADAPTERS.items()
    for index, requirement in enumerate(adapter.contract)
    for kind, names in (
        ("path", [requirement.path.rpartition(":")[2].rpartition(".")[2]]),
        ("parameters", requirement.parameters),
        ("fields", requirement.fields),
        ("without", requirement.without),
    )
    for name in names
]


def make_target(contract: tuple[Requires, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put modules into sys.modules that have just what the contract asks for."""
    modules: dict[str, ModuleType] = {}
    for path in {requirement.path for requirement in contract}:
        mine = [requirement for requirement in contract if requirement.path == path]
        module_name, _, qualname = path.partition(":")
        if module_name not in modules:
            modules[module_name] = ModuleType(module_name)
            monkeypatch.setitem(sys.modules, module_name, modules[module_name])
        obj: Any = modules[module_name]
        for part in qualname.split("."):
            if not hasattr(obj, part):
                setattr(obj, part, type(part, (), {}))
            obj = getattr(obj, part)
        obj.__signature__ = inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for r in mine for n in r.parameters]
        )
        for requirement in mine:
            for name in requirement.fields:
                if not hasattr(obj, name):
                    setattr(obj, name, type(name, (), {}))


def mutate(adapter: Adapter, index: int, kind: str, name: str) -> None:
    """Rename one thing that the adapter relies on, or bring back what must not be there."""
    requirement = adapter.contract[index]
    if kind == "path":
        module_name, _, qualname = requirement.path.partition(":")
        owner = resolve(f"{module_name}:{qualname.rpartition('.')[0]}")
        setattr(owner, f"{name}_renamed", vars(owner)[name])
        delattr(owner, name)
        return
    obj = resolve(requirement.path)
    if kind == "parameters":
        obj.__signature__ = inspect.Signature(
            [
                p.replace(name=f"{name}_renamed" if p.name == name else p.name)
                for p in obj.__signature__.parameters.values()
            ]
        )
    elif kind == "fields":
        setattr(obj, f"{name}_renamed", vars(obj)[name])
        delattr(obj, name)
    else:
        setattr(obj, name, None)


@pytest.mark.parametrize("adapter_id", ADAPTERS)
def test_an_adapters_contract_holds_for_a_target_that_has_what_it_asks_for(
    adapter_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_target(ADAPTERS[adapter_id].contract, monkeypatch)
    assert differences(ADAPTERS[adapter_id].contract) == []


@pytest.mark.parametrize(("adapter_id", "index", "kind", "name"), MUTATIONS)
def test_each_thing_that_an_adapter_relies_on_is_missed_when_it_is_renamed(
    adapter_id: str, index: int, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = ADAPTERS[adapter_id]
    make_target(adapter.contract, monkeypatch)
    mutate(adapter, index, kind, name)
    found = differences(adapter.contract)
    assert found
    assert all(name in sentence for sentence in found)
    assert any(sentence.startswith(adapter.contract[index].path) for sentence in found)
