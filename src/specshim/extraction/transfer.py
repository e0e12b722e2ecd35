"""Carry hidden states between processes as plain bytes.

Pickling a torch tensor goes through torch's own storage serialisation; its bytes as one numpy array cost one copy.
"""

from __future__ import annotations

from typing import Any

import torch

Packed = tuple[str, tuple[int, ...], Any]


def pack(tensor: torch.Tensor) -> Packed:
    """Return a contiguous CPU tensor as (dtype name, shape, bytes as a uint8 array)."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.view(torch.uint8).numpy()


def unpack(packed: Packed) -> torch.Tensor:
    """Return the tensor that `pack` was given."""
    dtype, shape, data = packed
    if not data.flags.writeable:
        data = data.copy()
    return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
