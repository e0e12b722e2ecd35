"""The environment variables that switch specshim, or parts of it, off."""

from __future__ import annotations

import pytest

from .fresh import Stack

USE = "import specshim, observe, vllm.engine\nfrom vllm.config import Config\n"


def test_disabled_specshim_leaves_the_import_system_untouched(fake: Stack) -> None:
    result = fake.run(
        """
        import sys
        import wrapt
        before = list(sys.meta_path), list(sys.path_hooks)
        import specshim
        specshim.install()
        import specshim._plugin, observe
        specshim._plugin.register()
        same = (sys.meta_path, sys.path_hooks) == before
        state = observe.state()
        specshim.uninstall()
        report([same, state, specshim.status()])
        """,
        env={"SPECSHIM_DISABLE": "1"},
    )
    assert result.value == [True, "original", []]
    assert result.stderr == ""


def test_enabled_specshim_adds_finders_only_when_it_is_armed(fake: Stack) -> None:
    result = fake.run(
        """
        import sys
        import wrapt
        before = len(sys.meta_path)
        import specshim
        report([before, [type(f).__name__ for f in sys.meta_path[:-before]]])
        """
    )
    assert result.value[1] == ["_Finder", "ImportHookFinder"]


def test_a_disabled_target_is_left_alone_and_recorded(fake: Stack) -> None:
    result = fake.run(
        USE + "report([observe.state(), Config().load(), observe.record('engine')])",
        env={"SPECSHIM_DISABLE": " engine , unknown"},
    )
    state, load, record = result.value
    assert (state, load) == ("original", "patched load")
    assert (record["outcome"], record["reason"]) == ("skipped", "switched off by SPECSHIM_DISABLE")


def test_disabled_patches_are_left_out_and_the_others_applied(fake: Stack) -> None:
    result = fake.run(
        USE + "report([observe.behaviour(), observe.record('engine')['patches']])",
        env={"SPECSHIM_DISABLE": "engine.run,engine.lost,engine.gone"},
    )
    assert result.value == [
        ["original run", "patched inherited", "patched helper", "patched make", True, False, True, False],
        ["engine.inherited", "engine.helper", "engine.make", "engine.added"],
    ]


def test_a_target_whose_patches_are_all_disabled_is_skipped(fake: Stack) -> None:
    result = fake.run(
        USE + "report([Config().load(), observe.record('config')])", env={"SPECSHIM_DISABLE": "config.load"}
    )
    load, record = result.value
    assert load == "original load"
    assert record["outcome"] == "skipped"
    assert record["reason"] == "all its patches are switched off by SPECSHIM_DISABLE"


@pytest.mark.parametrize("value", ["", "0"])
def test_an_empty_or_zero_switch_switches_nothing_off(fake: Stack, value: str) -> None:
    result = fake.run(USE + "report(observe.state())", env={"SPECSHIM_DISABLE": value, "SPECSHIM_STRICT": value})
    assert result.value == "patched"
