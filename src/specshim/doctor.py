"""Find out what specshim makes of this environment, and what to do about each thing that is wrong with it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from typing import Any

from packaging.version import InvalidVersion, Version

import specshim
from specshim._patcher import patcher
from specshim.patching import planning, switches
from specshim.patching.model import Outcome, Target
from specshim.patching.versions import installed_version

PLUGIN_GROUP = "vllm.general_plugins"
# Whose versions a report should show, beside the packages that select adapters.
OTHER_DISTRIBUTIONS = ("torch", "safetensors", "wrapt", "packaging")
VLLM_VARIABLES = ("VLLM_PLUGINS", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_USE_V2_MODEL_RUNNER")

Problem = dict[str, str]


def examine(check: bool = False) -> dict[str, Any]:
    """Return a report of plain values; `report["problems"]` is a list of `{"problem", "remedy"}`.

    Without `check` nothing is imported that is not installed with specshim. With it, the targets that have an
    adapter are imported, which patches them in this process and shows what becomes of them.
    """
    versions = {package: installed_version(package, patcher.distributions) for package in patcher.distributions}
    targets = [_describe(target, versions) for target in patcher.targets]
    problems = [*_missing_packages(versions), *_environment_problems(), *_plugin_problems()]
    if check:
        problems += _import_targets(targets)
    return {
        "specshim": specshim.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {
            **{package: _shown(package, version) for package, version in versions.items()},
            **{name: _metadata_version(name) for name in OTHER_DISTRIBUTIONS},
        },
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith("SPECSHIM_") or name in VLLM_VARIABLES
        },
        "plugin": _plugin_is_visible(),
        "targets": targets,
        "records": [record.as_dict() for record in specshim.status()],
        "problems": problems,
    }


def _describe(target: Target, versions: dict[str, Version | None]) -> dict[str, Any]:
    mine = {package: versions[package] for package in planning.packages(target)}
    installed = {package: version for package, version in mine.items() if version is not None}
    adapter: str | None = None
    if len(installed) < len(mine):
        note = f"{', '.join(sorted(mine.keys() - installed.keys()))} not installed"
    elif not (entries := planning.select(target.entries, installed)):
        note = "no adapter for these versions"
    else:
        adapter = planning.load_adapter(entries[0]).id
        note = "verified" if planning.is_verified(target, entries[0], installed) else "unverified"
        if len(entries) > 1:
            note += "; the version says little, so the contract decides"
    return {"target": target.id, "module": target.module, "adapter": adapter, "note": note}


def _missing_packages(versions: dict[str, Version | None]) -> list[Problem]:
    return [
        _problem(f"{package} is not installed", f"install {package}, in a version that compat_matrix.yaml lists")
        for package, version in versions.items()
        if version is None
    ]


def _environment_problems() -> list[Problem]:
    problems = []
    if switches.is_off():
        problems.append(_problem("SPECSHIM_DISABLE=1 switches specshim off", "unset SPECSHIM_DISABLE"))
    known = {target.id for target in patcher.targets}
    for target in patcher.targets:
        for entry in target.entries:
            known |= {patch.id for patch in planning.load_adapter(entry).patches}
    for unknown in sorted(switches.disabled_ids() - known):
        problems.append(
            _problem(
                f"SPECSHIM_DISABLE names {unknown!r}, which is neither a target nor a patch",
                "see `specshim adapters` for the ids",
            )
        )
    for package in patcher.distributions:
        name = f"SPECSHIM_{package.upper()}_VERSION"
        try:
            Version(os.environ.get(name, "0"))
        except InvalidVersion:
            problems.append(
                _problem(f"{name}={os.environ[name]} is not a version and is ignored", "write a version like 0.16.0")
            )
    return problems


def _plugin_problems() -> list[Problem]:
    problems = []
    if not _plugin_is_visible():
        problems.append(
            _problem(
                f"the entry point {PLUGIN_GROUP}: specshim is not visible, so spawned vLLM processes may be unpatched",
                "install specshim with pip or uv instead of putting its source on the path",
            )
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "specshim" not in [name.strip() for name in allowed.split(",")]:
        problems.append(
            _problem(
                f"VLLM_PLUGINS={allowed} keeps vLLM from loading specshim in its processes",
                f"set VLLM_PLUGINS={','.join(filter(None, [allowed, 'specshim']))} or unset it",
            )
        )
    return problems


def _import_targets(targets: list[dict[str, Any]]) -> list[Problem]:
    problems = []
    for target in targets:
        if target["adapter"] is None:
            continue
        try:
            importlib.import_module(target["module"])
        except Exception as error:
            problems.append(
                _problem(
                    f"importing {target['module']} failed: {type(error).__name__}: {error}",
                    f"see whether `SPECSHIM_DISABLE=1 python -c 'import {target['module']}'` fails in the same way",
                )
            )
    for record in specshim.status():
        if record.outcome in (Outcome.FAILED, Outcome.DISPLACED):
            problems.append(
                _problem(
                    f"{record.target}: {record.outcome.value}: {record.reason}",
                    "install versions that compat_matrix.yaml lists, or a newer specshim",
                )
            )
    return problems


def _problem(problem: str, remedy: str) -> Problem:
    return {"problem": problem, "remedy": remedy}


def _plugin_is_visible() -> bool:
    return bool(importlib.metadata.entry_points(group=PLUGIN_GROUP, name="specshim"))


def _shown(package: str, version: Version | None) -> str | None:
    if version is None:
        return None
    names = [name for name in patcher.distributions[package] if _metadata_version(name) is not None]
    return str(version) if not names or names[0] == package else f"{version} ({names[0]})"


def _metadata_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
