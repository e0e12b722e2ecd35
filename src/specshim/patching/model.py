"""The values that describe patches: what is changed, on which versions, why, and what it relies on.

They are named tuples and not dataclasses because they are made at `import specshim`: a frozen dataclass costs about
four times as much to define, and together they would be most of the cost of that import.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal, NamedTuple

PatchKind = Literal["alias", "replace", "set", "provide"]


class Patch(NamedTuple):
    """One change to one target module.

    `kind` is how the change is made:

    - `alias`: set `attribute` only where it is absent (additive).
    - `replace`: set `attribute`, which must exist.
    - `set`: set `attribute`, whether or not it exists.
    - `provide`: put a module named `attribute` into `sys.modules` if no such module can be found (additive).

    `attribute` is a dotted path inside the target module (`Class.method`); `value` is `"module:name"` of the new
    object, loaded only when the patch is applied.
    """

    id: str
    kind: PatchKind
    attribute: str
    value: str


class Requires(NamedTuple):
    """One expectation of an adapter about an object of the target's world.

    `path` is `"module:qualified.name"`. `parameters` are names its signature must accept; `fields` are names that
    must exist as attributes, dataclass fields or struct fields; `without` are names that must not exist, which
    tells two neighbouring releases apart.
    """

    path: str
    parameters: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


class Adapter(NamedTuple):
    """The patches that mend one break of a target, with the reason and the end of their life."""

    id: str
    why: str
    upstream: str
    remove_when: str
    patches: tuple[Patch, ...]
    contract: tuple[Requires, ...] = ()


class Entry(NamedTuple):
    """A row of the adapter table: which versions select which adapter module (it holds `ADAPTER`)."""

    ranges: Mapping[str, str]
    adapter: str


class Target(NamedTuple):
    """A module that specshim patches once it has been imported, and the adapters that know its versions.

    `last_verified` maps a package to the newest version for which this target has evidence; newer ones are patched
    if the contract holds, and reported as unverified.
    """

    id: str
    module: str
    entries: tuple[Entry, ...]
    last_verified: Mapping[str, str] = {}


class Outcome(str, enum.Enum):
    """What became of a target."""

    APPLIED = "applied"
    DEFERRED = "deferred"
    NOT_NEEDED = "not needed"
    SKIPPED = "skipped"
    FAILED = "failed"
    UNDONE = "undone"
    DISPLACED = "displaced"


class Record(NamedTuple):
    """The outcome for one target in this process.

    `verified` is False if a target was patched on versions that nobody has tried yet. `notes` says what could not be
    reached although the target was patched.
    """

    target: str
    module: str
    outcome: Outcome
    reason: str
    adapter: str | None = None
    patches: tuple[str, ...] = ()
    versions: Mapping[str, str] = {}
    verified: bool = True
    notes: tuple[str, ...] = ()

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
            "notes": list(self.notes),
        }
