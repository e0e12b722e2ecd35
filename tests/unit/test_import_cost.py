"""What `import specshim` adds to `sys.modules`; the milliseconds are measured in tests/benchmarks/import_cost.py."""

from __future__ import annotations

from .fresh import Stack

OWN = [
    "specshim",
    "specshim._patcher",
    "specshim._version",
    "specshim.adapters",
    "specshim.errors",
    "specshim.patching",
    "specshim.patching.hooks",
    "specshim.patching.model",
    "specshim.patching.patcher",
    "specshim.patching.switches",
]


def test_import_adds_its_own_modules_and_nothing_else_to_what_it_depends_on(stack: Stack) -> None:
    result = stack.run(
        """
        import sys
        import wrapt, packaging.specifiers, importlib.metadata, __future__
        before = set(sys.modules)
        import specshim
        report(sorted(set(sys.modules) - before))
        """
    )
    assert result.value == OWN
    assert len(OWN) <= 14


def test_import_loads_no_heavy_package(stack: Stack) -> None:
    heavy = ["torch", "numpy", "vllm", "speculators", "transformers", "pydantic", "yaml", "rich", "argparse"]
    result = stack.run(f"import sys, specshim\nreport([m for m in {heavy} if m in sys.modules])")
    assert result.value == []


def test_an_import_that_is_no_target_loads_nothing_of_specshim(stack: Stack) -> None:
    result = stack.run(
        """
        import sys, specshim
        before = {m for m in sys.modules if m.startswith("specshim")}
        import colorsys, json.tool
        report(sorted({m for m in sys.modules if m.startswith("specshim")} - before))
        """
    )
    assert result.value == []
