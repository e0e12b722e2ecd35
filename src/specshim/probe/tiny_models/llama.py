"""Llama, the model of the run-time suite and the demonstration."""

from __future__ import annotations

from pathlib import Path

import torch

from specshim.probe.tiny_models.base import (
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_LAYERS,
    VOCABULARY_SIZE,
    randomise,
    write_tokenizer,
)


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
