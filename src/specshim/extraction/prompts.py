"""Check prompts before any engine work, so that bad input is an error that names its prompt and changes nothing."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import torch

from specshim.errors import SpecshimWarning


def check_prompts(token_ids: Any, *, vocabulary_size: int, max_prompt_length: int) -> list[list[int]]:
    """Return the prompts as lists of ints, cut to `max_prompt_length` tokens.

    `token_ids` is a 2-D integer tensor (prompts x tokens), or a sequence whose items are sequences of ints or 1-D
    integer tensors. Over-long prompts are cut, as speculators does, with one warning that counts them.

    Raises ValueError for no prompts, an empty prompt, a token id outside [0, vocabulary_size) or a tensor of another
    shape; TypeError for anything that is not an integer. The message names the prompt's index and the limit.
    """
    if isinstance(token_ids, torch.Tensor):
        if token_ids.dim() != 2:
            raise ValueError(
                f"token_ids must be a 2-D tensor (prompts x tokens) or a list of prompts, "
                f"but it is a {token_ids.dim()}-D tensor of shape {tuple(token_ids.shape)}"
            )
        rows: list[Any] = list(token_ids)
    elif isinstance(token_ids, (str, bytes, dict)) or not hasattr(token_ids, "__iter__"):
        raise TypeError(f"token_ids must be a list of prompts or a 2-D tensor, not {type(token_ids).__name__}")
    else:
        rows = list(token_ids)
    if not rows:
        raise ValueError("token_ids cannot be empty: give at least one prompt")

    prompts = [_check_prompt(index, row, vocabulary_size) for index, row in enumerate(rows)]
    cut = sum(len(prompt) > max_prompt_length for prompt in prompts)
    if cut:
        warnings.warn(
            f"{cut} of {len(prompts)} prompts are longer than max_model_len - 1 = {max_prompt_length} tokens and "
            "were cut to that length; give a larger max_model_len to keep them whole",
            SpecshimWarning,
            stacklevel=4,
        )
        prompts = [prompt[:max_prompt_length] for prompt in prompts]
    return prompts


def _check_prompt(index: int, row: Any, vocabulary_size: int) -> list[int]:
    if isinstance(row, torch.Tensor):
        if row.dim() != 1:
            raise ValueError(f"prompt {index} must be a 1-D tensor of token ids, but has shape {tuple(row.shape)}")
        if row.is_floating_point() or row.is_complex() or row.dtype == torch.bool:
            raise TypeError(f"prompt {index} must hold integers, but is a tensor of {row.dtype}")
        tokens: list[Any] = row.tolist()
    elif isinstance(row, (str, bytes, dict)) or not hasattr(row, "__iter__"):
        raise TypeError(f"prompt {index} must be a list or 1-D tensor of token ids, not {type(row).__name__}")
    else:
        tokens = list(row)
    if not tokens:
        raise ValueError(f"prompt {index} is empty: every prompt needs at least one token")
    # Almost every prompt is a list of plain ints, which needs no look at each token in Python.
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocabulary_size:
        return tokens
    return [_check_token(index, position, token, vocabulary_size) for position, token in enumerate(tokens)]


def _check_token(index: int, position: int, token: Any, vocabulary_size: int) -> int:
    value = _as_int(token)
    if value is None:
        raise TypeError(f"prompt {index} has {token!r} at position {position}, which is not an integer token id")
    if not 0 <= value < vocabulary_size:
        raise ValueError(
            f"prompt {index} has token id {value} at position {position}, "
            f"outside the model's vocabulary [0, {vocabulary_size})"
        )
    return value


def _as_int(value: Any) -> int | None:
    """Return an integer of any kind (numpy's, a 0-D tensor's) as an int; None for a bool, a float or anything else."""
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return None
    return int(value)


def check_layer_ids(layer_ids: Any, num_layers: int) -> list[int]:
    """Return the layer ids as a list of ints in the caller's order, duplicates kept.

    Raises TypeError for a non-integer and ValueError for none at all or an id outside [0, num_layers).
    """
    if isinstance(layer_ids, torch.Tensor):
        layer_ids = layer_ids.tolist()
    if isinstance(layer_ids, (str, bytes)) or not hasattr(layer_ids, "__iter__"):
        raise TypeError(f"layer_ids must be a list of integers, not {type(layer_ids).__name__}")
    checked = []
    for layer_id in layer_ids:
        value = _as_int(layer_id)
        if value is None:
            raise TypeError(f"layer_ids holds {layer_id!r}, which is not an integer")
        if not 0 <= value < num_layers:
            raise ValueError(f"Layer index {value} out of bounds [0, {num_layers - 1}]")
        checked.append(value)
    if not checked:
        raise ValueError("layer_ids cannot be empty: name at least one decoder layer, or pass None for the default")
    return checked
