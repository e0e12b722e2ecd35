"""Run a snippet in a fresh interpreter, on a temporary path with fake packages.

The life cycle of patches is about `sys.modules`, import locks and processes, which only a fresh interpreter shows as
they are. `Stack` writes packages named like the real ones, with or without distribution metadata, and can put a
specshim beside them whose code is the real one and whose adapter table is the test's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specshim

SPECSHIM = Path(specshim.__file__).parent
MARK = "REPORT:"

PRELUDE = f"""\
import json as _json, sys
def report(value):
    sys.stdout.write({MARK!r} + _json.dumps(value) + "\\n")
    sys.stdout.flush()
"""


@dataclass(frozen=True)
class Result:
    """What a finished snippet reported."""

    value: Any
    returncode: int
    stdout: str
    stderr: str

    @property
    def warnings(self) -> list[str]:
        """The lines in which Python printed a SpecshimWarning."""
        return [line for line in self.stderr.splitlines() if "SpecshimWarning: " in line]


class Stack:
    """A temporary path with fake packages."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def module(self, name: str, source: str = "") -> Stack:
        """Write the module `name` and, where they are missing, the packages around it."""
        *parents, _ = name.split(".")
        for depth in range(1, len(parents) + 1):
            package = self.root.joinpath(*parents[:depth])
            package.mkdir(exist_ok=True)
            (package / "__init__.py").touch()
        folder = self.root.joinpath(*name.split("."))
        path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        path.write_text(textwrap.dedent(source))
        return self

    def package(self, name: str, source: str = "") -> Stack:
        """Write the package `name`."""
        self.root.joinpath(*name.split(".")).mkdir(parents=True, exist_ok=True)
        return self.module(name, source)

    def distribution(self, name: str, version: str, packages: tuple[str, ...] = ()) -> Stack:
        """Write the metadata of an installed distribution; any earlier version of it is gone."""
        for old in self.root.glob(f"{name.replace('-', '_')}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        folder = self.root / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (folder / "top_level.txt").write_text("\n".join(packages))
        return self

    def adapters(self, table: str, **modules: str) -> Stack:
        """Put a specshim on the path that is the real one except for its adapter table and its adapter modules."""
        package = self.root / "specshim"
        package.mkdir(exist_ok=True)
        for entry in SPECSHIM.iterdir():
            link = package / entry.name
            if entry.name not in ("adapters", "__pycache__") and not link.exists():
                link.symlink_to(entry)
        self.package(
            "specshim.adapters", "from specshim.patching.model import Entry, Target\n" + textwrap.dedent(table)
        )
        for name, source in modules.items():
            head = "from specshim.patching.model import Adapter, Patch, Requires\n"
            self.module(f"specshim.adapters.{name}", head + textwrap.dedent(source))
        return self

    def run(
        self,
        snippet: str,
        *,
        env: dict[str, str] | None = None,
        python: tuple[str, ...] = (),
        timeout: float = 60,
        check: bool = True,
    ) -> Result:
        """Run the snippet, which calls `report(value)` at most once; fail on a bad exit status unless told not to."""
        script = self.root / "script.py"
        script.write_text(PRELUDE + textwrap.dedent(snippet))
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPECSHIM_", "VLLM_", "PYTHONWARNINGS"))}
        process = subprocess.run(
            [sys.executable, *python, str(script)],
            env={**clean, "PYTHONPATH": os.pathsep.join([str(self.root), str(SPECSHIM.parent)]), **(env or {})},
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and process.returncode:
            raise AssertionError(f"exit status {process.returncode}\n{process.stdout}\n{process.stderr}")
        reports = [line.removeprefix(MARK) for line in process.stdout.splitlines() if line.startswith(MARK)]
        value = json.loads(reports[-1]) if reports else None
        return Result(value, process.returncode, process.stdout, process.stderr)
