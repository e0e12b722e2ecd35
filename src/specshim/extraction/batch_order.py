"""Whose rows are whose: the order in which a model runner put the requests of one step into the batch.

vLLM has two model runners. V1 keeps a persistent `input_batch`, whose `req_ids` hold the order from one state update
to the next. V2 sorts the requests of every step and keeps that step's batch in `execute_model_state` between
`execute_model` and `sample_tokens`: a tuple up to vLLM 0.17, a named tuple later, the batch at a changing index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specshim.errors import CaptureError

OrderReader = Callable[[Any], list[str]]


def order_reader(runner: Any) -> tuple[str, OrderReader]:
    """Return the name of the runner's kind ("V1" or "V2") and the function that reads the order after a step.

    Raises CaptureError if the runner is neither: a guessed order would give rows of the wrong prompt.
    """
    if hasattr(getattr(runner, "input_batch", None), "req_ids"):
        return "V1", _v1_order
    if hasattr(runner, "execute_model_state") and hasattr(runner, "req_states"):
        return "V2", _v2_order
    raise CaptureError(
        f"{type(runner).__module__}.{type(runner).__qualname__} is neither vLLM's V1 model runner "
        "(input_batch.req_ids) nor its V2 one (execute_model_state), so rows cannot be told apart. "
        "Set VLLM_USE_V2_MODEL_RUNNER=0 or use a vLLM release from compat_matrix.yaml."
    )


def _v1_order(runner: Any) -> list[str]:
    batch = runner.input_batch
    return list(batch.req_ids[: batch.num_reqs])


def _v2_order(runner: Any) -> list[str]:
    for item in runner.execute_model_state or ():
        if hasattr(item, "req_ids") and hasattr(item, "num_scheduled_tokens"):
            return list(item.req_ids)
    raise CaptureError(
        "vLLM's V2 model runner kept no batch between execute_model and sample_tokens, so rows cannot be told apart. "
        "Set VLLM_USE_V2_MODEL_RUNNER=0."
    )


def scheduled_positions(scheduler_output: Any) -> dict[str, int]:
    """Return, for every request of the step, how many of its tokens were computed before (its first row's position)."""
    positions = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    positions.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return positions
