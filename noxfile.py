"""The sessions that prove specshim; `pip install nox uv`, then `nox -s demo` or `nox -s tests`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

import environment  # noqa: E402
import evidence  # noqa: E402

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.sessions = ["lint", "tests"]

NEWEST = "0.32.0"
SPECULATORS = "0.4.0.1"


def _pair(session: nox.Session) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog=f"nox -s {session.name} --")
    parser.add_argument("--vllm", default=NEWEST)
    parser.add_argument("--speculators", default=SPECULATORS)
    return parser.parse_known_args(session.posargs)


def _run_cell(session: nox.Session, vllm: str, speculators: str, pytest_args: list[str]) -> None:
    python = environment.build(vllm, speculators)
    outcome = Path(session.create_tmp()) / "outcome.json"
    outcome.unlink(missing_ok=True)
    whole = ["--cell-record", str(outcome)] if not pytest_args else []
    command = [str(python), "-m", "pytest", "tests/runtime", "-p", "no:cacheprovider", "-q", *whole, *pytest_args]
    session.run(*command, env=environment.variables(vllm), external=True, success_codes=[0, 1])
    if not whole:
        return
    record = evidence.write(speculators, vllm, python, outcome)
    session.log(evidence.show(record))
    if record["tests"]["failed"] or record["tests"]["error"]:
        session.error(f"speculators {speculators} on vLLM {vllm} is not right")


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Extract hidden states from a tiny model with a real vLLM on the CPU and compare every row with transformers."""
    pair, rest = _pair(session)
    python = environment.build(pair.vllm, pair.speculators)
    env = environment.variables(pair.vllm) | {"VLLM_LOGGING_LEVEL": "ERROR"}
    session.run(str(python), "-m", "specshim.probe.demo", *rest, env=env, external=True)


@nox.session(venv_backend="none")
def cell(session: nox.Session) -> None:
    """Run the run-time suite for one pair: `-- --vllm V --speculators S`; other arguments go to pytest."""
    pair, rest = _pair(session)
    _run_cell(session, pair.vllm, pair.speculators, rest)


@nox.session(venv_backend="none")
def architectures(session: nox.Session) -> None:
    """Compare every architecture that can be made tiny with transformers: `-- --vllm V`; the rest goes to pytest."""
    pair, rest = _pair(session)
    python = environment.build(pair.vllm, pair.speculators)
    command = [str(python), "-m", "pytest", "tests/architectures", "-p", "no:cacheprovider", "-q", *rest]
    session.run(*command, env=environment.variables(pair.vllm), external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the unit tests on this Python, then the cell of the newest vLLM."""
    session.install("--editable", ".[cli]", *nox.project.dependency_groups(nox.project.load_toml(), "test"))
    session.run("pytest", "tests/unit", *session.posargs)
    _run_cell(session, NEWEST, SPECULATORS, [])


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types."""
    session.install("--editable", ".", *nox.project.dependency_groups(nox.project.load_toml(), "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def matrix_update(session: nox.Session) -> None:
    """Rewrite compat_matrix.yaml from the records under evidence/."""
    session.install("pyyaml", "packaging")
    session.run("python", "tools/update_matrix.py")


@nox.session
def bench_import(session: nox.Session) -> None:
    """Print what `import specshim` costs beside the libraries that it uses."""
    session.install("--editable", ".")
    session.run("python", "tests/benchmarks/import_cost.py", *session.posargs)
