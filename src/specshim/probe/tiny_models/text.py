"""Decoder-only architectures: what their configuration needs beside the common sizes, and what vLLM needs to run them.

`TEXT_MODELS` maps a name to a `TinyModel`; `make_text` writes its checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specshim.probe.tiny_models.base import (
    HEAD_DIM,
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_LAYERS,
    VOCABULARY_SIZE,
    randomise,
    write_tokenizer,
)

TOKENS = {"vocab_size": VOCABULARY_SIZE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    **TOKENS,
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 256,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
TIED = SIZES | {"tie_word_embeddings": True}
MULTI_HEAD = SIZES | {"num_key_value_heads": NUM_HEADS}
# Sizes under the names that the older, GPT-2-like configurations use.
GPT_SIZES = {
    **TOKENS,
    "n_embd": HIDDEN_SIZE,
    "n_layer": NUM_LAYERS,
    "n_head": NUM_HEADS,
    "n_inner": 256,
    "n_positions": 4096,
    "tie_word_embeddings": False,
}
SPARSE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# Shorter than the longest prompts, so that the window matters.
WINDOW = 32

YARN = {
    "rope_type": "yarn",
    "type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
# transformers' DeepSeek-V2 does not scale its softmax by mscale.
PLAIN_YARN = YARN | {"mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": 1.0}
# Queries are multiplied by 1 + beta log(1 + position // 64).
QUERY_SCALING = {"beta": 0.1, "original_max_position_embeddings": 64}
QUERY_SCALING_ROPE = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 64}
# The latent sizes that vLLM's MLA kernels know.
LATENT_ATTENTION = {
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "rope_scaling": YARN,
}
DEEPSEEK_SPARSE = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# What transformers leaves out of the file and vLLM's DeepSeek-V3 reads.
DEEPSEEK_FILE = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
# vLLM's own CPU rotary kernel is wrong for these head sizes; its plain implementation is right.
PLAIN_ROTARY = {"compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}


@dataclass(frozen=True)
class TinyModel:
    """One architecture: the transformers config class, its fields, and what has to be told to vLLM.

    `written` is added to the checkpoint's config.json after transformers wrote it; `engine_args` go to the generator,
    `environment` to the process.
    """

    config: str
    fields: dict[str, Any] = field(default_factory=lambda: dict(SIZES))
    dtype: str = "float32"
    written: dict[str, Any] = field(default_factory=dict)
    engine_args: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def _latent(config: str, written: dict[str, Any] | None = None, **more: Any) -> TinyModel:
    fields = {k: v for k, v in MULTI_HEAD.items() if k != "head_dim"} | LATENT_ATTENTION | DEEPSEEK_SPARSE | more
    # With MLA, vLLM's CPU backend turns chunked prefill off; without, the same layers run chunked.
    return TinyModel(config, fields, written=written or {}, environment={"VLLM_MLA_DISABLE": "1"})


TEXT_MODELS: dict[str, TinyModel] = {
    # Pre-norm layers that return (hidden, residual).
    "Llama": TinyModel("LlamaConfig"),
    "Llama, bfloat16": TinyModel("LlamaConfig", dtype="bfloat16"),
    "Llama, float16": TinyModel("LlamaConfig", dtype="float16"),
    "Qwen2": TinyModel("Qwen2Config"),
    "Qwen3": TinyModel("Qwen3Config"),
    "Mistral": TinyModel("MistralConfig", SIZES | {"sliding_window": None}),
    "Mistral, sliding window": TinyModel("MistralConfig", SIZES | {"sliding_window": WINDOW}),
    "Granite": TinyModel(
        "GraniteConfig",
        SIZES
        | {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "Phi3": TinyModel("Phi3Config"),
    "Gemma": TinyModel("GemmaConfig", TIED),
    "Nemotron": TinyModel("NemotronConfig"),
    "Apertus": TinyModel("ApertusConfig"),
    "Arcee": TinyModel("ArceeConfig"),
    "SeedOss": TinyModel("SeedOssConfig"),
    "Ernie4.5": TinyModel("Ernie4_5Config"),
    "HunYuan dense": TinyModel("HunYuanDenseV1Config", written={"use_qk_norm": True}),
    "Helium": TinyModel("HeliumConfig"),
    "Ministral3": TinyModel(
        "Ministral3Config",
        SIZES
        | {
            "rope_parameters": YARN | QUERY_SCALING_ROPE,
        },
        written={"llama_4_scaling": QUERY_SCALING},
    ),
    # Norms before and after, sandwich or post-norm only.
    "Gemma2": TinyModel(
        "Gemma2Config",
        TIED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 32},
        written={"hidden_act": "gelu_pytorch_tanh"},
    ),
    "Gemma3": TinyModel("Gemma3TextConfig", TIED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 32}),
    "Glm": TinyModel("GlmConfig"),
    "Glm4": TinyModel("Glm4Config"),
    "OLMo": TinyModel("OlmoConfig", MULTI_HEAD),
    "OLMo2": TinyModel("Olmo2Config"),
    "OLMo3": TinyModel("Olmo3Config", SIZES | {"sliding_window": WINDOW}),
    "Exaone4": TinyModel(
        "Exaone4Config",
        SIZES | {"sliding_window": None, "layer_types": ["full_attention"] * NUM_LAYERS},
    ),
    "Exaone4, hybrid": TinyModel("Exaone4Config", SIZES | {"sliding_window": WINDOW, "sliding_window_pattern": 3}),
    "SmolLM3": TinyModel("SmolLM3Config"),
    # Attention and MLP in parallel, LayerNorm, other positions than rotary, other names for everything.
    "Cohere": TinyModel("CohereConfig", TIED),
    "Cohere2": TinyModel("Cohere2Config", TIED | {"sliding_window": WINDOW}),
    "StableLM": TinyModel("StableLmConfig"),
    "Phi": TinyModel("PhiConfig", MULTI_HEAD | {"intermediate_size": 4 * HIDDEN_SIZE}),
    "GPT-NeoX": TinyModel("GPTNeoXConfig", MULTI_HEAD),
    "GPT-J": TinyModel("GPTJConfig", GPT_SIZES | {"rotary_dim": 16}),
    "GPT2": TinyModel("GPT2Config", GPT_SIZES),
    "GPT-BigCode": TinyModel("GPTBigCodeConfig", GPT_SIZES),
    "OPT": TinyModel("OPTConfig", SIZES | {"ffn_dim": 256, "word_embed_proj_dim": HIDDEN_SIZE}),
    "Falcon": TinyModel(
        "FalconConfig",
        {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "num_key_value_heads", "head_dim")}
        | {"bias": False, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False},
    ),
    "Bloom": TinyModel("BloomConfig", GPT_SIZES | {"tie_word_embeddings": True, "hidden_size": HIDDEN_SIZE}),
    "Persimmon": TinyModel("PersimmonConfig", MULTI_HEAD),
    "StarCoder2": TinyModel("Starcoder2Config", SIZES | {"sliding_window": None}),
    # Mixtures of experts.
    "Mixtral": TinyModel("MixtralConfig", SIZES | {"num_local_experts": 4, "sliding_window": None}),
    "Qwen2-MoE": TinyModel("Qwen2MoeConfig", SIZES | SPARSE | {"shared_expert_intermediate_size": 64}),
    "Qwen3-MoE": TinyModel("Qwen3MoeConfig", SIZES | SPARSE | {"norm_topk_prob": True}),
    "OLMoE": TinyModel("OlmoeConfig", SIZES | SPARSE),
    "FlexOlmo": TinyModel("FlexOlmoConfig", SIZES | {"num_experts": 4, "num_experts_per_tok": 2}),
    "GraniteMoE": TinyModel("GraniteMoeConfig", SIZES | {"num_local_experts": 4}),
    "GraniteMoE, shared expert": TinyModel(
        "GraniteMoeSharedConfig", SIZES | {"num_local_experts": 4, "shared_intermediate_size": 64}
    ),
    "GraniteMoE hybrid, attention layers": TinyModel(
        "GraniteMoeHybridConfig",
        SIZES
        | {"num_local_experts": 4, "shared_intermediate_size": 64, "layer_types": ["attention"] * NUM_LAYERS}
        | {"mamba_n_heads": 8, "mamba_d_head": 32},
    ),
    "GPT-OSS": TinyModel(
        "GptOssConfig",
        SIZES | {"num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": WINDOW},
    ),
    "GPT-OSS, bfloat16": TinyModel(
        "GptOssConfig",
        SIZES | {"num_local_experts": 4, "num_experts_per_tok": 4, "sliding_window": WINDOW},
        dtype="bfloat16",
    ),
    "Glm4-MoE": TinyModel("Glm4MoeConfig", SIZES | DEEPSEEK_SPARSE),
    "Glm4-MoE lite": _latent(
        "Glm4MoeLiteConfig",
        DEEPSEEK_FILE,
        routed_scaling_factor=1.0,  # vLLM's CPU kernels do not apply it here
    ),
    "Ernie4.5-MoE": TinyModel(
        "Ernie4_5_MoeConfig",
        SIZES
        | {"moe_intermediate_size": 64, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}
        | {"moe_layer_start_index": 1, "moe_layer_end_index": NUM_LAYERS - 1, "moe_layer_interval": 1},
    ),
    "Dots1": TinyModel("Dots1Config", SIZES | DEEPSEEK_SPARSE, written=DEEPSEEK_FILE),
    "MiniMax-M2": TinyModel(
        "MiniMaxM2Config",
        SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": HEAD_DIM},
        written={"scoring_func": "sigmoid", "rotary_dim": HEAD_DIM, "use_routing_bias": True},
    ),
    "PhiMoE": TinyModel(
        "PhimoeConfig",
        SIZES | {"num_local_experts": 4, "sliding_window": None, "attention_bias": True, "lm_head_bias": True},
        written={"architectures": ["PhiMoEForCausalLM"]},
    ),
    "Afmoe": TinyModel(
        "AfmoeConfig",
        SIZES | SPARSE | {"num_dense_layers": 1, "num_shared_experts": 1, "sliding_window": WINDOW},
        written={"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    ),
    "Llama4": TinyModel(
        "Llama4TextConfig",
        SIZES
        | {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 256}
        | {"interleave_moe_layer_step": 2, "attention_chunk_size": 128, "attn_temperature_tuning": False},
    ),
    "Dbrx": TinyModel(
        "DbrxConfig",
        TOKENS
        | {"d_model": HIDDEN_SIZE, "n_layers": NUM_LAYERS, "n_heads": NUM_HEADS, "max_seq_len": 4096}
        | {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    # Latent attention.
    "DeepSeek-V2": _latent(
        "DeepseekV2Config",
        rope_scaling=PLAIN_YARN,
        topk_method="greedy",
        scoring_func="softmax",
        norm_topk_prob=False,
        moe_layer_freq=1,
    ),
    "DeepSeek-V3": _latent("DeepseekV3Config", DEEPSEEK_FILE),
    "DeepSeek-V3, query scaling": _latent(
        "DeepseekV3Config",
        DEEPSEEK_FILE | {"llama_4_scaling": QUERY_SCALING},
    ),
    # Layers of several kinds in one model; convolutions and recurrences.
    "LFM2": TinyModel(
        "Lfm2Config",
        SIZES
        | {"conv_dim": HIDDEN_SIZE, "conv_dim_out": HIDDEN_SIZE, "block_dim": HIDDEN_SIZE, "conv_L_cache": 3}
        | {"block_ff_dim": 256, "block_auto_adjust_ff_dim": False, "block_norm_eps": 1e-5, "block_use_swiglu": True}
        | {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
        written={"conv_dim": HIDDEN_SIZE, "conv_dim_out": HIDDEN_SIZE, "block_dim": HIDDEN_SIZE},
        engine_args=PLAIN_ROTARY,
    ),
    "Qwen3-Next": TinyModel(
        "Qwen3NextConfig",
        SIZES
        | {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64}
        | {"shared_expert_intermediate_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
        dtype="bfloat16",
    ),
    "Nemotron-H, attention and MLP layers": TinyModel(
        "NemotronHConfig",
        SIZES
        | {"hybrid_override_pattern": "*-*-*-", "layers_block_type": ["attention", "mlp"] * 3}
        | {"mamba_num_heads": 8, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2},
    ),
    "OLMo hybrid": TinyModel("OlmoHybridConfig"),
    "Jamba": TinyModel(
        "JambaConfig",
        SIZES
        | {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"use_mamba_kernels": False},
    ),
    "Mamba": TinyModel("MambaConfig", TOKENS | {"hidden_size": HIDDEN_SIZE, "num_hidden_layers": NUM_LAYERS}),
    # Several streams.
    "Gemma3n": TinyModel(
        "Gemma3nTextConfig",
        TIED
        | {"vocab_size_per_layer_input": VOCABULARY_SIZE, "hidden_size_per_layer_input": 16, "sliding_window": WINDOW}
        | {"num_kv_shared_layers": 2, "laurel_rank": 8, "activation_sparsity_pattern": [0.0] * NUM_LAYERS}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2},
    ),
    "Gemma4": TinyModel(
        "Gemma4TextConfig",
        SIZES
        | {"sliding_window": WINDOW, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0}
        | {"vocab_size_per_layer_input": VOCABULARY_SIZE, "global_head_dim": HEAD_DIM},
    ),
    # Looped.
    "HRM": TinyModel("HrmTextConfig", MULTI_HEAD),
}


def make_text(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint and tokenizer of `TEXT_MODELS[name]` into `folder`; return `folder`.

    Raises AttributeError if the installed transformers does not have the architecture.
    """
    import transformers

    tiny = TEXT_MODELS[name]
    config = getattr(transformers, tiny.config)(**tiny.fields)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, seed)
    model.to(getattr(torch, tiny.dtype)).save_pretrained(folder)
    write_tokenizer(folder)
    if tiny.written:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | tiny.written, indent=1))
    return folder
