"""Forked, spawned and fork-server children are patched, by each of the two ways in which vLLM reaches specshim."""

from __future__ import annotations

import pytest

from .fresh import Stack

# What vLLM does in a worker: load plugins by entry point, or resolve a dotted path below specshim.
REACH = {
    "extension path": """
    import importlib
    importlib.import_module("specshim.errors")
    """,
    "plugin entry point": """
    import importlib.metadata
    for plugin in importlib.metadata.entry_points(group="vllm.general_plugins"):
        plugin.load()()
    """,
}

PARENT = """
import multiprocessing, sys
import worker
if __name__ == "__main__":
    if {import_first}:
        import specshim, vllm.engine
    context = multiprocessing.get_context({method!r})
    with context.Pool(1) as pool:
        report(pool.apply(worker.work))
"""


@pytest.fixture
def workers(fake: Stack) -> Stack:
    """Return the fake stack with specshim's entry point in its metadata."""
    fake.distribution("specshim", "0")
    (fake.root / "specshim-0.dist-info/entry_points.txt").write_text(
        "[vllm.general_plugins]\nspecshim = specshim._plugin:register\n"
    )
    return fake


def worker(reach: str) -> str:
    return f"""
def work():
    import sys
    inherited = "specshim" in sys.modules
{reach}
    import observe
    from vllm.config import Config
    import os
    off = any(type(f).__module__.startswith(("specshim", "wrapt")) for f in sys.meta_path)
    return [inherited, observe.state(), Config().load(), off]
"""


@pytest.mark.parametrize("reach", REACH)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("import_first", [True, False], ids=["patched parent", "parent without specshim"])
def test_a_child_is_patched(workers: Stack, reach: str, method: str, import_first: bool) -> None:
    workers.module("worker", worker(REACH[reach]))
    result = workers.run(PARENT.format(method=method, import_first=import_first))
    inherited = import_first and method == "fork"
    assert result.value == [inherited, "patched", "patched load", True]
    assert result.warnings == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_off_switch_holds_in_children(workers: Stack, method: str) -> None:
    workers.module("worker", worker(REACH["plugin entry point"]))
    result = workers.run(PARENT.format(method=method, import_first=True), env={"SPECSHIM_DISABLE": "1"})
    assert result.value == [method == "fork", "original", "original load", False]


def test_without_either_way_a_spawned_child_is_not_patched(workers: Stack) -> None:
    workers.module("worker", worker("    pass"))
    result = workers.run(PARENT.format(method="spawn", import_first=True))
    assert result.value == [False, "original", "original load", False]


def test_the_entry_point_is_declared_and_loads(stack: Stack) -> None:
    result = stack.run(
        """
        from importlib.metadata import entry_points
        (plugin,) = entry_points(group="vllm.general_plugins", name="specshim")
        register = plugin.load()
        report([plugin.value, [register() for _ in range(3)]])
        """
    )
    assert result.value == ["specshim._plugin:register", [None, None, None]]


def test_a_spawned_child_gets_the_real_adapters(stack: Stack) -> None:
    stack.module("vllm.v1.core.kv_cache_utils", "").distribution("vllm", "0.33.0")
    stack.package("speculators").distribution("speculators", "0.4.0.1")
    stack.module(
        "worker",
        """
        def work():
            import specshim._plugin
            import vllm.v1.core.kv_cache_utils as utils
            return sorted(n for n in vars(utils) if not n.startswith("__"))
        """,
    )
    result = stack.run(PARENT.format(method="spawn", import_first=False))
    assert result.value == [
        "_get_kv_cache_groups_uniform_spec",
        "get_kv_cache_config_from_groups",
        "unify_hybrid_kv_cache_specs",
    ]
