"""vLLM 0.17 and later: a request to the engine no longer names the end-of-sequence token."""

from __future__ import annotations

from specshim.adapters.generator.common import ENGINE_CONTRACT, REQUEST_FIELD_NAMES, generator_patches
from specshim.patching.model import Adapter, Requires

ADAPTER = Adapter(
    id="generator.vllm_ge_0_17",
    why="Request(eos_token_id=) is a TypeError, and the hand-built KV-cache planning breaks at 0.23, 0.29 and 0.33",
    upstream="vLLM 0.17.0: eos_token_id left Request and EngineCoreRequest",
    remove_when="speculators < 0.5 is no longer supported",
    patches=generator_patches(),
    contract=(
        *ENGINE_CONTRACT,
        Requires("vllm.v1.engine:EngineCoreRequest", fields=REQUEST_FIELD_NAMES, without=("eos_token_id",)),
    ),
)
