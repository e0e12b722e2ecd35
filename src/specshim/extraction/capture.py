"""Worker side: hook the decoder layers, cut each step's rows by request, keep them until the driver takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.errors import CaptureError
from specshim.extraction import residual_stream
from specshim.extraction.batch_order import order_reader, scheduled_positions
from specshim.extraction.decoder_layers import find_decoder


@dataclass
class RequestRows:
    """The rows of one request so far: for each captured layer a list of (tokens, hidden size) chunks on the host."""

    length: int = 0
    chunks: dict[int, list[torch.Tensor]] = field(default_factory=dict)

    def place(self, start: int, rows: dict[int, torch.Tensor]) -> None:
        """Add the rows that begin at position `start` of the prompt.

        A request that was preempted is computed again from an earlier position: the rows from there on are replaced.
        Raises CaptureError if rows would be missing in between.
        """
        if start > self.length:
            raise CaptureError(
                f"rows {self.length} to {start - 1} of a prompt were never computed in this worker (prefix caching or "
                "a KV connector served them), so its states are incomplete"
            )
        if start < self.length:
            self._cut(start)
        count = 0
        for layer_id, tensor in rows.items():
            self.chunks.setdefault(layer_id, []).append(tensor)
            count = tensor.shape[0]
        self.length = start + count

    def _cut(self, length: int) -> None:
        for layer_id, chunks in self.chunks.items():
            self.chunks[layer_id] = [torch.cat(chunks)[:length]] if length else []
        self.length = length

    def joined(self) -> dict[int, torch.Tensor]:
        """Return layer id -> one contiguous tensor of shape (tokens, hidden size)."""
        return {
            layer_id: chunks[0].contiguous() if len(chunks) == 1 else torch.cat(chunks)
            for layer_id, chunks in self.chunks.items()
        }


class HiddenStatesCapture:
    """Captures the residual stream after chosen decoder layers, for every request that a worker computes.

    `captures` is False on tensor-parallel ranks other than 0: all ranks hold the same residual stream, one delivers.
    """

    def __init__(self, runner: Any, layer_ids: list[int], num_layers: int, captures: bool) -> None:
        """Find the decoder, hook its layers and the runner's `execute_model`. Raises CaptureError if it cannot."""
        model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        self.decoder = find_decoder(model, num_layers)
        self.runner_kind, self._read_order = order_reader(runner)
        self.layer_ids = tuple(dict.fromkeys(layer_ids))
        self.held_layer_ids = tuple(i for i in self.layer_ids if self.decoder.is_held(i)) if captures else ()
        self.rule: str | None = None
        self.rows: dict[str, RequestRows] = {}
        self._last_layer_id = len(self.decoder.layers) - 1
        self._holds_last_layer = self.decoder.is_held(self._last_layer_id)
        self._runner = runner
        self._step_tokens = 0
        self._step_rows: dict[int, torch.Tensor] = {}
        self._readings: dict[int, dict[str, torch.Tensor]] = {}
        self._norm_outputs: list[tuple[torch.nn.Module, torch.Tensor]] = []
        self._hooks: list[Any] = []
        self._calibration_hooks: list[Any] = []
        if not captures:
            return
        self._original_execute_model: Callable[..., Any] = runner.execute_model
        runner.execute_model = self._execute_model
        for layer_id in self.held_layer_ids:
            self._hooks.append(self.decoder.layers[layer_id].register_forward_hook(self._layer_hook(layer_id)))
        if self._holds_last_layer:
            if self._last_layer_id not in self.held_layer_ids:
                hook = self._layer_hook(self._last_layer_id)
                last_layer = self.decoder.layers[self._last_layer_id]
                self._calibration_hooks.append(last_layer.register_forward_hook(hook))
            for _, norm in self.decoder.norms():
                self._calibration_hooks.append(norm.register_forward_hook(self._norm_hook))

    def remove(self) -> None:
        """Take every hook off again and forget all rows."""
        for hook in (*self._hooks, *self._calibration_hooks):
            hook.remove()
        self._hooks.clear()
        self._calibration_hooks.clear()
        if vars(self._runner).get("execute_model") == self._execute_model:
            del self._runner.execute_model
        self.rows.clear()

    def describe(self) -> dict[str, Any]:
        """Return what was found, in plain values: decoder path, layer class, runner kind, rule, layers held here."""
        held = next((layer for i, layer in enumerate(self.decoder.layers) if self.decoder.is_held(i)), None)
        return {
            "decoder": self.decoder.path,
            "layer_class": type(held).__qualname__,
            "runner": self.runner_kind,
            "rule": self.rule,
            "layer_ids": list(self.held_layer_ids),
        }

    def set_rule(self, rule: str) -> None:
        """Use the rule that another pipeline stage calibrated."""
        self.rule = rule

    # -- one step -----------------------------------------------------------------------------------------------

    def _execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._step_tokens = scheduler_output.total_num_scheduled_tokens
        try:
            output = self._original_execute_model(scheduler_output, *args, **kwargs)
            if self._step_tokens:
                self._finish_step(scheduler_output)
        finally:
            self._step_tokens = 0
            self._step_rows = {}
            self._readings = {}
            self._norm_outputs = []
        return output

    def _layer_hook(self, layer_id: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            if not self._step_tokens:
                return  # a warm-up or profiling run of vLLM's own
            if layer_id in self._step_rows or layer_id in self._readings:
                raise CaptureError(f"decoder layer {layer_id} ran more than once in one step; which pass is meant?")
            if self.rule is None:
                # The next layer's fused norm writes into both tensors of the pair, so every reading is copied now.
                readings = residual_stream.candidates(output)
                self._readings[layer_id] = {name: self._cut(layer_id, t).clone() for name, t in readings.items()}
            else:
                rows = self._cut(layer_id, residual_stream.apply_rule(self.rule, output))
                self._step_rows[layer_id] = rows if self.rule == residual_stream.SUM else rows.clone()

        return hook

    def _norm_hook(self, module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._step_tokens and self._last_layer_id in self._readings:
            tensor = output[0] if isinstance(output, (tuple, list)) else output
            rows = tensor.squeeze(0) if tensor.dim() == 3 else tensor
            self._norm_outputs.append((module, rows[: self._step_tokens].clone()))

    def _cut(self, layer_id: int, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] < self._step_tokens:
            raise CaptureError(
                f"decoder layer {layer_id} returned {rows.shape[0]} rows for a step of {self._step_tokens} tokens; "
                "sequence-parallel layers are not supported"
            )
        return rows[: self._step_tokens]  # what lies beyond is padding

    def _finish_step(self, scheduler_output: Any) -> None:
        if self.rule is None:
            self._calibrate()
            if self.rule is None:
                return  # this pipeline stage does not hold the final norm; the driver will bring the rule
        missing = [i for i in self.held_layer_ids if i not in self._step_rows]
        if missing:
            raise CaptureError(
                f"decoder layers {missing} ({self.decoder.path}) did not run as modules in this step, so nothing was "
                "captured: torch.compile or CUDA graphs replaced them. Use enforce_eager=True (the default)."
            )
        order = self._read_order(self._runner)
        counts = scheduler_output.num_scheduled_tokens
        if set(order) != set(counts) or sum(counts[r] for r in order) != self._step_tokens:
            raise CaptureError(
                f"the model runner's batch holds {len(order)} requests where {len(counts)} were scheduled, so rows "
                "cannot be told apart"
            )
        positions = scheduled_positions(scheduler_output)
        on_host = {layer_id: rows.to("cpu") for layer_id, rows in self._step_rows.items()}
        offset = 0
        for request_id in order:
            end = offset + counts[request_id]
            rows = {layer_id: tensor[offset:end] for layer_id, tensor in on_host.items()}
            self.rows.setdefault(request_id, RequestRows()).place(positions[request_id], rows)
            offset = end

    def _calibrate(self) -> None:
        """Choose the rule from this step's last layer and final norm, and turn the step's readings into rows."""
        if not self._holds_last_layer:
            return
        readings = self._readings.get(self._last_layer_id)
        if readings is None:
            raise CaptureError(
                f"the last decoder layer ({self.decoder.path}.{self._last_layer_id}) did not run as a module: "
                "torch.compile or CUDA graphs replaced it. Use enforce_eager=True (the default)."
            )
        if self._norm_outputs:
            self.rule = residual_stream.choose_rule(readings, *self._norm_outputs[0])
        elif len(readings) == 1:
            self.rule = next(iter(readings))
        else:
            raise CaptureError(
                f"no norm beside {self.decoder.path} ran after the last decoder layer, so nothing tells which of "
                f"{', '.join(readings)} is the residual stream"
            )
        for hook in self._calibration_hooks:
            hook.remove()
        self._calibration_hooks.clear()
        self._step_rows = {i: self._readings[i][self.rule] for i in self.held_layer_ids if i in self._readings}

    # -- handing over -------------------------------------------------------------------------------------------

    def take(self, request_ids: list[str]) -> dict[str, dict[int, torch.Tensor]]:
        """Return request id -> layer id -> rows on the host, for the requests that have rows here, and forget them."""
        taken = {r: self.rows.pop(r) for r in request_ids if r in self.rows}
        return {r: rows.joined() for r, rows in taken.items()}
