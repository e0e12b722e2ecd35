"""Tiny models with random weights, written by the installed transformers: nothing is downloaded.

One file per family group; `text` and `wrappers` hold tables of architectures.
"""

from __future__ import annotations

from specshim.probe.tiny_models.base import (
    HEAD_DIM,
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_LAYERS,
    VOCABULARY_SIZE,
    randomise,
    write_tokenizer,
)
from specshim.probe.tiny_models.kimi import MEDIA_TOKEN, make_kimi_k25
from specshim.probe.tiny_models.llama import make_llama

__all__ = [
    "HEAD_DIM",
    "HIDDEN_SIZE",
    "MEDIA_TOKEN",
    "NUM_HEADS",
    "NUM_LAYERS",
    "VOCABULARY_SIZE",
    "make_kimi_k25",
    "make_llama",
    "randomise",
    "write_tokenizer",
]
