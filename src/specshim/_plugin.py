"""The `vllm.general_plugins` entry point: arms specshim in every vLLM process, spawned workers included."""

from __future__ import annotations


def register() -> None:
    """Do nothing more: importing this module imported specshim, and that armed the hooks.

    vLLM calls this unguarded and repeatedly, so it cannot fail, and it does not bring back what the user has undone
    with `specshim.uninstall()`.
    """
