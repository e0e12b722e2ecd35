"""The environment variables that change what specshim does, each read at the moment it matters."""

from __future__ import annotations

import os


def is_off() -> bool:
    """Tell whether `SPECSHIM_DISABLE=1` switches specshim off altogether."""
    return os.environ.get("SPECSHIM_DISABLE", "").strip() == "1"


def disabled_ids() -> frozenset[str]:
    """Return the target and patch ids that `SPECSHIM_DISABLE` leaves out."""
    parts = (part.strip() for part in os.environ.get("SPECSHIM_DISABLE", "").split(","))
    return frozenset(part for part in parts if part not in ("", "0", "1"))


def is_strict() -> bool:
    """Tell whether `SPECSHIM_STRICT` asks for errors instead of warnings."""
    return os.environ.get("SPECSHIM_STRICT", "").strip() not in ("", "0")
