"""What introspection, tracebacks and pickle see of a patched class."""

from __future__ import annotations

import re

from .fresh import SPECSHIM, Stack


def test_patched_functions_are_plain_functions_with_their_own_signature_and_docs(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim, inspect, vllm.engine
        from vllm.engine import Engine
        run = vars(Engine)["run"]
        report([
            type(run).__name__, str(inspect.signature(Engine.run)), Engine.run.__doc__, Engine.run.__qualname__,
            Engine.run.__module__, inspect.getsource(Engine.run).split("\\n")[0].strip(), hasattr(run, "__wrapped__"),
            [type(vars(Engine)[n]).__name__ for n in ("inherited", "helper", "make", "added")],
            type(vllm.engine.lost).__name__,
            Engine.__module__, Engine.__qualname__, type(Engine).__name__,
        ])
        """
    )
    assert result.value == [
        "function",
        "(self, count=1, *, extra=None)",
        "Run the patched.",
        "Engine.run",
        "patches",
        "def run(self, count=1, *, extra=None):",
        False,
        ["function", "staticmethod", "classmethod", "function"],
        "function",
        "vllm.engine",
        "Engine",
        "type",
    ]


def test_exceptions_pass_unchanged_and_no_frame_of_the_mechanism_is_in_the_traceback(fake: Stack) -> None:
    fake.module(
        "patches",
        (fake.root / "patches.py").read_text().replace('return "patched run"', "return self.original()"),
    )
    fake.module("vllm.config", "")
    engine = (fake.root / "vllm/engine.py").read_text()
    fake.module("vllm.engine", engine + "\n    def original(self):\n        raise LookupError('the very one')\n")
    result = fake.run(
        """
        import specshim, traceback
        from vllm.engine import Engine
        try:
            Engine().run()
        except LookupError as error:
            frames = [(f.filename.rpartition("/")[2], f.name) for f in traceback.extract_tb(error.__traceback__)]
            report([type(error).__name__, error.args, error.__cause__, error.__context__, frames])
        """
    )
    assert result.value == [
        "LookupError",
        ["the very one"],
        None,
        None,
        [["script.py", "<module>"], ["patches.py", "run"], ["engine.py", "original"]],
    ]


def test_patched_classes_their_instances_and_their_methods_pickle(fake: Stack) -> None:
    result = fake.run(
        """
        import specshim, pickle
        from vllm.engine import Engine
        engine = Engine()
        engine.number = 5
        again = pickle.loads(pickle.dumps(engine))
        report([
            pickle.loads(pickle.dumps(Engine)) is Engine,
            [type(again) is Engine, again.number, again.run()],
            pickle.loads(pickle.dumps(engine.run))(),
            pickle.loads(pickle.dumps(Engine.helper))(),
            b"wrapt" in pickle.dumps([engine, Engine, engine.run, Engine.helper]),
        ])
        """
    )
    assert result.value == [True, [True, 5, "patched run"], "patched run", "patched helper", False]


def test_an_instance_pickled_while_patched_loads_where_nothing_is_patched(fake: Stack) -> None:
    dumped = fake.run(
        """
        import specshim, pickle
        from vllm.engine import Engine
        report([pickle.dumps(Engine()).hex(), Engine().run()])
        """
    ).value
    loaded = fake.run(f"import pickle\nreport(pickle.loads(bytes.fromhex({dumped[0]!r})).run())")
    assert (dumped[1], loaded.value) == ("patched run", "original run")


def test_wrapt_is_used_for_hooks_only_so_nothing_wrapped_can_travel_anywhere() -> None:
    users = {
        str(path.relative_to(SPECSHIM))
        for path in SPECSHIM.rglob("*.py")
        if re.search(r"^\s*(from|import) wrapt", path.read_text(), re.MULTILINE)
    }
    assert users == {"patching/hooks.py"}
    hooks = (SPECSHIM / "patching/hooks.py").read_text()
    imported = re.findall(r"^from wrapt\S* import (.*)$", hooks, re.MULTILINE)
    assert imported == ["notify_module_loaded, register_post_import_hook", "ImportHookFinder"]
