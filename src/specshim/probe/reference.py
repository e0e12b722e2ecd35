"""The yardstick: transformers' forward of the same weights, one prompt at a time, hooks on its decoder layers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from specshim.extraction.decoder_layers import find_decoder

# float32 against float32. Two kernels that add in another order differ by about 1e-6 of the largest value in a row
# after six layers (5e-6 was the worst seen); a wrong row, layer or prompt differs by about 1. So 1e-4 is far from both.
RELATIVE_TOLERANCE = 1e-4

# A state is rounded to the model's dtype several times a layer; a wrong row is off by about 1 in any dtype.
TOLERANCES = {"float32": RELATIVE_TOLERANCE, "float16": 0.02, "bfloat16": 0.1}


class Reference:
    """Hidden states after each decoder layer, by transformers, float32, eager attention, on the CPU."""

    def __init__(self, model_path: str | Path, auto_class: str = "AutoModelForCausalLM") -> None:
        """Load the model at `model_path` with that auto class of transformers (wrappers need another than text)."""
        import transformers

        auto = getattr(transformers, auto_class)
        self.model: Any = auto.from_pretrained(model_path, attn_implementation="eager").float().eval()
        text_config = self.model.config.get_text_config()
        self.layers: Iterable[Any] = find_decoder(self.model, text_config.num_hidden_layers).layers
        self._cache: dict[tuple[int, ...], list[torch.Tensor]] = {}

    def states(self, prompt: Iterable[int]) -> list[torch.Tensor]:
        """Return one (tokens, hidden size) tensor per decoder layer: the residual stream after it, before the norm."""
        key = tuple(prompt)
        if key not in self._cache:
            self._cache[key] = self._forward(list(key))
        return self._cache[key]

    def forget_model(self) -> None:
        """Free the weights; states that were computed already stay available."""
        self.model, self.layers = None, []

    def _forward(self, prompt: list[int]) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []

        def hook(_module: Any, _args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            found.append(hidden.reshape(-1, hidden.shape[-1]).detach().clone())

        handles = [layer.register_forward_hook(hook) for layer in self.layers]
        try:
            with torch.inference_mode():
                self.model(input_ids=torch.tensor([prompt]))
        finally:
            for handle in handles:
                handle.remove()
        return found


def max_abs_error(result: dict[str, Any], layer_ids: list[int], reference: list[torch.Tensor]) -> float:
    """Return the largest absolute difference of a generator's result from the reference, over layers and rows."""
    errors: list[float] = [
        (states.float() - reference[layer_id]).abs().max().item()
        for layer_id, states in zip(layer_ids, result["hidden_states"], strict=True)
    ]
    return max(errors)


def max_relative_error(result: dict[str, Any], layer_ids: list[int], reference: list[torch.Tensor]) -> float:
    """Return the largest difference relative to the largest value of its row, over layers and rows.

    Shapes that differ count as infinitely wrong.
    """
    worst = 0.0
    for layer_id, states in zip(layer_ids, result["hidden_states"], strict=True):
        expected = reference[layer_id]
        if states.shape != expected.shape:
            return float("inf")
        scale = expected.abs().amax(dim=-1)
        worst = max(worst, ((states.float() - expected).abs().amax(dim=-1) / scale).max().item())
    return worst
