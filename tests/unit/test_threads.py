"""No deadlock, no double patch and no unpatched moment, whichever threads import what. Each test has a time limit."""

from __future__ import annotations

import pytest

from .conftest import CONFIG, ENGINE, ENGINE_ADAPTER
from .fresh import Stack

GATE = """
import threading
barrier = threading.Barrier(2)
inside = threading.Event()
go_on = threading.Event()
"""
IN_THREADS = """
import threading
def in_threads(*functions):
    threads = [threading.Thread(target=f) for f in functions]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
IMPORT_BOTH = (
    IN_THREADS
    + """
import specshim, observe
def engine():
    import vllm.engine
def config():
    import vllm.config
in_threads(engine, config)
from vllm.config import Config
report([observe.state(), Config().load(), observe.outcomes()])
"""
)
BOTH_PATCHED = ["patched", "patched load", {"engine": "applied", "config": "applied"}]


def test_concurrent_first_imports_of_two_targets_are_both_patched(fake: Stack) -> None:
    wait = "import gate\ngate.barrier.wait(20)\n"
    fake.module("vllm.engine", wait + ENGINE).module("vllm.config", wait + CONFIG).module("gate", GATE)
    assert fake.run(IMPORT_BOTH, timeout=30).value == BOTH_PATCHED


@pytest.mark.parametrize("import_each_other", [False, True])
def test_two_targets_whose_contracts_need_each_other_do_not_wait_for_each_other(
    fake: Stack, import_each_other: bool
) -> None:
    # Both bodies have run and both import locks are held when the two contracts are checked.
    wait = "import gate\ngate.barrier.wait(20)\n"
    fake.module("gate", GATE)
    engine_end, config_end = ("import vllm.config\n", "import vllm.engine\n") if import_each_other else ("", "")
    fake.module("vllm.engine", ENGINE + wait + engine_end).module("vllm.config", CONFIG + wait + config_end)
    table = (fake.root / "specshim/adapters/__init__.py").read_text()
    fake.adapters(
        table,
        engine_ge_0_17=ENGINE_ADAPTER.format(name="ge", contract='Requires("vllm.config:Config.load"),'),
        config="""
        ADAPTER = Adapter("config", "why", "upstream", "remove_when", (
            Patch("config.load", "replace", "Config.load", "patches:Config.load"),), (Requires("vllm.engine:Engine"),))
        """,
    )
    assert fake.run(IMPORT_BOTH, timeout=30).value == BOTH_PATCHED


def test_a_contract_on_a_module_that_another_thread_is_importing_waits_for_it(fake: Stack) -> None:
    fake.module("gate", GATE).module("vllm.config", "import gate\ngate.inside.set()\ngate.go_on.wait(20)\n" + CONFIG)
    fake.module("vllm.engine", ENGINE + "import gate, threading\nthreading.Timer(0.3, gate.go_on.set).start()\n")
    table = (fake.root / "specshim/adapters/__init__.py").read_text()
    engine = ENGINE_ADAPTER.format(name="ge", contract='Requires("vllm.config:Config.load"),')
    fake.adapters(table, engine_ge_0_17=engine)
    result = fake.run(
        """
        import specshim, threading, gate, observe
        thread = threading.Thread(target=__import__, args=("vllm.config",))
        thread.start()
        gate.inside.wait(20)
        import vllm.engine
        thread.join()
        report([observe.state(), observe.outcomes()])
        """,
        timeout=30,
    )
    assert result.value == ["patched", {"engine": "applied", "config": "applied"}]


def test_a_target_can_be_imported_while_another_thread_imports_its_package(fake: Stack) -> None:
    # wrapt's own finder deadlocks here: it waits for the package while it holds the global import lock.
    fake.module("vllm", "import gate, time\ngate.inside.set()\ntime.sleep(0.3)\nimport colorsys\n").module("gate", GATE)
    result = fake.run(
        """
        import specshim, threading, gate, observe
        thread = threading.Thread(target=__import__, args=("vllm",))
        thread.start()
        gate.inside.wait(20)
        from vllm.engine import Engine
        ran = Engine().run()
        thread.join()
        report([ran, observe.state()])
        """,
        timeout=30,
    )
    assert result.value == ["patched run", "patched"]


def test_a_second_thread_waits_until_the_target_is_patched(fake: Stack) -> None:
    table = (fake.root / "specshim/adapters/__init__.py").read_text()
    slow = "import gate, time\ngate.inside.set()\ntime.sleep(0.3)\n"
    fake.module("gate", GATE)
    fake.adapters(table, engine_ge_0_17=slow + ENGINE_ADAPTER.format(name="ge", contract=""))
    result = fake.run(
        """
        import specshim, threading, gate
        thread = threading.Thread(target=__import__, args=("vllm.engine",))
        thread.start()
        gate.inside.wait(20)
        from vllm.engine import Engine
        report(Engine().run())
        thread.join()
        """,
        timeout=30,
    )
    assert result.value == "patched run"


START_A_THREAD = """
import threading
thread = threading.Thread(target=__import__, args=({module!r},))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("module", ["vllm.config", "specshim"])
def test_a_target_whose_body_waits_for_an_importing_thread_is_patched(fake: Stack, module: str) -> None:
    fake.module("vllm.engine", ENGINE + START_A_THREAD.format(module=module))
    first = "" if module == "specshim" else "import specshim\n"
    result = fake.run(
        f"{first}import vllm.engine, vllm.config, observe\nreport([observe.state(), observe.outcomes()])", timeout=30
    )
    assert result.value == ["patched", {"engine": "applied", "config": "applied"}]


def test_a_thread_in_a_targets_body_may_import_a_target_whose_contract_needs_the_first(fake: Stack) -> None:
    fake.module("vllm.engine", ENGINE + START_A_THREAD.format(module="vllm.config"))
    fake.adapters(
        (fake.root / "specshim/adapters/__init__.py").read_text(),
        config="""
        ADAPTER = Adapter("config", "why", "upstream", "remove_when", (
            Patch("config.load", "replace", "Config.load", "patches:Config.load"),),
            (Requires("vllm.engine:Engine.run"),))
        """,
    )
    result = fake.run("import specshim, vllm.engine, observe\nreport(observe.outcomes())", timeout=30)
    assert result.value == {"engine": "applied", "config": "applied"}


def test_many_threads_that_install_patch_once(fake: Stack) -> None:
    result = fake.run(
        IN_THREADS
        + """
import sys
sys.setswitchinterval(1e-6)
import vllm.engine, patches, observe
def arm():
    import specshim
    specshim.install()
in_threads(*[arm] * 16)
import specshim
depth_one = vars(vllm.engine.Engine)["run"] is patches.Engine.run
specshim.uninstall()
report([depth_one, observe.state()])
""",
        timeout=30,
    )
    assert result.value == [True, "original"]


def test_install_and_uninstall_from_many_threads_end_in_a_whole_state(fake: Stack) -> None:
    result = fake.run(
        IN_THREADS
        + """
import sys
sys.setswitchinterval(1e-6)
import specshim, vllm.engine, observe
def toggle():
    for _ in range(50):
        specshim.install()
        specshim.uninstall()
in_threads(*[toggle] * 4)
seen = [observe.state()]
specshim.install()
seen.append(observe.state())
specshim.uninstall()
report([*seen, observe.state()])
""",
        timeout=60,
    )
    assert result.value == ["original", "patched", "original"]


def test_hooks_are_registered_with_wrapt_once_and_never_again(fake: Stack) -> None:
    result = fake.run(
        """
        import wrapt, wrapt.importer
        calls = []
        real = wrapt.importer.register_post_import_hook
        def counted(hook, name):
            calls.append(name)
            real(hook, name)
        wrapt.register_post_import_hook = counted
        import specshim
        armed = list(calls)
        specshim.install(); specshim.uninstall(); specshim.install()
        import specshim._plugin, vllm.engine, vllm.config
        specshim._plugin.register()
        specshim.uninstall(); specshim.install()
        report([armed, calls])
        """
    )
    assert result.value == [["vllm.engine", "vllm.config", "vllm.functions"]] * 2


def test_a_target_that_another_thread_begins_to_import_during_registration_is_deferred(fake: Stack) -> None:
    fake.module("gate", GATE)
    fake.module("vllm.engine", "import gate\ngate.inside.set()\ngate.go_on.wait(20)\n" + ENGINE)
    result = fake.run(
        """
        import threading, gate, wrapt, wrapt.importer
        real = wrapt.importer.register_post_import_hook
        thread = threading.Thread(target=__import__, args=("vllm.engine",))
        def slow(hook, name):
            if name == "vllm.engine":
                thread.start()
                gate.inside.wait(20)
            real(hook, name)
        wrapt.register_post_import_hook = slow
        import specshim, observe
        before = observe.outcomes()
        gate.go_on.set()
        thread.join()
        report([before, observe.state(), observe.outcomes()])
        """,
        timeout=30,
    )
    assert result.value == [{"engine": "deferred"}, "patched", {"engine": "applied"}]


def test_a_fork_while_another_thread_is_patching_leaves_the_child_able_to_patch(fake: Stack) -> None:
    fake.module(
        "vllm.engine",
        ENGINE.replace(
            "class Engine(Base):",
            """
import gate, time
slow = False
class Slow(type):
    def __setattr__(cls, name, value):
        if slow:
            gate.inside.set()
            time.sleep(0.1)
        super().__setattr__(name, value)

class Engine(Base, metaclass=Slow):""",
        )
        + "\nslow = True\n",
    ).module("gate", GATE)
    result = fake.run(
        """
        import os, sys, threading, gate, specshim, observe
        thread = threading.Thread(target=__import__, args=("vllm.engine",))
        thread.start()
        gate.inside.wait(20)
        child = os.fork()
        if child == 0:
            from vllm.config import Config
            good = Config().load() == "patched load" and observe.outcomes()["engine"] == "applied"
            os._exit(0 if good else 1)
        thread.join()
        report(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        timeout=30,
    )
    assert result.value == 0
