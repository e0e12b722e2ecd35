"""The values that describe patches: what is changed, on which versions, why, and what it relies on."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

PatchKind = Literal["alias", "replace", "set", "provide"]


@dataclass(frozen=True)
class Patch:
    """One change to one target module.

    `kind` is how the change is made:

    - `alias`: set `attribute` only where it is absent (additive).
    - `replace`: set `attribute`, which must exist.
    - `set`: set `attribute`, whether or not it exists.
    - `provide`: put a module named `attribute` into `sys.modules` if no such module can be found.

    `attribute` is a dotted path inside the target module (`Class.method`); `value` is `"module:name"` of the new
    object, loaded only when the patch is applied.
    """

    id: str
    kind: PatchKind
    attribute: str
    value: str


@dataclass(frozen=True)
class Requires:
    """One expectation of an adapter about an object of the target's world.

    `path` is `"module:qualified.name"`. `parameters` are names its signature must accept; `fields` are names that
    must exist as attributes, dataclass fields or struct fields; `without` are fields that must not exist, which
    tells two neighbouring releases apart.
    """

    path: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Adapter:
    """The patches that mend one break of a target, with the reason and the end of their life."""

    id: str
    why: str
    upstream: str
    remove_when: str
    patches: tuple[Patch, ...]
    contract: tuple[Requires, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A row of the adapter table: which versions select which adapter module (it holds `ADAPTER`)."""

    ranges: dict[str, str]
    adapter: str


@dataclass(frozen=True)
class Target:
    """A module that specshim patches once it has been imported, and the adapters that know its versions.

    `last_verified` maps a package to the newest version for which this target has evidence; newer ones are patched
    if the contract holds, and reported as unverified.
    """

    id: str
    module: str
    entries: tuple[Entry, ...]
    last_verified: dict[str, str] = field(default_factory=dict)


class Outcome(str, enum.Enum):
    """What became of a target."""

    APPLIED = "applied"
    NOT_NEEDED = "not needed"
    SKIPPED = "skipped"
    FAILED = "failed"
    UNDONE = "undone"
    DISPLACED = "displaced"


@dataclass(frozen=True)
class Record:
    """The outcome for one target in this process."""

    target: str
    module: str
    outcome: Outcome
    reason: str
    adapter: str | None = None
    patches: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    verified: bool = True

    def as_dict(self) -> dict[str, object]:
        """Return plain values, for `--json` and for reports."""
        return {
            "target": self.target,
            "module": self.module,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "adapter": self.adapter,
            "patches": list(self.patches),
            "versions": dict(self.versions),
            "verified": self.verified,
        }
