"""Tiny random-weight verifier models with a tokenizer, written by the installed transformers.

The weights are larger than an untrained model's usual ones, so that every layer changes the residual stream much: a
wrong layer, row or prompt is then off by far more than any rounding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

VOCABULARY_SIZE = 512
NUM_LAYERS = 6
HIDDEN_SIZE = 128
# vLLM's CPU attention kernels refuse head dimensions under 32.
NUM_HEADS = 4
HEAD_DIM = 32


def make_llama(folder: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a Llama of 6 layers, hidden size 128 and 512 tokens with its tokenizer into `folder`; return `folder`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=256,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(dtype)
    randomise(model, seed)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def randomise(model: Any, seed: int) -> None:
    """Fill matrices with 0.08 * N(0, 1) and add 0.1 * N(0, 1) to vectors (norm weights, biases), reproducibly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.dim() > 1:
                parameter.copy_(0.08 * noise)
            else:
                parameter.add_(0.1 * noise)


def write_tokenizer(folder: Path, vocabulary_size: int = VOCABULARY_SIZE) -> None:
    """Write a word-level tokenizer: `t<n>` is token n; 0, 1 and 2 are unknown, begin and end."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = ["<unk>", "<s>", "</s>"]
    words = special + [f"t{n}" for n in range(len(special), vocabulary_size)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        # The one class name that transformers 4 and 5 both read.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


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
