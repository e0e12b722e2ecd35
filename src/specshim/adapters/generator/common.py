"""What the adapters of the generator share: its patches, and the vLLM names that the engine session relies on."""

from __future__ import annotations

from specshim.patching.model import Patch, PatchKind, Requires

_CLASS = "VllmHiddenStatesGenerator"
_SOURCE = f"specshim.extraction.generator:{_CLASS}"

REPLACED = ("__doc__", "__init__", "_create_vllm_config", "_setup_capture", "generate", "__del__")
ADDED = (
    "iter_generate",
    "close",
    "__enter__",
    "__exit__",
    "_extra_request_fields",
    "_prepare_config",
    "_num_hidden_layers",
    "_start",
    "_open_session",
    "_calibrate",
    "_results",
    "_result",
)


def generator_patches(**overrides: str) -> tuple[Patch, ...]:
    """Return the patches of the class; `overrides` maps a name to where this release's version of it is."""

    def patch(kind: PatchKind, name: str) -> Patch:
        value = overrides.get(name, f"{_SOURCE}.{name}")
        return Patch(f"generator.{name}", kind, f"{_CLASS}.{name}", value)

    return tuple(patch("replace", name) for name in REPLACED) + tuple(patch("alias", name) for name in ADDED)


ENGINE_CONTRACT: tuple[Requires, ...] = (
    Requires("vllm.v1.engine.core:EngineCore", parameters=("vllm_config", "executor_class", "log_stats")),
    Requires(
        "vllm.v1.engine.core:EngineCore",
        fields=("add_request", "preprocess_add_request", "step", "abort_requests", "shutdown"),
    ),
    Requires("vllm.v1.executor.abstract:Executor.get_class", parameters=("vllm_config",)),
    Requires("vllm.v1.executor.abstract:Executor.collective_rpc", parameters=("method", "args")),
    Requires("vllm.engine.arg_utils:EngineArgs.create_engine_config"),
    Requires(
        "vllm.engine.arg_utils:EngineArgs",
        fields=(
            "model",
            "tokenizer",
            "trust_remote_code",
            "dtype",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "enforce_eager",
            "gpu_memory_utilization",
            "tensor_parallel_size",
            "enable_prefix_caching",
            "async_scheduling",
            "distributed_executor_backend",
            "worker_extension_cls",
        ),
    ),
    Requires("vllm.transformers_utils.config:get_config", parameters=("model", "trust_remote_code")),
    Requires("vllm.transformers_utils.config:get_hf_text_config", parameters=("config",)),
    Requires("vllm.sampling_params:SamplingParams", parameters=("max_tokens", "temperature")),
)

REQUEST_FIELD_NAMES = (
    "request_id",
    "prompt_token_ids",
    "mm_features",
    "sampling_params",
    "pooling_params",
    "arrival_time",
    "lora_request",
    "cache_salt",
    "data_parallel_rank",
)
