"""vLLM 0.11.0 has `get_hash_fn_by_name` in `vllm.utils`; speculators 0.4 imports it from `vllm.utils.hashing`."""

from __future__ import annotations

from specshim.patching.model import Adapter, Patch, Requires

ADAPTER = Adapter(
    id="vllm_names.vllm_lt_0_11_1",
    why="speculators 0.4 imports vllm.utils.hashing, which came with vLLM 0.11.1",
    upstream="vLLM 0.11.1: the module vllm.utils became a package",
    remove_when="vLLM 0.11.0 is no longer supported",
    patches=(
        Patch("vllm_names.hashing.module", "provide", "vllm.utils.hashing", "specshim.adapters.vllm_names.hashing:"),
    ),
    contract=(Requires("vllm.utils:get_hash_fn_by_name"),),
)
