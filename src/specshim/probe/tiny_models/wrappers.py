"""Multimodal wrappers around a language model: the configurations, and where vLLM's model has the decoder.

`WRAPPERS` maps a name to a `TinyWrapper`; `make_wrapper` writes its checkpoint. The towers have as many layers as the
decoder, so that counting layers is not enough to tell them apart. Prompts are text only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specshim.probe.tiny_models.base import HEAD_DIM, NUM_LAYERS, VOCABULARY_SIZE, randomise, write_tokenizer
from specshim.probe.tiny_models.text import SIZES, TIED

# The last tokens of the vocabulary stand for the parts of an image.
PLACEHOLDERS = {
    VOCABULARY_SIZE - 1: "<image>",
    VOCABULARY_SIZE - 2: "<video>",
    VOCABULARY_SIZE - 3: "<image_start>",
    VOCABULARY_SIZE - 4: "<image_end>",
    VOCABULARY_SIZE - 5: "<image_row>",
    VOCABULARY_SIZE - 6: "<image_column>",
}
IMAGE, VIDEO, START, END = (VOCABULARY_SIZE - n for n in (1, 2, 3, 4))
FIRST_PLACEHOLDER = VOCABULARY_SIZE - len(PLACEHOLDERS)

TOWER = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
QWEN_TOWER = {
    "depth": NUM_LAYERS,
    "hidden_size": 64,
    "embed_dim": 64,
    "out_hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "fullatt_block_indexes": [1],
    "deepstack_visual_indexes": [1, 2, 3],
    "num_position_embeddings": 64,
}
QWEN_TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
# Text prompts have three equal positions for each token, which these sections of the rotary half-dimension share.
SECTIONS = {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}


@dataclass(frozen=True)
class TinyWrapper:
    """One wrapper: its transformers config class, its parts, and the path of the decoder in vLLM's model."""

    config: str
    text: dict[str, Any]
    vision: dict[str, Any]
    decoder: str = "language_model.model.layers"
    fields: dict[str, Any] = field(default_factory=dict)
    modalities: tuple[str, ...] = ("image",)
    auto_class: str = "AutoModelForImageTextToText"
    # The part of transformers' model that runs on text alone, where the whole one wants pictures.
    reference_part: str = ""
    # vLLM asks some processors for token counts also when no picture may come.
    image_processor: str = ""


LLAMA = SIZES | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
QWEN2 = SIZES | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
CLIP = TOWER | {"model_type": "clip_vision_model", "projection_dim": 64}
SIGLIP = TOWER | {"model_type": "siglip_vision_model"}

WRAPPERS: dict[str, TinyWrapper] = {
    "LLaVA, wrapper": TinyWrapper(
        "LlavaConfig", LLAMA, CLIP, fields={"image_token_index": IMAGE, "image_seq_length": 16}
    ),
    "LLaVA-NeXT, wrapper": TinyWrapper(
        "LlavaNextConfig",
        LLAMA,
        CLIP,
        fields={"image_token_index": IMAGE, "image_seq_length": 16, "image_grid_pinpoints": [[56, 56]]},
    ),
    "Mistral3, wrapper": TinyWrapper(
        "Mistral3Config",
        SIZES | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
        TOWER | {"model_type": "pixtral", "head_dim": HEAD_DIM, "image_size": 112},
        fields={"image_token_index": IMAGE, "spatial_merge_size": 2},
    ),
    "Gemma3, wrapper": TinyWrapper(
        "Gemma3Config",
        TIED | {"model_type": "gemma3_text", "sliding_window": 32, "query_pre_attn_scalar": 32},
        SIGLIP | {"vision_use_head": False},
        fields={"mm_tokens_per_image": 4, "image_token_index": IMAGE, "boi_token_index": START, "eoi_token_index": END},
    ),
    "Idefics3, wrapper": TinyWrapper(
        "Idefics3Config",
        LLAMA,
        TOWER | {"model_type": "idefics3_vision"},
        decoder="model.text_model.layers",
        fields={"image_token_id": IMAGE, "scale_factor": 2},
    ),
    "SmolVLM, wrapper": TinyWrapper(
        "SmolVLMConfig",
        LLAMA,
        TOWER | {"model_type": "smolvlm_vision"},
        decoder="model.text_model.layers",
        fields={"image_token_id": IMAGE, "scale_factor": 2},
    ),
    "AyaVision, wrapper": TinyWrapper(
        "AyaVisionConfig",
        TIED | {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], "sliding_window": 4096},
        SIGLIP | {"vision_use_head": False},
        fields={"image_token_index": IMAGE, "downsample_factor": 2},
        image_processor="GotOcr2ImageProcessor",
    ),
    "BLIP-2, wrapper": TinyWrapper(
        "Blip2Config",
        SIZES | {"model_type": "opt", "architectures": ["OPTForCausalLM"], "ffn_dim": 256, "word_embed_proj_dim": 128},
        TOWER | {"model_type": "blip_2_vision_model"},
        decoder="language_model.model.decoder.layers",
        reference_part="language_model",
        fields={
            "qformer_config": TOWER | {"encoder_hidden_size": 64, "vocab_size": 64},
            "num_query_tokens": 4,
            "image_token_index": IMAGE,
        },
    ),
    "InternVL, wrapper": TinyWrapper(
        "InternVLConfig",
        QWEN2,
        TOWER | {"model_type": "internvl_vision", "image_size": [56, 56], "patch_size": [14, 14]},
        fields={"image_token_id": IMAGE, "image_seq_length": 4},
        modalities=("image", "video"),
    ),
    "Qwen2-VL, wrapper": TinyWrapper(
        "Qwen2VLConfig",
        SIZES | {"model_type": "qwen2_vl_text", "rope_scaling": SECTIONS},
        QWEN_TOWER | {"model_type": "qwen2_vl", "hidden_size": 128},
        fields=QWEN_TOKENS,
        modalities=("image", "video"),
    ),
    "Qwen2.5-VL, wrapper": TinyWrapper(
        "Qwen2_5_VLConfig",
        SIZES | {"model_type": "qwen2_5_vl_text", "rope_scaling": SECTIONS},
        QWEN_TOWER | {"model_type": "qwen2_5_vl"},
        fields=QWEN_TOKENS,
        modalities=("image", "video"),
    ),
    "Qwen3-VL, wrapper": TinyWrapper(
        "Qwen3VLConfig",
        SIZES | {"model_type": "qwen3_vl_text", "rope_scaling": SECTIONS | {"mrope_interleaved": True}},
        QWEN_TOWER | {"model_type": "qwen3_vl"},
        fields=QWEN_TOKENS,
        modalities=("image", "video"),
    ),
    "Llama 4, wrapper": TinyWrapper(
        "Llama4Config",
        SIZES
        | {"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 256}
        | {"interleave_moe_layer_step": 2, "attention_chunk_size": 128, "attn_temperature_tuning": False},
        TOWER
        | {"model_type": "llama4_vision_model", "vision_output_dim": 64, "projector_input_dim": 64}
        | {"projector_output_dim": 64, "pixel_shuffle_ratio": 0.5},
        fields={"image_token_index": IMAGE, "boi_token_index": START, "eoi_token_index": END},
    ),
}


def make_wrapper(name: str, folder: Path, seed: int = 0) -> Path:
    """Write the checkpoint, tokenizer and processor of `WRAPPERS[name]` into `folder`; return `folder`.

    Raises AttributeError if the installed transformers does not have the architecture.
    """
    import transformers

    tiny = WRAPPERS[name]
    config = getattr(transformers, tiny.config)(
        text_config=dict(tiny.text), vision_config=dict(tiny.vision), tie_word_embeddings=False, **tiny.fields
    )
    model = getattr(transformers, tiny.auto_class).from_config(config)
    randomise(model, seed)
    model.save_pretrained(folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    # vLLM chooses the language model by this, and transformers does not write it.
    if "architectures" in tiny.text:
        written["text_config"]["architectures"] = tiny.text["architectures"]
    path.write_text(json.dumps(written, indent=1))
    if tiny.image_processor:
        processor = {"image_processor_type": tiny.image_processor}
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    write_tokenizer(folder, names=PLACEHOLDERS)
    return folder
