"""A failing adapter: rolled back whole, recorded, warned about once; in strict mode raised, again and again."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from specshim.errors import TargetChangedError
from specshim.patching.changes import Assignment, Provision, apply_all

from .conftest import ENGINE, one_patch_adapter
from .fresh import Stack

USE_ALL = """
import specshim, observe
import vllm.engine
from vllm.config import Config
report([observe.state(), Config().load(), observe.record("engine"), observe.outcomes()])
"""

BROKEN_ADAPTERS = {
    "adapter does not import": "raise RuntimeError('broken adapter')",
    "adapter is absent": "",
    "value is absent": 'ADAPTER = Adapter("a", "w", "u", "r", (Patch("p", "set", "Engine.run", "patches:absent"),))',
    "value does not import": 'ADAPTER = Adapter("a", "w", "u", "r", (Patch("p", "set", "Engine.run", "broken:x"),))',
    "contract is bad": 'ADAPTER = Adapter("a", "w", "u", "r", (Patch("p", "set", "Engine.x", "patches:lost"),), (5,))',
}


@pytest.mark.parametrize("source", BROKEN_ADAPTERS.values(), ids=BROKEN_ADAPTERS)
def test_a_broken_adapter_breaks_neither_the_import_nor_the_other_targets(fake: Stack, source: str) -> None:
    fake.module("broken", "raise OSError('libcuda.so.1: cannot open shared object file')")
    fake.adapters(table_of(fake), engine_ge_0_17=source)
    result = fake.run(USE_ALL)
    state, loaded, record, outcomes = result.value
    assert (state, loaded) == ("original", "patched load")
    assert outcomes == {"engine": "failed", "config": "applied"}
    assert record["patches"] == []
    assert len(record["reason"]) > 10
    assert len(result.warnings) == 1
    assert "engine was not patched and vllm.engine is as installed" in result.warnings[0]
    assert record["reason"] in result.warnings[0]


def table_of(fake: Stack) -> str:
    return (fake.root / "specshim/adapters/__init__.py").read_text()


def test_the_reason_of_a_failure_names_the_exception(fake: Stack) -> None:
    fake.adapters(table_of(fake), engine_ge_0_17="raise RuntimeError('broken adapter')")
    assert fake.run(USE_ALL).value[2]["reason"] == "RuntimeError: broken adapter"


def test_a_failed_target_is_not_tried_again_by_every_install(fake: Stack) -> None:
    fake.adapters(table_of(fake), engine_ge_0_17="raise RuntimeError('broken adapter')")
    result = fake.run("import specshim, vllm.engine\nfor _ in range(3): specshim.install()", python=("-W", "always"))
    assert len(result.warnings) == 1


def test_a_warning_made_an_error_leaves_a_state_that_a_second_import_puts_right(fake: Stack) -> None:
    fake.distribution("vllm", "0.99.0")
    result = fake.run(
        """
        import specshim, observe
        try:
            import vllm.engine
        except specshim.SpecshimWarning as warning:
            first = "verified yet" in str(warning)
        import vllm.engine
        report([first, observe.state(), observe.outcomes()])
        """,
        python=("-W", "error"),
    )
    assert result.value == [True, "patched", {"engine": "applied"}]


STRICT = {"SPECSHIM_STRICT": "1"}


def test_strict_mode_raises_and_keeps_raising(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = fake.run(
        """
        import specshim, observe, importlib, sys
        errors = []
        for _ in range(3):
            try:
                import vllm.engine
            except specshim.TargetChangedError as error:
                errors.append("'count'" in str(error))
        try:
            from vllm.engine import Engine
        except specshim.TargetChangedError:
            errors.append("by name")
        import vllm.config
        report([errors, "vllm.engine" in sys.modules, observe.outcomes()])
        """,
        env=STRICT,
    )
    assert result.value == [[True, True, True, "by name"], False, {"engine": "failed", "config": "applied"}]
    assert result.warnings == []


def test_strict_mode_wraps_an_unexpected_error_and_keeps_its_cause(fake: Stack) -> None:
    fake.adapters(table_of(fake), engine_ge_0_17="raise KeyError('broken adapter')")
    result = fake.run(
        """
        import specshim
        try:
            import vllm.engine
        except specshim.PatchFailedError as error:
            report([str(error), repr(error.__cause__)])
        """,
        env=STRICT,
    )
    message, cause = result.value
    assert message == "engine was not patched and vllm.engine is as installed: KeyError: 'broken adapter'"
    assert cause == "KeyError('broken adapter')"


def test_a_strict_import_succeeds_patched_once_the_cause_is_mended(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = fake.run(
        f"""
        import specshim, importlib, pathlib
        try:
            import vllm.engine
        except specshim.TargetChangedError:
            pathlib.Path("vllm/engine.py").write_text({ENGINE!r})
            importlib.invalidate_caches()
        import observe
        report([observe.state(), observe.outcomes()])
        """,
        env=STRICT,
    )
    assert result.value == ["patched", {"engine": "applied"}]


def test_strict_mode_raises_from_a_late_import_of_specshim_every_time_and_arms_the_rest_once(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = fake.run(
        """
        import vllm.engine
        raised = 0
        for _ in range(2):
            try:
                import specshim
            except Exception as error:
                raised += type(error).__name__ == "TargetChangedError"
        import vllm.config, patches
        once = vars(vllm.config.Config)["load"] is patches.Config.load
        import os; os.environ["SPECSHIM_STRICT"] = "0"
        import specshim
        specshim.uninstall()
        report([raised, once, vllm.config.Config().load()])
        """,
        env=STRICT,
    )
    assert result.value == [2, True, "original load"]


def test_a_missing_attribute_is_reported_as_a_changed_target(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("def inherited", "def renamed"))
    result = fake.run(
        "import specshim, vllm.engine, observe\nreport([observe.record('engine'), vllm.engine.Engine().run()])"
    )
    record, run = result.value
    assert run == "original run"
    assert record["reason"] == (
        "vllm 0.20.0 differs from what the adapters for engine rely on: engine.vllm_ge_0_17: "
        "vllm.engine:Engine.inherited is absent, so patch engine.inherited has no place. "
        "Install a version that compat_matrix.yaml lists, or a newer specshim."
    )


def test_a_missing_class_is_reported_as_a_changed_target(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("class Engine", "class Motor"))
    result = fake.run("import specshim, vllm.engine, observe\nreport(observe.record('engine')['reason'])")
    assert "vllm.engine:Engine.run is absent" in result.value
    assert "vllm.engine:Engine.added is absent" in result.value


def test_the_targets_own_exception_passes_unchanged(fake: Stack) -> None:
    fake.module("vllm.engine", "class Oops(Exception): pass\nraise Oops('from the body')")
    result = fake.run(
        """
        import specshim, traceback, observe, importlib, pathlib
        try:
            import vllm.engine
        except Exception as error:
            frames = [f.filename for f in traceback.extract_tb(error.__traceback__)]
            ours = [f for f in frames if "specshim" in f]
            report([type(error).__name__, str(error), error.__cause__, error.__context__, ours, observe.outcomes()])
        """
    )
    assert result.value == ["Oops", "from the body", None, None, [], {}]


# -- fault injection ------------------------------------------------------------------------------------------------


class Faulty(type):
    """A class whose attributes can be set until the fuse blows, before or after the assignment took effect."""

    fuse = -1
    after = False

    def __setattr__(cls, name: str, value: object) -> None:
        blown = Faulty.fuse == 0
        Faulty.fuse -= 1
        if blown and not Faulty.after:
            raise OSError(f"cannot set {name}")
        super().__setattr__(name, value)
        if blown:
            raise OSError(f"cannot set {name}")


NAMES = ("first", "second", "third", "added", "inherited")


@pytest.mark.parametrize("after", [False, True], ids=["before it takes effect", "after it took effect"])
@pytest.mark.parametrize("failing", range(len(NAMES)))
def test_a_fault_at_any_single_assignment_leaves_everything_as_it_was(failing: int, after: bool) -> None:
    base = type("Base", (), {"inherited": lambda self: None})
    first, second, third = (lambda self: None), staticmethod(lambda: None), property(lambda self: None)
    holder = Faulty("Holder", (base,), {"first": first, "second": second, "third": third})
    before = dict(vars(holder))
    provision = Provision("specshim_test_provided", ModuleType("specshim_test_provided"))

    Faulty.fuse, Faulty.after = failing, after
    with pytest.raises(OSError, match=f"cannot set {NAMES[failing]}"):
        apply_all([provision, *(Assignment(holder, name, object()) for name in NAMES)])

    assert dict(vars(holder)) == before
    assert all(vars(holder)[name] is value for name, value in before.items())
    assert "specshim_test_provided" not in sys.modules


def test_without_a_fault_all_assignments_are_made() -> None:
    Faulty.fuse = -1
    holder = Faulty("Holder", (), {"first": 1})
    apply_all([Assignment(holder, name, name) for name in NAMES])
    assert [vars(holder)[name] for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("failing", range(6))
def test_a_fault_at_any_patch_of_a_target_leaves_the_target_as_it_was(fake: Stack, failing: int) -> None:
    fake.module(
        "vllm.engine",
        ENGINE.replace(
            "class Engine(Base):",
            """
fuse = None
class Faulty(type):
    def __setattr__(cls, name, value):
        global fuse
        if fuse == 0:
            fuse = None
            raise OSError("cannot set " + name)
        if fuse is not None:
            fuse -= 1
        super().__setattr__(name, value)

class Engine(Base, metaclass=Faulty):""",
        )
        + f"\nfuse = {failing}\n",
    )
    result = fake.run("import specshim, vllm.engine, observe\nreport([observe.state(), observe.outcomes()])")
    if failing < 5:
        assert result.value == ["original", {"engine": "failed"}]
        assert len(result.warnings) == 1
    else:  # the other two patches of the target set no attribute of the class
        assert result.value == ["patched", {"engine": "applied"}]


def test_errors_of_a_contract_are_specshim_errors() -> None:
    assert issubclass(TargetChangedError, RuntimeError)


def test_an_adapter_with_an_unknown_package_in_its_ranges_is_skipped(fake: Stack) -> None:
    table = table_of(fake).replace('Entry({"vllm": ">=0.11.0.dev0"}', 'Entry({"absent_package": ">=1"}')
    fake.adapters(table, config=one_patch_adapter("c", '"p", "set", "Config.load", "patches:Config.load"'))
    result = fake.run("import specshim, vllm.config, observe\nreport(observe.record('config')['reason'])")
    assert result.value == "absent_package is not installed"
