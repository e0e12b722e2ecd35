"""Find out from one step what each decoder layer's output means, by what the model itself computes from it.

The final norm runs on the residual stream after the last layer, and in most models the first norm of a layer runs on
the stream after the layer before. So of the readings of a layer's output, the right one is the one that such a norm
turns into the output that the model got from it. Layers without such a norm of their own (post-norm models) take the
rule of their class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from specshim.errors import CaptureError
from specshim.extraction import residual_stream
from specshim.extraction.decoder_layers import Decoder

Readings = dict[str, torch.Tensor]


@dataclass
class _NormCall:
    """A norm that ran after `layer_id` and before the next layer ended, and its output (tokens, hidden size)."""

    norm: nn.Module
    name: str
    output: torch.Tensor


@dataclass
class Calibration:
    """Collects, in one step, what the layers returned and what the norms made of it."""

    decoder: Decoder
    readings: dict[int, Readings] = field(default_factory=dict)
    _calls: dict[int, list[_NormCall]] = field(default_factory=lambda: defaultdict(list))
    _identical: set[str] = field(default_factory=set)
    _last_finished: int | None = None

    def clear(self) -> None:
        """Forget what was collected."""
        self.readings.clear()
        self._calls.clear()
        self._identical.clear()
        self._last_finished = None

    def layer_returned(self, layer_id: int, readings: Readings) -> None:
        """Take the readings of a layer's output: copies, as the next fused norm writes into the output."""
        self.readings[layer_id] = readings
        self._last_finished = layer_id

    def norm_returned(self, name: str, norm: nn.Module, output: Any, tokens: int) -> None:
        """Take a norm's output if it has one row of hidden size for each token (norms of heads and latents do not)."""
        if self._last_finished is None:
            return
        tensor = output[0] if isinstance(output, (tuple, list)) else output
        if not isinstance(tensor, torch.Tensor):
            return
        rows = tensor.squeeze(0) if tensor.dim() == 3 and tensor.shape[0] == 1 else tensor
        stream = next(iter(self.readings[self._last_finished].values()))
        if rows.dim() == 2 and rows.shape[0] >= tokens and rows.shape[1] == stream.shape[1]:
            self._calls[self._last_finished].append(_NormCall(norm, name, rows[:tokens].clone()))

    def received(self, tensors: Any) -> None:
        """Take what a module beside the layers was given, or what the decoder returned, after the last layer.

        If that is exactly one tensor of the stream's shape, and exactly one reading, then that reading is the stream:
        so models without a final norm are proven too.
        """
        if self._last_finished != len(self.decoder.layers) - 1:
            return
        readings = self.readings[self._last_finished]
        shape = next(iter(readings.values())).shape
        given = []
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                rows = tensor.squeeze(0) if tensor.dim() == 3 and tensor.shape[0] == 1 else tensor
                if rows.dim() == 2 and rows.shape[0] >= shape[0] and rows.shape[1] == shape[1]:
                    given.append(rows[: shape[0]])
        if len(given) == 1:
            self._identical.update(rule for rule, stream in readings.items() if torch.equal(stream, given[0]))

    def rules(self, layer_ids: Sequence[int], last_layer_id: Sequence[int]) -> dict[int, str]:
        """Return layer id -> rule for every layer of `layer_ids` whose rule is proven on this pipeline stage.

        `last_layer_id` is empty on a stage that does not hold the last layer. Raises CaptureError if proofs contradict
        each other, or if the last layer is here and it or another layer stays without proof.
        """
        proven = {layer_id: rule for layer_id in self.readings if (rule := self._proven(layer_id)) is not None}
        by_class: dict[str, set[str]] = defaultdict(set)
        for layer_id, rule in proven.items():
            by_class[self.decoder.layer_class(layer_id)].add(rule)
        for layer_class, rules in by_class.items():
            if len(rules) > 1:
                raise CaptureError(
                    f"layers of class {layer_class} contradict each other: the norms after them take "
                    f"{' and '.join(sorted(rules))}. The residual stream of this architecture is not known, and no "
                    "states were returned."
                )
        for layer_id in last_layer_id:
            if layer_id not in proven:
                raise CaptureError(self._why_not(layer_id))
        chosen = {}
        for layer_id in layer_ids:
            rule = next(iter(by_class[self.decoder.layer_class(layer_id)]), None)
            if rule in self.readings[layer_id]:
                chosen[layer_id] = rule
            elif last_layer_id:
                raise CaptureError(self._why_not(layer_id))
        return chosen

    def _proven(self, layer_id: int) -> str | None:
        found: set[str] = set()
        for call in self._calls[layer_id]:
            errors = residual_stream.norm_errors(self.readings[layer_id], call.norm, call.output)
            fitting = residual_stream.fitting_rules(errors, call.output.dtype)
            if len(fitting) > 1:
                return None
            found.update(fitting)
        if not found and layer_id == len(self.decoder.layers) - 1:
            found = self._identical
        return next(iter(found)) if len(found) == 1 else None

    def _why_not(self, layer_id: int) -> str:
        readings = self.readings[layer_id]
        layer = f"{self.decoder.path}.{layer_id} ({self.decoder.layer_class(layer_id)})"
        calls = self._calls[layer_id]
        if not calls:
            return (
                f"no norm of the hidden size ran after decoder layer {layer}, so nothing proves which of "
                f"{', '.join(readings)} is the residual stream. No states were returned."
            )
        measured = "; ".join(
            f"{call.name}: "
            + ", ".join(
                f"{rule} off by {largest:.1e}"
                for rule, (largest, _) in residual_stream.norm_errors(readings, call.norm, call.output).items()
            )
            for call in calls
        )
        return (
            f"no single reading of the output of decoder layer {layer} reproduces what the model's norms made of it "
            f"({measured}). The residual stream of this architecture is not known, and no states were returned."
        )
