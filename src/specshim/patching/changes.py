"""The two ways in which something is changed, each able to put back exactly what was there."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Protocol

ABSENT: Any = object()


class Change(Protocol):
    """Something that can be changed and put back."""

    def apply(self) -> None:
        """Make the change, and remember what was there."""

    def undo(self) -> None:
        """Put back what was there, unless the change was never made or somebody else has changed it since."""

    def is_in_place(self) -> bool:
        """Tell whether what this change has put there is still there."""


class Assignment:
    """One attribute of a class or a module."""

    def __init__(self, holder: Any, name: str, new: Any) -> None:
        """Take the class or module, the attribute's name and its new value."""
        self.holder = holder
        self.name = name
        self.new = new
        self.original = ABSENT

    def apply(self) -> None:
        """Set the attribute; what is remembered is the holder's own object, not what a descriptor makes of it."""
        self.original = vars(self.holder).get(self.name, ABSENT)
        setattr(self.holder, self.name, self.new)

    def undo(self) -> None:
        """Put the very same object back, or remove what the holder itself did not have."""
        if not self.is_in_place():
            return
        if self.original is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.original)

    def is_in_place(self) -> bool:
        """Look in the holder's own namespace, past descriptors and inheritance."""
        return vars(self.holder).get(self.name, ABSENT) is self.new

    def __str__(self) -> str:
        """Return the dotted name of the attribute."""
        owner = self.holder.__name__ if isinstance(self.holder, ModuleType) else self.holder.__qualname__
        return f"{owner}.{self.name}"


class Provision:
    """One module in `sys.modules` that the installed stack no longer has."""

    def __init__(self, name: str, module: ModuleType) -> None:
        """Take the old name and the module to find there."""
        self.name = name
        self.module = module

    def apply(self) -> None:
        """Make the module importable under its old name."""
        sys.modules[self.name] = self.module

    def undo(self) -> None:
        """Forget the module, if it is still ours."""
        if self.is_in_place():
            del sys.modules[self.name]

    def is_in_place(self) -> bool:
        """Tell whether the name still leads to our module."""
        return sys.modules.get(self.name) is self.module

    def __str__(self) -> str:
        """Return the module's name."""
        return self.name


def apply_all(changes: list[Change]) -> None:
    """Make all changes; if one of them fails, put everything back and let its exception through."""
    with ExitStack() as rollback:
        for change in changes:
            rollback.callback(change.undo)
            change.apply()
        rollback.pop_all()
