"""specshim imported while a target's body is still running: patched when the import ends, and recorded until then."""

from __future__ import annotations

import pytest

from .conftest import ENGINE
from .fresh import Stack

IMPORT_SPECSHIM = "import specshim, observe\nfirst = [observe.outcomes(), observe.record('engine')['reason']]\n"
REPORT = """
import observe
report([vllm.engine.first, observe.state(), observe.outcomes()])
"""


def test_a_half_imported_target_is_deferred_and_patched_when_it_is_complete(fake: Stack) -> None:
    fake.module("vllm.engine", IMPORT_SPECSHIM + ENGINE)
    result = fake.run("import vllm.engine" + REPORT)
    deferred = "its import had begun before specshim's; it is patched when that import ends, or by specshim.install()"
    assert result.value == [[{"engine": "deferred"}, deferred], "patched", {"engine": "applied"}]
    assert result.stderr == ""


def test_a_deferred_target_is_patched_before_anybody_can_use_it(fake: Stack) -> None:
    fake.module("vllm.engine", "import specshim\n" + ENGINE)
    result = fake.run("from vllm.engine import Engine\nreport(Engine().run())")
    assert result.value == "patched run"


def test_a_half_imported_package_is_deferred_while_its_submodules_are_patched(fake: Stack) -> None:
    table = (fake.root / "specshim/adapters/__init__.py").read_text().replace('"vllm.functions"', '"vllm"')
    fake.adapters(table)
    fake.module("vllm.engine", "import specshim\n" + ENGINE)
    fake.module(
        "vllm",
        "from vllm.engine import Engine\nimport specshim\nearly = [\n"
        "    r.outcome.value for r in specshim.status()]\ndef compute():\n    return 'original compute'\n",
    )
    result = fake.run(
        "import vllm, observe\nreport([vllm.early, vllm.compute(), vllm.Engine().run(), observe.outcomes()])"
    )
    assert result.value == [
        ["applied", "deferred"],
        "patched compute",
        "patched run",
        {"engine": "applied", "functions": "applied"},
    ]


def test_a_target_half_imported_by_another_thread_is_patched_when_that_thread_is_done(fake: Stack) -> None:
    fake.module(
        "vllm.engine",
        "import gate\ngate.inside.set()\ngate.go_on.wait(30)\n" + ENGINE,
    ).module("gate", "import threading\ninside = threading.Event()\ngo_on = threading.Event()\n")
    result = fake.run(
        """
        import threading, gate
        seen = []
        def use():
            from vllm.engine import Engine
            seen.append(Engine().run())
        thread = threading.Thread(target=use)
        thread.start()
        gate.inside.wait(30)
        import specshim, observe
        before = observe.outcomes()
        gate.go_on.set()
        thread.join(30)
        report([before, seen, observe.state(), observe.outcomes()])
        """
    )
    assert result.value == [{"engine": "deferred"}, ["patched run"], "patched", {"engine": "applied"}]


@pytest.mark.parametrize("how", ["specshim.install()", "import importlib; importlib.reload(specshim)"])
def test_installing_again_inside_the_half_imported_module_changes_nothing(fake: Stack, how: str) -> None:
    fake.module("vllm.engine", IMPORT_SPECSHIM + ENGINE + f"\n{how}\n")
    result = fake.run("import vllm.engine" + REPORT)
    assert result.value[1:] == ["patched", {"engine": "applied"}]


def test_uninstalling_before_the_import_ends_leaves_the_target_alone(fake: Stack) -> None:
    fake.module("vllm.engine", IMPORT_SPECSHIM + ENGINE + "\nspecshim.uninstall()\nsecond = observe.outcomes()\n")
    result = fake.run("import vllm.engine, observe\nreport([vllm.engine.second, observe.state(), observe.outcomes()])")
    assert result.value == [{}, "original", {}]


def test_a_half_import_that_fails_is_followed_by_a_patched_second_try(fake: Stack) -> None:
    fake.module(
        "vllm.engine",
        "import specshim, builtins\n" + ENGINE + "\nif not hasattr(builtins, 'again'):\n"
        "    builtins.again = True\n    raise ImportError('first try')\n",
    )
    result = fake.run(
        """
        try:
            import vllm.engine
        except ImportError as error:
            first = str(error)
        import specshim, observe
        between = observe.outcomes()
        import vllm.engine
        report([first, between, observe.state(), observe.outcomes()])
        """
    )
    assert result.value == ["first try", {}, "patched", {"engine": "applied"}]


def test_in_strict_mode_a_deferred_target_that_changed_fails_its_import_every_time(fake: Stack) -> None:
    fake.module("vllm.engine", "import specshim\n" + ENGINE.replace("count=1", "number=1"))
    result = fake.run(
        """
        import sys
        errors = []
        for _ in range(3):
            try:
                import vllm.engine
            except Exception as error:
                errors.append(type(error).__name__)
        report([errors, "vllm.engine" in sys.modules])
        """,
        env={"SPECSHIM_STRICT": "1"},
    )
    assert result.value == [["TargetChangedError"] * 3, False]


def test_the_spec_of_a_deferred_module_is_an_ordinary_one_afterwards(fake: Stack) -> None:
    fake.module("vllm.engine", "import specshim\n" + ENGINE)
    result = fake.run("import vllm.engine\nreport([type(vllm.engine.__spec__).__name__, vllm.engine.__spec__.name])")
    assert result.value == ["ModuleSpec", "vllm.engine"]


def test_a_module_with_a_spec_of_another_kind_is_patched_by_the_next_install(fake: Stack) -> None:
    fake.module(
        "vllm.engine", "class Spec(type(__spec__)): pass\n__spec__.__class__ = Spec\n" + IMPORT_SPECSHIM + ENGINE
    )
    result = fake.run(
        """
        import vllm.engine, specshim, observe
        between = observe.state()
        specshim.install()
        report([vllm.engine.first[0], between, observe.state(), observe.outcomes()])
        """
    )
    assert result.value == [{"engine": "deferred"}, "original", "patched", {"engine": "applied"}]


def test_a_module_without_a_spec_counts_as_complete(fake: Stack) -> None:
    result = fake.run(
        """
        import sys, types, patches
        module = sys.modules["vllm.config"] = types.ModuleType("vllm.config")
        module.__spec__ = None
        module.Config = type("Config", (), {"load": lambda self: "original load"})
        import specshim
        report(module.Config().load())
        """
    )
    assert result.value == "patched load"
