"""The table of what came out for each architecture: `--architecture-table FILE` writes it as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_table: dict[str, Any] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--architecture-table", help="write each architecture's errors or reason to this JSON file")


@pytest.fixture(scope="session")
def architecture_table() -> dict[str, Any]:
    return _table


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not _table:
        return
    terminalreporter.section("architectures")
    for name, outcome in _table.items():
        if isinstance(outcome, dict):
            info = outcome["info"]
            terminalreporter.write_line(
                f"{name:40} {outcome['relative']:.1e} {outcome['absolute']:.1e}  {info['rule']}, {info['layer_class']}"
            )
        else:
            terminalreporter.write_line(f"{name:40} {outcome[:200]}")
    target = config.getoption("--architecture-table")
    if target:
        Path(target).write_text(json.dumps(_table, indent=1) + "\n")
