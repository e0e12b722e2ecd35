"""Kimi-K2.5: a vision wrapper around a DeepSeek-V3 decoder."""

from __future__ import annotations

import json
from pathlib import Path

from specshim.probe.tiny_models.base import HIDDEN_SIZE, NUM_HEADS, VOCABULARY_SIZE, randomise, write_tokenizer


def make_kimi_k25(folder: Path, seed: int = 0) -> Path:
    """Write a Kimi-K2.5 (vision wrapper around a DeepSeek-V3 decoder) of 4 layers; its decoder alone in `folder/text`.

    The decoder lies at `language_model.model.layers` of vLLM's model. `folder/text` holds the same weights as a plain
    DeepseekV3ForCausalLM, which transformers can run as the reference. The vision tower has no weights: extract with
    `limit_mm_per_prompt={"vision_chunk": 0}`, text prompts only.
    """
    from safetensors.torch import load_file, save_file
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_HEADS,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=512,
        q_lora_rank=64,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        max_position_embeddings=4096,
        rope_scaling={
            "rope_type": "yarn",
            "type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    text = folder / "text"
    model = DeepseekV3ForCausalLM(config)
    randomise(model, seed)
    model.save_pretrained(text)
    # What transformers leaves out of the file and vLLM's DeepSeek-V3 reads.
    text_config = json.loads((text / "config.json").read_text())
    text_config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}
    (text / "config.json").write_text(json.dumps(text_config, indent=1))

    weights = {f"language_model.{name}": w.clone() for name, w in load_file(text / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    wrapper = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "float32",
        "torch_dtype": "float32",
        "text_config": text_config,
        "vision_config": {
            "model_type": "kimi_k25_vision",
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "intermediate_size": 128,
            "vt_hidden_size": 64,
            "text_hidden_size": HIDDEN_SIZE,
        },
        "media_placeholder_token_id": MEDIA_TOKEN,
        "image_token_id": MEDIA_TOKEN,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(wrapper, indent=1))
    (folder / "image_processing_tiny.py").write_text(_IMAGE_PROCESSOR)
    processor = {
        "auto_map": {"AutoImageProcessor": "image_processing_tiny.TinyImageProcessor"},
        "image_processor_type": "TinyImageProcessor",
        "media_proc_cfg": {
            "patch_size": 14,
            "merge_kernel_size": 2,
            "temporal_merge_kernel_size": 1,
            "in_patch_limit": 64,
            "in_patch_limit_each_frame": 64,
            "in_patch_limit_video": 64,
            "patch_limit_on_one_side": 16,
            "fixed_output_tokens": None,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1))
    write_tokenizer(folder)
    return folder


MEDIA_TOKEN = VOCABULARY_SIZE - 1

# vLLM's Kimi processing asks a remote-code image processor for its token counts, also when no image may come.
_IMAGE_PROCESSOR = """
from transformers.image_processing_utils import BaseImageProcessor


class TinyImageProcessor(BaseImageProcessor):
    num_frames_per_chunk = 1

    def __init__(self, media_proc_cfg=None, **kwargs):
        super().__init__(**kwargs)
        self.media_proc_cfg = media_proc_cfg or {}

    def media_tokens_calculator(self, media):
        return 1
"""
