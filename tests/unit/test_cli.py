"""The command line: output for people and for programs, and exit statuses."""

from __future__ import annotations

import json

import pytest

from .conftest import ENGINE
from .fresh import Result, Stack

WITHOUT_RICH = "sys.modules['rich'] = sys.modules['rich.console'] = None\n"


def cli(stack: Stack, *arguments: str, rich: bool = False, **env: str) -> Result:
    hide = "" if rich else WITHOUT_RICH
    return stack.run(
        f"{hide}from specshim.cli import main\nsys.exit(main({list(arguments)!r}))",
        env={"COLUMNS": "200", **env},
        check=False,
    )


def test_doctor_prints_a_block_to_paste_and_succeeds_when_all_is_well(fake: Stack) -> None:
    result = cli(fake, "doctor", VLLM_WORKER_MULTIPROC_METHOD="spawn")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("specshim: ")
    assert "plugin entry point: visible" in lines
    assert "  vllm: 0.20.0" in lines
    assert "  VLLM_WORKER_MULTIPROC_METHOD=spawn" in lines
    assert "  engine: engine.vllm_ge_0_17 (verified)" in lines
    assert "records:" not in lines
    assert lines[-1] == "problems: none"


def test_doctor_fails_and_names_the_remedy_when_there_is_a_problem(fake: Stack) -> None:
    result = cli(fake, "doctor", VLLM_PLUGINS="other")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-3:] == [
        "problems:",
        "  - VLLM_PLUGINS=other keeps vLLM from loading specshim in its processes",
        "    -> set VLLM_PLUGINS=other,specshim or unset it",
    ]


def test_doctor_check_shows_what_became_of_each_target(fake: Stack) -> None:
    result = cli(fake, "doctor", "--check")
    assert result.returncode == 0, result.stderr
    assert "  engine: applied (the engine is old)" in result.stdout.splitlines()


def test_doctor_prints_json(fake: Stack) -> None:
    result = cli(fake, "doctor", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)["packages"]["vllm"] == "0.20.0"


def test_status_of_a_bare_process_says_that_nothing_was_imported(fake: Stack) -> None:
    result = cli(fake, "status")
    assert (result.returncode, result.stdout) == (
        0,
        "No target has been imported in this process; name modules to import them first.\n",
    )


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
def test_status_imports_the_named_modules_first(fake: Stack, rich: bool) -> None:
    if rich:
        pytest.importorskip("rich")
    result = cli(fake, "status", "vllm.engine", "vllm.functions", rich=rich)
    assert result.returncode == 0, result.stderr
    for text in ("engine.vllm_ge_0_17", "applied", "vllm 0.20.0", "the engine is old", "functions.always"):
        assert text in result.stdout


def test_status_prints_json(fake: Stack) -> None:
    result = cli(fake, "status", "vllm.engine", "--json")
    (record,) = json.loads(result.stdout)
    assert (record["target"], record["outcome"], record["verified"]) == ("engine", "applied", True)


def test_status_marks_the_unverified(fake: Stack) -> None:
    assert "outcome: applied (unverified)" in cli(fake.distribution("vllm", "0.21.0"), "status", "vllm.engine").stdout


def test_status_fails_for_a_failed_target(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = cli(fake, "status", "vllm.engine")
    assert result.returncode == 1
    assert "outcome: failed" in result.stdout


def test_status_fails_for_a_module_that_cannot_be_imported(fake: Stack) -> None:
    result = cli(fake, "status", "vllm.absent")
    assert result.returncode == 1
    assert "importing vllm.absent failed: ModuleNotFoundError" in result.stderr


@pytest.mark.parametrize("rich", [False, True], ids=["plain", "rich"])
def test_adapters_lists_every_adapter_with_its_reason_and_end_of_life(fake: Stack, rich: bool) -> None:
    if rich:
        pytest.importorskip("rich")
    result = cli(fake, "adapters", rich=rich)
    assert result.returncode == 0, result.stderr
    for text in ("engine.vllm_lt_0_17", "vllm >=0.11.0.dev0,<0.17.0.dev0", "the engine is old", "vLLM < 0.17 is gone"):
        assert text in result.stdout


def test_adapters_prints_json(fake: Stack) -> None:
    rows = json.loads(cli(fake, "adapters", "--json").stdout)
    assert [row["adapter"] for row in rows] == [
        "engine.vllm_lt_0_17",
        "engine.vllm_ge_0_17",
        "config.always",
        "functions.always",
    ]
    assert rows[2]["patches"] == ["config.load"]
    assert rows[2]["versions"] == {"vllm": ">=0.11.0.dev0"}


def test_the_real_table_can_be_listed_without_vllm(stack: Stack) -> None:
    rows = json.loads(cli(stack, "adapters", "--json").stdout)
    assert "generator.vllm_ge_0_17" in [row["adapter"] for row in rows]


@pytest.mark.parametrize("arguments", [(), ("nonsense",), ("doctor", "--nonsense")])
def test_misuse_has_an_exit_status_of_its_own(fake: Stack, arguments: tuple[str, ...]) -> None:
    result = cli(fake, *arguments)
    assert result.returncode == 2
    assert "usage: specshim" in result.stderr


def test_the_module_runs_as_the_command(fake: Stack) -> None:
    result = fake.run(
        "import runpy\nsys.argv = ['specshim', 'adapters', '--json']\nrunpy.run_module('specshim', run_name='__main__')"
    )
    assert json.loads(result.stdout)[0]["adapter"] == "engine.vllm_lt_0_17"
