"""What speculators imports from `transformers.modeling_attn_mask_utils`, for releases without that module."""

from __future__ import annotations

from typing import Any

__all__ = ["_prepare_4d_causal_attention_mask"]


def _prepare_4d_causal_attention_mask(
    attention_mask: Any,
    input_shape: Any,
    inputs_embeds: Any,
    past_key_values_length: int,
    sliding_window: int | None = None,
) -> Any:
    """Return the additive causal mask of shape (batch, 1, query, key) in the dtype of `inputs_embeds`.

    `attention_mask` has shape (batch, key) with 0 for padding, or is None; `input_shape` is (batch, query); key is
    query plus `past_key_values_length`. Hidden positions hold the dtype's lowest value, visible ones 0.
    """
    import torch

    batch, query = input_shape[0], input_shape[-1]
    key = query + past_key_values_length
    device = inputs_embeds.device
    query_position = torch.arange(past_key_values_length, key, device=device).unsqueeze(1)
    key_position = torch.arange(key, device=device).unsqueeze(0)
    visible = key_position <= query_position
    if sliding_window is not None:
        visible &= key_position > query_position - sliding_window
    visible = visible.expand(batch, 1, query, key)
    if attention_mask is not None:
        visible = visible & attention_mask.to(device).bool()[:, None, None, :]
    lowest = torch.finfo(inputs_embeds.dtype).min
    return torch.zeros((batch, 1, query, key), dtype=inputs_embeds.dtype, device=device).masked_fill(~visible, lowest)
