"""What all tiny models share: sizes, reproducible random weights, and a tokenizer without a download."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

VOCABULARY_SIZE = 512
NUM_LAYERS = 6
HIDDEN_SIZE = 128
# vLLM's CPU attention kernels refuse head dimensions under 32.
NUM_HEADS = 4
HEAD_DIM = 32

# Their initial values keep a recurrence stable, fit into the bfloat16 in which some activations keep them, or do not
# correct the choice of experts (vLLM's CPU kernels ignore some corrections).
_KEPT = ("A_log", "dt_bias", "conv1d", "act_fn", "moe_statics")


def randomise(model: Any, seed: int) -> None:
    """Fill matrices with 0.08 * N(0, 1) and add 0.1 * N(0, 1) to vectors (norm weights, biases), reproducibly.

    Parameters of state-space recurrences and of activations keep their initial values.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(kept in name for kept in _KEPT):
                continue
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.dim() > 1:
                parameter.copy_(0.08 * noise)
            else:
                parameter.add_(0.1 * noise)


def write_tokenizer(
    folder: Path, vocabulary_size: int = VOCABULARY_SIZE, names: Mapping[int, str] | None = None
) -> None:
    """Write a word-level tokenizer: `t<n>` is token n; 0, 1 and 2 are unknown, begin and end.

    `names` gives other names to some tokens, such as placeholders of images; they are special tokens.
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    special = {0: "<unk>", 1: "<s>", 2: "</s>"} | dict(names or {})
    words = [special.get(n, f"t{n}") for n in range(vocabulary_size)]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if names:
        tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in names.values()])
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
