"""Adapters for `VllmHiddenStatesGenerator`, one per break of the vLLM API that it drives."""
