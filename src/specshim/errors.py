"""Exceptions and the warning category that specshim raises; each message names the cause and the way out."""

from __future__ import annotations


class SpecshimWarning(RuntimeWarning):
    """Something about the installed stack that the user should know, but that does not stop the program."""


class SpecshimError(RuntimeError):
    """Base class of every error that specshim itself raises at run time."""


class TargetChangedError(SpecshimError):
    """An adapter's contract does not hold for the installed target, so nothing of it was patched."""


class PatchFailedError(SpecshimError):
    """An adapter could not be applied; everything it had assigned was put back."""


class CaptureError(SpecshimError):
    """Hidden states could not be captured exactly; no partial or guessed result was returned."""


class GeneratorClosedError(SpecshimError):
    """The generator was closed, by the caller or by an earlier failure, and cannot generate any more."""


class EngineFailedError(SpecshimError):
    """vLLM's engine failed or a worker process died; the generator has been closed."""
