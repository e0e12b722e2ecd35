"""The command line: `specshim doctor`, `specshim status` and `specshim adapters`.

Exit status 0 means that all is well, 1 that there is a problem, 2 that the command was misused.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import specshim
from specshim import doctor
from specshim._patcher import patcher
from specshim.patching.model import Outcome
from specshim.patching.planning import load_adapter


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="specshim", description="Say what specshim does in this environment.")
    parser.add_argument("--version", action="version", version=f"specshim {specshim.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("doctor", help="describe this environment and what is wrong with it")
    command.add_argument("--check", action="store_true", help="import the targets, which takes a while, and check them")
    command.set_defaults(run=_doctor)

    command = commands.add_parser(
        "status", help="import modules with specshim armed and say what became of each target"
    )
    command.add_argument("modules", nargs="*", metavar="MODULE", help="a module to import first")
    command.set_defaults(run=_status)

    command = commands.add_parser("adapters", help="list every adapter: versions, reason, end of life, patches")
    command.set_defaults(run=_adapters)

    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _doctor(options: argparse.Namespace) -> int:
    report = doctor.examine(check=options.check)
    if options.json:
        _print_json(report)
    else:
        print("\n".join(_report_lines(report)))
    return 1 if report["problems"] else 0


def _status(options: argparse.Namespace) -> int:
    for module in options.modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            print(f"specshim: importing {module} failed: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    records = specshim.status()
    if options.json:
        _print_json([record.as_dict() for record in records])
    elif records:
        _print_rows(
            [
                {
                    "target": record.target,
                    "outcome": record.outcome.value + ("" if record.verified else " (unverified)"),
                    "adapter": record.adapter or "-",
                    "versions": _pairs(record.versions),
                    "reason": "; ".join((record.reason, *record.notes)),
                }
                for record in records
            ]
        )
    else:
        print("No target has been imported in this process; name modules to import them first.")
    return 1 if any(record.outcome in (Outcome.FAILED, Outcome.DISPLACED) for record in records) else 0


def _adapters(options: argparse.Namespace) -> int:
    rows: list[dict[str, Any]] = []
    for target in patcher.targets:
        for entry in target.entries:
            adapter = load_adapter(entry)
            rows.append(
                {
                    "adapter": adapter.id,
                    "target": target.id,
                    "module": target.module,
                    "versions": dict(entry.ranges),
                    "why": adapter.why,
                    "upstream": adapter.upstream,
                    "remove_when": adapter.remove_when,
                    "patches": [patch.id for patch in adapter.patches],
                }
            )
    if options.json:
        _print_json(rows)
    else:
        _print_rows(
            [{**row, "versions": _pairs(row["versions"]), "patches": ", ".join(row["patches"])} for row in rows]
        )
    return 0


def _pairs(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _report_lines(report: dict[str, Any]) -> list[str]:
    """Return the report as plain lines, to be pasted into an issue."""
    lines = [f"{name}: {report[name]}" for name in ("specshim", "python", "platform")]
    lines += [f"plugin entry point: {'visible' if report['plugin'] else 'not visible'}", "packages:"]
    lines += [f"  {name}: {version or 'not installed'}" for name, version in report["packages"].items()]
    lines += ["environment:", *(f"  {name}={value}" for name, value in report["environment"].items())]
    lines += ["targets:"]
    lines += [f"  {t['target']}: {t['adapter'] or '-'} ({t['note']})" for t in report["targets"]]
    if report["records"]:
        lines += ["records:", *(f"  {r['target']}: {r['outcome']} ({r['reason']})" for r in report["records"])]
    lines += ["problems:" if report["problems"] else "problems: none"]
    for problem in report["problems"]:
        lines += [f"  - {problem['problem']}", f"    -> {problem['remedy']}"]
    return lines


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_rows(rows: list[dict[str, str]]) -> None:
    """Print one block of lines for each row, with the names set off if rich is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print("\n\n".join("\n".join(f"{name}: {value}" for name, value in row.items()) for row in rows))
        return
    console = Console()
    for row in rows:
        block = Table.grid(padding=(0, 2))
        block.add_column(style="bold")
        block.add_column(overflow="fold")
        for name, value in row.items():
            block.add_row(Text(name), Text(value))
        console.print(block, "")
