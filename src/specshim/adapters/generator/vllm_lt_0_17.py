"""vLLM 0.11.1 to 0.16: a request to the engine must name the end-of-sequence token."""

from __future__ import annotations

from typing import Any

from specshim.adapters.generator.common import ENGINE_CONTRACT, REQUEST_FIELD_NAMES, generator_patches
from specshim.patching.model import Adapter, Requires

# One token is sampled and thrown away, so which token would end a text does not matter.
REQUEST_FIELDS: dict[str, Any] = {"eos_token_id": None}

CONTRACT = (
    *ENGINE_CONTRACT,
    Requires("vllm.v1.engine:EngineCoreRequest", fields=(*REQUEST_FIELD_NAMES, "eos_token_id")),
)

ADAPTER = Adapter(
    id="generator.vllm_lt_0_17",
    why="the hand-built engine breaks with almost every vLLM release, and returns rows of the wrong prompt on its own",
    upstream="vLLM 0.11.1 Scheduler(block_size=), 0.12.0 SchedulerConfig(is_encoder_decoder=) and KV-cache helpers",
    remove_when="vLLM < 0.17 is no longer supported",
    patches=generator_patches(_extra_request_fields=f"{__name__}:REQUEST_FIELDS"),
    contract=(
        *CONTRACT,
        # What tells 0.11.1 from 0.11.0.
        Requires("vllm.v1.executor.abstract:Executor.sample_tokens"),
    ),
)
