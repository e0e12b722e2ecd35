"""Worker side: hook the decoder layers, cut each step's rows by request, keep them until the driver takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from specshim.errors import CaptureError
from specshim.extraction import residual_stream
from specshim.extraction.batch_order import order_reader, scheduled_positions
from specshim.extraction.calibration import Calibration
from specshim.extraction.decoder_layers import find_decoder, norms_of


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
        self.architecture = type(model).__qualname__
        self.decoder = find_decoder(model, num_layers)
        self.runner_kind, self._read_order = order_reader(runner)
        self.layer_ids = tuple(dict.fromkeys(layer_ids))
        held = [i for i in range(num_layers) if self.decoder.is_held(i)]
        # Empty where another pipeline stage holds it.
        self._last_layer_id = tuple(i for i in held if i == num_layers - 1)
        self.held_layer_ids = tuple(i for i in self.layer_ids if i in held) if captures else ()
        # Layer id -> rule; empty until the first step, or until another pipeline stage brings it.
        self.rules: dict[int, str] = {}
        self.rows: dict[str, RequestRows] = {}
        self._runner = runner
        self._step_tokens = 0
        self._step_rows: dict[int, torch.Tensor] = {}
        self._calibration: Calibration | None = Calibration(self.decoder) if captures else None
        self._hooks: list[Any] = []
        self._calibration_hooks: list[Any] = []
        if not captures:
            return
        self._original_execute_model: Callable[..., Any] = runner.execute_model
        runner.execute_model = self._execute_model
        for layer_id in held:
            hook = self.decoder.layers[layer_id].register_forward_hook(self._layer_hook(layer_id))
            (self._hooks if layer_id in self.held_layer_ids else self._calibration_hooks).append(hook)
        for name, norm in norms_of(model):
            self._calibration_hooks.append(norm.register_forward_hook(self._norm_hook(name)))
        for module in self.decoder.beside_the_layers():
            self._calibration_hooks.append(module.register_forward_pre_hook(self._consumer_hook))
        self._calibration_hooks.append(self.decoder.owner.register_forward_hook(self._owner_hook))

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
        held = [i for i in range(len(self.decoder.layers)) if self.decoder.is_held(i)]
        return {
            "architecture": self.architecture,
            "decoder": self.decoder.path,
            "layer_class": ", ".join(dict.fromkeys(self.decoder.layer_class(i) for i in held)),
            "runner": self.runner_kind,
            "rule": self.rule,
            "layer_ids": list(self.held_layer_ids),
        }

    @property
    def rule(self) -> str | None:
        """The rule that was found here, or "class: rule; class: rule" where classes differ; None if one is missing."""
        if any(i not in self.rules for i in self.held_layer_ids):
            return None
        by_class = {self.decoder.layer_class(i): rule for i, rule in self.rules.items()}
        if len(set(by_class.values())) <= 1:
            return next(iter(by_class.values()), None)
        return "; ".join(f"{layer_class}: {rule}" for layer_class, rule in sorted(by_class.items()))

    def set_rule(self, rule: str) -> None:
        """Use the rule that another pipeline stage calibrated for the layers that this stage could not prove.

        Raises CaptureError if it is not one rule for all layers.
        """
        missing = [i for i in self.held_layer_ids if i not in self.rules]
        if missing and rule not in residual_stream.RULES:
            raise CaptureError(
                f"{self.architecture}: decoder layers {missing} have no norm on this pipeline stage that proves what "
                f"their output means, and other stages found more than one rule ({rule}). Use "
                "pipeline_parallel_size=1."
            )
        self.rules.update(dict.fromkeys(missing, rule))
        self._calibration = None

    # -- one step -----------------------------------------------------------------------------------------------

    def _execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._step_tokens = scheduler_output.total_num_scheduled_tokens
        try:
            output = self._original_execute_model(scheduler_output, *args, **kwargs)
            if self._step_tokens:
                self._finish_step(scheduler_output)
        except CaptureError as error:
            raise CaptureError(f"{self.architecture}: {error}") from error
        finally:
            self._step_tokens = 0
            self._step_rows = {}
            if self._calibration is not None:
                self._calibration.clear()
        return output

    def _layer_hook(self, layer_id: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            if not self._step_tokens:
                return  # a warm-up or profiling run of vLLM's own
            calibration = self._calibration
            if layer_id in (self._step_rows if calibration is None else calibration.readings):
                raise CaptureError(
                    f"decoder layer {layer_id} ({self.decoder.path}) ran more than once in one step. In a looped model "
                    "a layer id does not say which pass is meant, so it is not supported."
                )
            if calibration is not None:
                readings = residual_stream.candidates(output)
                calibration.layer_returned(
                    layer_id, {name: self._cut(layer_id, tensor).clone() for name, tensor in readings.items()}
                )
            else:
                rule = self.rules[layer_id]
                rows = self._cut(layer_id, residual_stream.apply_rule(rule, output))
                # The next layer's fused norm writes into both tensors of the pair; a sum is a new tensor already.
                self._step_rows[layer_id] = rows if rule == residual_stream.SUM else rows.clone()

        return hook

    def _norm_hook(self, name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, _args: Any, output: Any) -> None:
            if self._step_tokens and self._calibration is not None:
                self._calibration.norm_returned(name, module, output, self._step_tokens)

        return hook

    def _consumer_hook(self, _module: torch.nn.Module, args: Any) -> None:
        if self._step_tokens and self._calibration is not None:
            self._calibration.received(args)

    def _owner_hook(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        if self._step_tokens and self._calibration is not None:
            self._calibration.received(output if isinstance(output, (tuple, list)) else (output,))

    def _cut(self, layer_id: int, rows: torch.Tensor) -> torch.Tensor:
        if rows.shape[0] < self._step_tokens:
            raise CaptureError(
                f"decoder layer {layer_id} returned {rows.shape[0]} rows for a step of {self._step_tokens} tokens: "
                "its rows are split over the ranks. Turn sequence parallelism off "
                "(compilation_config.pass_config.enable_sp, expert parallelism with data parallelism)."
            )
        return rows[: self._step_tokens]  # what lies beyond is padding

    def _finish_step(self, scheduler_output: Any) -> None:
        if self._calibration is not None:
            self._calibrate(self._calibration)
            if self._calibration is not None:
                return  # this pipeline stage cannot prove its rules; the driver will bring another stage's
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

    def _calibrate(self, calibration: Calibration) -> None:
        """Choose the rules from this step, and turn the step's readings into rows if all of them are known."""
        needed = list(dict.fromkeys((*self.held_layer_ids, *self._last_layer_id)))
        for layer_id in needed:
            if layer_id not in calibration.readings:
                raise CaptureError(
                    f"decoder layer {layer_id} ({self.decoder.path}) did not run as a module: torch.compile or CUDA "
                    "graphs replaced it. Use enforce_eager=True (the default)."
                )
        for hook in self._calibration_hooks:
            hook.remove()
        self._calibration_hooks.clear()
        self.rules.update(calibration.rules(needed, self._last_layer_id))
        if all(i in self.rules for i in self.held_layer_ids):
            self._step_rows = {i: calibration.readings[i][self.rules[i]] for i in self.held_layer_ids}
            self._calibration = None

    # -- handing over -------------------------------------------------------------------------------------------

    def take(self, request_ids: list[str]) -> dict[str, dict[int, torch.Tensor]]:
        """Return request id -> layer id -> rows on the host, for the requests that have rows here, and forget them."""
        taken = {r: self.rows.pop(r) for r in request_ids if r in self.rows}
        return {r: rows.joined() for r, rows in taken.items()}
