"""What speculators imports from `vllm.utils.hashing`, for vLLM 0.11.0, which has it in `vllm.utils`."""

from __future__ import annotations

from vllm.utils import get_hash_fn_by_name

__all__ = ["get_hash_fn_by_name"]
