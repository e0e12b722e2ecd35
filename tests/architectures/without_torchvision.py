"""Let models be imported whose picture and video processors need torchvision, where it is not installed.

Text prompts use none of it, and no torchvision wheel fits a CPU build of torch on every release.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock


class _Anything(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Anything(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def pretend_torchvision() -> None:
    """Make `import torchvision` give empty modules in this process, if it is not installed."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())
