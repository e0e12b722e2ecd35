"""Any sequence of import, forget, install, uninstall, displace and restore keeps the promises about whole states."""

from __future__ import annotations

import importlib
import itertools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specshim.patching.model import Adapter, Entry, Outcome, Patch, Target
from specshim.patching.patcher import Patcher

SOURCE = """
class Base:
    def inherited(self): return "original inherited"
class Thing(Base):
    def own(self): return "original own"
"""


def own(self: Any) -> str:
    """Stand in for Thing.own."""
    return "patched own"


def inherited(self: Any) -> str:
    """Stand in for the inherited method."""
    return "patched inherited"


ADAPTER = Adapter(
    "test",
    "why",
    "upstream",
    "remove_when",
    (
        Patch("own", "replace", "Thing.own", f"{__name__}:own"),
        Patch("inherited", "replace", "Thing.inherited", f"{__name__}:inherited"),
    ),
)
_numbers = itertools.count()
_folder: Path


@pytest.fixture(autouse=True, scope="module")
def _modules_on_a_path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    global _folder
    _folder = tmp_path_factory.mktemp("state_machine")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_folder)
        patch.setenv("SPECSHIM_SPECSHIM_TEST_VERSION", "1.0")
        yield


class Lifecycle(RuleBasedStateMachine):
    """One target; the model is four flags, and the whole state follows from them."""

    @initialize()
    def start(self) -> None:
        self.name = f"specshim_test_target_{next(_numbers)}"
        (_folder / f"{self.name}.py").write_text(SOURCE)
        importlib.invalidate_caches()
        target = Target("test", self.name, (Entry({"specshim_test": ">=1.0.dev0"}, __name__),))
        self.patcher = Patcher((target,), {})
        self.module: ModuleType | None = None
        self.original: Callable[..., str] | None = None
        self.active = False
        self.patched = False
        self.displaced = False

    @rule()
    def install(self) -> None:
        self.patcher.install()
        self.active = True
        self.patched = self.patched or self.module is not None

    @rule()
    def uninstall(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.patcher.uninstall()
        assert len(caught) == (1 if self.displaced else 0)
        self.active = False
        self.patched = self.patched and self.displaced

    @precondition(lambda self: self.module is None)
    @rule()
    def import_target(self) -> None:
        self.module = importlib.import_module(self.name)
        self.patched = self.active
        if not self.active:
            self.original = vars(self.module.Thing)["own"]

    @precondition(lambda self: self.module is not None and not self.displaced)
    @rule()
    def import_again(self) -> None:
        assert importlib.import_module(self.name) is self.module

    @precondition(lambda self: self.patched and not self.displaced)
    @rule()
    def displace(self) -> None:
        assert self.module is not None
        self.module.Thing.own = lambda self: "displaced own"
        self.displaced = True

    @precondition(lambda self: self.displaced)
    @rule()
    def restore(self) -> None:
        assert self.module is not None
        self.module.Thing.own = own
        self.displaced = False

    @invariant()
    def the_class_is_whole(self) -> None:
        if self.module is None:
            assert self.patcher.records() == []
            return
        thing = self.module.Thing
        state = "patched" if self.patched else "original"
        assert thing().own() == ("displaced own" if self.displaced else f"{state} own")
        assert thing().inherited() == f"{state} inherited"
        assert ("inherited" in vars(thing)) is self.patched
        if self.patched and not self.displaced:
            assert vars(thing)["own"] is own
        if not self.patched:
            self.original = self.original or vars(thing)["own"]
            assert vars(thing)["own"] is self.original

    @invariant()
    def the_record_says_so(self) -> None:
        outcomes = [record.outcome for record in self.patcher.records()]
        if self.displaced:
            assert outcomes == [Outcome.DISPLACED]
        elif self.patched:
            assert outcomes == [Outcome.APPLIED]
        else:
            assert outcomes in ([], [Outcome.UNDONE])

    def teardown(self) -> None:
        sys.modules.pop(self.name, None)


Lifecycle.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestLifecycle = Lifecycle.TestCase
