"""What the adapters of the worker extension share."""

from __future__ import annotations

from specshim.patching.model import Patch, Requires

_CLASS = "HiddenStatesWorkerExtension"
_SOURCE = f"specshim.extraction.worker_extension:{_CLASS}"


def method_patches(captured_states: str) -> tuple[Patch, ...]:
    """Return the patches of the class; `captured_states` is the function behind `_get_captured_states`."""
    kept = ("_setup_hidden_states_capture", "_reset_capture")
    added = ("_set_request_metadata", "_take_hidden_states", "_drop_hidden_states", "_share_residual_rule")
    return (
        *(Patch(f"worker_extension.{name}", "replace", f"{_CLASS}.{name}", f"{_SOURCE}.{name}") for name in kept),
        *(Patch(f"worker_extension.{name}", "set", f"{_CLASS}.{name}", f"{_SOURCE}.{name}") for name in added),
        Patch("worker_extension._get_captured_states", "replace", f"{_CLASS}._get_captured_states", captured_states),
    )


CONTRACT: tuple[Requires, ...] = (
    Requires("vllm.distributed:get_tp_group"),
    Requires(
        "vllm.v1.core.sched.output:SchedulerOutput", fields=("num_scheduled_tokens", "total_num_scheduled_tokens")
    ),
    Requires("vllm.v1.core.sched.output:NewRequestData", fields=("req_id", "num_computed_tokens")),
    Requires("vllm.v1.core.sched.output:CachedRequestData", fields=("req_ids", "num_computed_tokens")),
)
