"""Order, idempotence, undo, and silence where there is nothing to do."""

from __future__ import annotations

from itertools import permutations

import pytest

from .fresh import Stack

STEPS = {
    "specshim": "import specshim",
    "target": "import vllm.engine",
    "by name": "from vllm.engine import Engine; engine = Engine()",
    "install": "import specshim; specshim.install()",
    "uninstall": "import specshim; specshim.uninstall()",
}
ORDERS = [
    order
    for length in (2, 3, 4)
    for order in permutations(("specshim", "target", "install", "uninstall"), length)
    if "target" in order
]


def expected_state(order: tuple[str, ...]) -> str:
    """Say what an order of steps should lead to: what counts is whether specshim was armed or disarmed last."""
    active = known = False
    for step in order:
        if step in ("specshim", "install", "uninstall"):
            active = {"specshim": active or not known, "install": True, "uninstall": False}[step]
            known = True
    return "patched" if active else "original"


@pytest.mark.parametrize("order", ORDERS, ids=" > ".join)
def test_any_order_of_import_install_and_uninstall_gives_the_same_behaviour(
    fake: Stack, order: tuple[str, ...]
) -> None:
    steps = "\n".join(STEPS[step] for step in order)
    result = fake.run(f"{steps}\nimport observe\nreport(observe.state())")
    assert result.value == expected_state(order)
    assert result.stderr == ""


def test_there_are_as_many_orders_as_there_are_ways_to_combine_the_steps() -> None:
    assert len(ORDERS) == 6 + 18 + 24


def test_a_class_imported_by_name_before_specshim_is_patched_with_its_instances(fake: Stack) -> None:
    result = fake.run(
        """
        from vllm.engine import Engine
        engine = Engine()
        import specshim
        report([engine.run(), Engine.helper(), specshim.status()[0].notes])
        """
    )
    assert result.value == ["patched run", "patched helper", []]
    assert result.warnings == []


def test_a_function_imported_by_name_before_specshim_is_reported(fake: Stack) -> None:
    result = fake.run(
        """
        from vllm.functions import compute
        import specshim, vllm.functions
        record = specshim.status()[-1]
        report([compute(), vllm.functions.compute(), record.outcome.value, record.notes])
        """
    )
    assert result.value == [
        "original compute",
        "patched compute",
        "applied",
        [
            "vllm.functions was imported before specshim: whoever did `from vllm.functions import compute` by then "
            "keeps the original"
        ],
    ]
    assert len(result.warnings) == 1
    assert "Import specshim first." in result.warnings[0]


def test_a_function_imported_after_specshim_needs_no_note(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim
        from vllm.functions import compute
        report([compute(), specshim.status()[-1].notes])
        """
    )
    assert result.value == ["patched compute", []]
    assert result.stderr == ""


def test_installing_again_by_every_way_changes_nothing(fake: Stack) -> None:
    result = fake.run(
        """
        import importlib, sys
        import specshim, vllm.engine, vllm.gone, patches
        def objects():
            from vllm.engine import Engine
            methods = [vars(Engine)[name] for name in ("run", "inherited", "helper", "make", "added")]
            return [*methods, vllm.engine.lost, vllm.gone]
        first, records = objects(), specshim.status()
        import specshim._plugin
        for _ in range(3):
            specshim.install()
            specshim._plugin.register()
            importlib.reload(specshim)
        import observe
        same = all(a is b for a, b in zip(first, objects(), strict=True)) and specshim.status() == records
        depth_one = vars(vllm.engine.Engine)["run"] is patches.Engine.run
        specshim.uninstall()
        report([same, depth_one, observe.state()])
        """
    )
    assert result.value == [True, True, "original"]


def test_the_plugin_does_not_bring_back_what_was_uninstalled(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim, vllm.engine, observe
        specshim.uninstall()
        from specshim._plugin import register
        register()
        report(observe.state())
        """
    )
    assert result.value == "original"


def test_uninstall_gives_back_the_very_same_objects_and_leaves_nothing(fake: Stack) -> None:
    result = fake.run(
        """
        import sys
        import vllm, vllm.engine
        before = [dict(vars(vllm.engine.Engine)), dict(vars(vllm.engine)), {k for k in vars(vllm)}]
        import specshim, vllm.gone
        patched = vars(vllm.engine.Engine)["run"] is not before[0]["run"]
        specshim.uninstall()
        after = [vars(vllm.engine.Engine), vars(vllm.engine)]
        same = [old.keys() == new.keys() and all(old[k] is new[k] for k in old) for old, new in zip(before, after)]

        report([patched, same, "vllm.gone" in sys.modules, sorted(set(vars(vllm)) - before[2])])
        """
    )
    assert result.value == [True, [True, True], False, []]


def test_uninstall_is_recorded(fake: Stack) -> None:
    result = fake.run("import specshim, vllm.engine, observe; specshim.uninstall(); report(observe.outcomes())")
    assert result.value == {"engine": "undone"}


def test_installing_after_uninstall_patches_what_was_imported_meanwhile(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim, vllm.engine, observe
        specshim.uninstall()
        from vllm.config import Config
        between = [observe.state(), Config().load()]
        specshim.install()
        report([between, observe.state(), Config().load(), observe.outcomes()])
        """
    )
    assert result.value == [
        ["original", "original load"],
        "patched",
        "patched load",
        {"engine": "applied", "config": "applied"},
    ]


DISPLACE = """
import specshim, vllm.engine, vllm.config, observe
from vllm.engine import Engine
ours = Engine.run
def theirs(self):
    return "theirs over " + ours(self)
Engine.run = theirs
"""


def test_a_displaced_patch_is_refused_and_reported_and_not_clobbered(fake: Stack) -> None:
    result = fake.run(
        DISPLACE
        + """
before = observe.outcomes()
specshim.uninstall()
from vllm.config import Config
reason = observe.record("engine")["reason"]
report([before, Engine().run(), Engine().inherited(), Config().load(), observe.outcomes(), reason])
"""
    )
    assert result.value == [
        {"engine": "displaced", "config": "applied"},
        "theirs over patched run",
        "patched inherited",
        "original load",
        {"engine": "displaced", "config": "undone"},
        "after specshim, somebody else replaced Engine.run",
    ]
    assert len(result.warnings) == 1
    assert "engine was not undone" in result.warnings[0]
    assert "call uninstall() again" in result.warnings[0]


def test_a_displaced_patch_can_be_undone_once_it_is_back_in_place(fake: Stack) -> None:
    result = fake.run(
        DISPLACE
        + """
specshim.uninstall()
Engine.run = ours
restored = observe.outcomes()
specshim.uninstall()
report([restored, observe.state(), observe.outcomes()])
"""
    )
    assert result.value == [
        {"engine": "applied", "config": "undone"},
        "original",
        {"engine": "undone", "config": "undone"},
    ]


def test_installing_over_a_displaced_patch_does_not_patch_twice(fake: Stack) -> None:
    result = fake.run(DISPLACE + "specshim.install()\nreport([Engine().run(), observe.outcomes()['engine']])")
    assert result.value == ["theirs over patched run", "displaced"]


def test_a_provided_module_that_was_replaced_counts_as_displaced(fake: Stack) -> None:
    result = fake.run(
        """
        import sys, types
        import specshim, vllm.engine, observe
        theirs = sys.modules["vllm.gone"] = types.ModuleType("vllm.gone")
        specshim.uninstall()
        report([sys.modules["vllm.gone"] is theirs, observe.record("engine")["reason"]])
        """
    )
    assert result.value == [True, "after specshim, somebody else replaced vllm.gone"]


def test_a_provided_module_can_be_used_in_every_form_of_import(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim, vllm.engine
        import vllm.gone
        import vllm.gone as gone
        from vllm import gone as again
        from vllm.gone import lost
        report([vllm.gone.lost(), gone.lost(), again.lost(), lost(), vllm.gone.__name__, vllm.gone.__spec__.origin])
        """
    )
    assert result.value == ["lost and found"] * 4 + ["vllm.gone", "specshim (patches)"]


def test_a_module_is_provided_below_a_plain_module_that_is_no_package(stack: Stack) -> None:
    stack.module("vllm.utils", "def get_hash_fn_by_name(name):\n    return name\n").distribution("vllm", "0.11.0")
    stack.package("speculators").distribution("speculators", "0.4.0.1")
    result = stack.run(
        """
        import specshim
        from vllm.utils.hashing import get_hash_fn_by_name
        report([get_hash_fn_by_name("sha256"), [r.outcome.value for r in specshim.status()]])
        """
    )
    assert result.value == ["sha256", ["applied"]]


def test_additive_patches_of_a_module_that_has_everything_are_not_needed(stack: Stack) -> None:
    names = ("_get_kv_cache_groups_uniform_spec", "get_kv_cache_config_from_groups", "unify_hybrid_kv_cache_specs")
    stack.module("vllm.v1.core.kv_cache_utils", "\n".join(f"{name} = 'original'" for name in names))
    stack.distribution("vllm", "0.1.dev1+gabc").package("speculators").distribution("speculators", "0.4.0.1")
    result = stack.run(
        """
        import specshim
        import vllm.v1.core.kv_cache_utils as utils
        (record,) = specshim.status()
        report([utils.unify_hybrid_kv_cache_specs, record.outcome.value, record.reason])
        """
    )
    assert result.value == ["original", "not needed", "the installed module has everything"]
    assert result.stderr == ""


def test_a_target_that_is_imported_anew_is_patched_anew_and_both_are_undone(fake: Stack) -> None:
    result = fake.run(
        """
        import sys
        import specshim, vllm.engine, observe
        first = vllm.engine.Engine
        del sys.modules["vllm.engine"]
        import vllm.engine
        states = [vllm.engine.Engine is first, observe.state(), first().run()]
        specshim.uninstall()
        report([states, observe.state(), first().run()])
        """
    )
    assert result.value == [[False, "patched", "patched run"], "original", "original run"]


def test_a_reloaded_target_is_patched_again_by_uninstalling_and_installing(fake: Stack) -> None:
    result = fake.run(
        """
        import importlib
        import specshim, vllm.engine, observe
        importlib.reload(vllm.engine)
        specshim.uninstall()
        between = vllm.engine.Engine().run()
        specshim.install()
        report([between, vllm.engine.Engine().run(), observe.outcomes()])
        """
    )
    assert result.value == ["original run", "patched run", {"engine": "applied"}]


REPLACES_ITSELF = """
import sys, types
class Lazy(types.ModuleType):
    def compute(self):
        return "original compute"
lazy = Lazy(__name__)
lazy.__spec__ = __spec__
sys.modules[__name__] = lazy
"""
SPECS_OF_ANOTHER_KIND = """
import importlib.machinery, sys
class Spec(importlib.machinery.ModuleSpec): pass
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.__class__ = Spec
        return spec
sys.meta_path.insert(0, Finder)
"""


@pytest.mark.parametrize("importer", ["", SPECS_OF_ANOTHER_KIND], ids=["ordinary spec", "spec of another kind"])
def test_a_module_that_replaces_itself_in_sys_modules_is_patched_where_users_see_it(fake: Stack, importer: str) -> None:
    fake.module("vllm.functions", REPLACES_ITSELF)
    result = fake.run(f"{importer}\nimport specshim\nimport vllm.functions\nreport(vllm.functions.compute())")
    assert result.value == "patched compute"


def test_a_target_that_cannot_be_found_fails_as_it_would_without_specshim(fake: Stack) -> None:
    (fake.root / "vllm/engine.py").unlink()
    result = fake.run(
        """
        import specshim
        try:
            import vllm.engine
        except ModuleNotFoundError as error:
            report([str(error), error.name, specshim.status()])
        """
    )
    assert result.value == ["No module named 'vllm.engine'", "vllm.engine", []]


def test_the_hooks_of_others_on_the_same_module_are_called_too(fake: Stack) -> None:
    result = fake.run(
        """
        import wrapt
        seen = []
        wrapt.register_post_import_hook(lambda module: seen.append(["before", module.Engine().run()]), "vllm.engine")
        import specshim
        wrapt.register_post_import_hook(lambda module: seen.append(["after", module.Engine().run()]), "vllm.engine")
        import vllm.engine
        report(seen)
        """
    )
    assert result.value == [["before", "original run"], ["after", "patched run"]]


def test_the_loader_and_the_spec_of_a_target_are_what_they_would_be_without_specshim(fake: Stack) -> None:
    look = """
import inspect, vllm.engine as m
spec = m.__spec__
report([type(spec).__name__, type(m.__loader__).__name__, spec.loader is m.__loader__, inspect.getsource(m)])
"""
    assert fake.run(f"import specshim{look}").value == fake.run(look).value


def test_without_the_targets_nothing_is_imported_and_nothing_is_said(stack: Stack) -> None:
    result = stack.run(
        """
        import specshim, sys
        specshim.install()
        specshim.uninstall()
        report([specshim.status(), [m for m in ("torch", "vllm", "speculators", "transformers") if m in sys.modules]])
        """,
        python=("-W", "error"),
    )
    assert result.value == [[], []]
    assert result.stderr == ""


def test_a_target_whose_packages_are_not_all_installed_is_skipped_in_silence(stack: Stack) -> None:
    stack.package("transformers").distribution("transformers", "5.30.0")
    result = stack.run(
        """
        import specshim, transformers
        report([r.as_dict()["reason"] for r in specshim.status()])
        """,
        python=("-W", "error"),
    )
    assert result.value == ["speculators is not installed"]
    assert result.stderr == ""
