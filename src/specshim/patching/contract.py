"""Compare what an adapter relies on with the objects that are really there."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from typing import Any

from specshim.patching.model import Requires


def resolve(path: str) -> Any:
    """Return the object at `"module:qualified.name"`; raise ImportError or AttributeError if it is absent."""
    module_name, _, qualname = path.partition(":")
    try:
        return _walk(sys.modules[module_name], qualname)
    except (KeyError, AttributeError):
        # Not imported yet, or another thread is in the middle of it: only then wait for its import lock.
        return _walk(importlib.import_module(module_name), qualname)


def _walk(obj: Any, qualname: str) -> Any:
    for part in filter(None, qualname.split(".")):
        obj = getattr(obj, part)
    return obj


def differences(requirements: tuple[Requires, ...]) -> list[str]:
    """Return one sentence for every expectation that does not hold; an empty list means that the contract holds."""
    found: list[str] = []
    for requirement in requirements:
        try:
            obj = resolve(requirement.path)
        except (ImportError, AttributeError) as error:
            found.append(f"{requirement.path} is absent ({error})")
            continue
        found += _parameter_differences(requirement, obj)
        found += [f"{requirement.path} has no {name!r}" for name in requirement.fields if not _has(obj, name)]
        found += [f"{requirement.path} has {name!r}" for name in requirement.without if _has(obj, name)]
    return found


def _parameter_differences(requirement: Requires, obj: Any) -> list[str]:
    if not requirement.parameters:
        return []
    try:
        parameters = inspect.signature(obj).parameters
    except (TypeError, ValueError) as error:
        return [f"{requirement.path} has no readable signature ({error})"]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    return [
        f"{requirement.path} no longer takes {name!r} (it takes {', '.join(parameters)})"
        for name in requirement.parameters
        if name not in parameters
    ]


def _has(obj: Any, name: str) -> bool:
    # A dataclass field without a default is no attribute of the class.
    return hasattr(obj, name) or (
        dataclasses.is_dataclass(obj) and any(field.name == name for field in dataclasses.fields(obj))
    )
