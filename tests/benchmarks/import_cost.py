"""Measure what `import specshim` costs beside the libraries that it uses: `python tests/benchmarks/import_cost.py`.

Both figures of a run are CPU time of the same fresh interpreter, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

RUNS = 31
GOAL_MS = 5.0
MEASURE = """
import sys, time
def cost(code):
    start, before = time.process_time(), len(sys.modules)
    exec(code)
    print((time.process_time() - start) * 1e3, len(sys.modules) - before)
cost("import wrapt, packaging.specifiers, importlib.metadata")
cost("import specshim")
"""
ROWS = ("wrapt, packaging.specifiers, importlib.metadata", "specshim on top of them")


def measure(environment: dict[str, str]) -> list[tuple[float, int]]:
    """Return for each row the milliseconds of CPU time and the number of modules in one fresh interpreter."""
    command = [sys.executable, "-c", MEASURE]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [(float(ms), int(modules)) for ms, modules in map(str.split, output.splitlines())]


def main() -> int:
    """Print the table; return 1 if the goal is missed."""
    with tempfile.TemporaryDirectory() as cache:
        # An installed package comes with its byte code, so compiling is not part of the figure.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        measure(environment)
        runs = [measure(environment) for _ in range(RUNS)]

    print(f"{'import':48} {'min ms':>8} {'median ms':>10} {'modules':>8}   ({RUNS} fresh interpreters)")
    median = 0.0
    for row, name in enumerate(ROWS):
        times = [run[row][0] for run in runs]
        median = statistics.median(times)
        print(f"{name:48} {min(times):8.2f} {median:10.2f} {runs[0][row][1]:8}")
    print(f"goal: at most {GOAL_MS} ms for specshim (median)")
    return int(median > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
