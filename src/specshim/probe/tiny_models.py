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
