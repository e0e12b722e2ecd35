"""vLLM 0.11.0: a SchedulerConfig built by hand names a scheduler class that this release no longer contains."""

from __future__ import annotations

from typing import Any

from specshim.adapters.generator import vllm_lt_0_17
from specshim.adapters.generator.common import generator_patches
from specshim.patching.model import Adapter

GONE = "vllm.core.scheduler.Scheduler"
PRESENT = "vllm.v1.core.sched.scheduler.Scheduler"


def prepare_config(_generator: Any, config: Any) -> None:
    """Name the scheduler that is there, as vLLM's own EngineArgs does."""
    if config.scheduler_config.scheduler_cls == GONE:
        config.scheduler_config.scheduler_cls = PRESENT


ADAPTER = Adapter(
    id="generator.vllm_lt_0_11_1",
    why="the original returns rows of the wrong prompt once a call takes several steps, and touches a GPU",
    upstream="vLLM 0.11.0: SchedulerConfig.scheduler_cls still defaults to the removed V0 scheduler",
    remove_when="vLLM 0.11.0 is no longer supported",
    patches=generator_patches(
        _extra_request_fields=f"{vllm_lt_0_17.__name__}:REQUEST_FIELDS",
        _prepare_config=f"{__name__}:prepare_config",
    ),
    contract=vllm_lt_0_17.CONTRACT,
)
