"""The `vllm.general_plugins` entry point: arms specshim in every vLLM process, spawned workers included."""

from __future__ import annotations


def register() -> None:
    """Arm the import hooks. vLLM calls this unguarded in each of its processes, so it is cheap and does not raise."""
    import specshim

    specshim.install()
