"""The class that vLLM mixes into its worker, named by dotted path so that a spawned worker resolves it by itself.

`HiddenStatesWorkerExtension` is that class. A user's own extension is composed with it: the name
`with:their:module:Class` of this module is a class with both as bases (see `composed_path`). Its attributes carry
names that no vLLM worker class has: vLLM refuses an extension that shadows one.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from specshim.errors import CaptureError
from specshim.extraction.capture import HiddenStatesCapture
from specshim.extraction.transfer import Packed, pack

_PREFIX = "with:"


class HiddenStatesWorkerExtension:
    """Gives vLLM's worker the methods that the generator calls by name through `collective_rpc`."""

    def _setup_hidden_states_capture(self, layer_ids: list[int]) -> dict[str, Any]:
        """Hook the decoder layers; return what was found. Calling it again replaces the earlier capture.

        Layer id L means the residual stream after decoder layer L, before the final norm, counted from 0.
        """
        from vllm.distributed import get_tp_group

        previous = vars(self).pop("_hidden_states_capture", None)
        if previous is not None:
            previous.remove()
        text_config = self.model_config.hf_text_config  # type: ignore[attr-defined]
        self._hidden_states_capture = HiddenStatesCapture(
            self.model_runner,  # type: ignore[attr-defined]
            layer_ids,
            num_layers=text_config.num_hidden_layers,
            captures=get_tp_group().rank_in_group == 0,
        )
        return self._hidden_states_capture.describe()

    def _share_residual_rule(self, rule: str | None = None) -> dict[str, Any]:
        """Return what the capture found; with `rule`, first use it if this rank has not calibrated its own."""
        capture = current_capture(self)
        if rule is not None and capture.rule is None:
            capture.set_rule(rule)
        return capture.describe()

    def _set_request_metadata(self, request_metadata: dict[str, int]) -> None:
        """Accept what speculators' own driver announces before a step; the runner's batch is read instead."""

    def _reset_capture(self) -> None:
        """Forget all rows that were captured and not taken."""
        current_capture(self).rows.clear()

    def _drop_hidden_states(self, request_ids: list[str]) -> None:
        """Forget the rows of requests that were aborted."""
        for request_id in request_ids:
            current_capture(self).rows.pop(request_id, None)

    def _take_hidden_states(self, request_ids: list[str]) -> dict[str, dict[int, Packed]]:
        """Hand over the rows of finished requests: request id -> layer id -> packed (tokens, hidden size)."""
        taken = current_capture(self).take(request_ids)
        return {r: {layer: pack(rows) for layer, rows in layers.items()} for r, layers in taken.items()}

    def _get_captured_states(self) -> dict[str, list[torch.Tensor]] | None:
        """Hand over everything captured, as speculators 0.4 did: request id -> one tensor per layer, ascending."""
        capture = current_capture(self)
        taken = capture.take(list(capture.rows))
        return {r: [layers[i] for i in sorted(layers)] for r, layers in taken.items()} or None


def captured_states_by_layer(self: Any) -> list[torch.Tensor] | None:
    """Hand over everything captured, as speculators 0.3 did: per layer, the rows of all requests in one tensor.

    Requests follow each other in the order in which the worker first saw them.
    """
    by_request = HiddenStatesWorkerExtension._get_captured_states(self)
    if by_request is None:
        return None
    return [torch.cat(per_layer) for per_layer in zip(*by_request.values(), strict=True)]


def current_capture(worker: Any) -> HiddenStatesCapture:
    """Return the worker's capture; raise CaptureError if `_setup_hidden_states_capture` was not called."""
    capture = vars(worker).get("_hidden_states_capture")
    if capture is None:
        raise CaptureError("Must call _setup_hidden_states_capture before capturing states")
    found: HiddenStatesCapture = capture
    return found


PROTOCOL = tuple(name for name in vars(HiddenStatesWorkerExtension) if not name.startswith("__"))
EXTENSION_PATH = f"{__name__}.{HiddenStatesWorkerExtension.__qualname__}"
STOCK_EXTENSION_PATH = "speculators.data_generation.custom_worker.HiddenStatesWorkerExtension"


def composed_path(users_extension: str | None) -> str:
    """Return the dotted path to give vLLM so that both our extension and the user's are mixed into its worker."""
    if not users_extension or users_extension == STOCK_EXTENSION_PATH or users_extension.startswith(__name__):
        return users_extension if users_extension and users_extension.startswith(__name__) else EXTENSION_PATH
    return f"{__name__}.{_PREFIX}{users_extension.replace('.', ':')}"


def __getattr__(name: str) -> Any:
    if not name.startswith(_PREFIX):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, qualname = name.removeprefix(_PREFIX).rpartition(":")
    users = getattr(importlib.import_module(module.replace(":", ".")), qualname)
    if all(hasattr(users, method) for method in PROTOCOL):
        composed = users  # it derives from ours, or from speculators' class, which is patched
    else:
        composed = type(users.__name__, (HiddenStatesWorkerExtension, users), {"__module__": __name__})
    globals()[name] = composed
    return composed
