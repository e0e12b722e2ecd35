"""Run a function in a forked child of a process that has already imported vLLM: an engine start of 4 s, not 40.

The children fork from multiprocessing's fork server, which never computed anything, so that no OpenMP pool and no
engine state is inherited. Within the child the engine runs in-process (`InProcessGenerator`).
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

PRELOAD = ["specshim", "speculators.data_generation.vllm_hidden_states_generator", "tests.runtime.preload"]

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOAD)


def run_forked(
    function: Callable[..., Any], *args: Any, timeout: float = 240, env: dict[str, str] | None = None
) -> Any:
    """Return `function(*args)`, computed in a fresh child with `env` set; its exception is raised here as a report."""
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.pt"
        process = _context.Process(target=_child, args=(function, args, env or {}, str(answer)))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise TimeoutError(f"{_name(function)} took more than {timeout} s")
        if not answer.exists():
            raise RuntimeError(f"{_name(function)} died with exit code {process.exitcode}")
        result, error = torch.load(answer, weights_only=False)
    if error is not None:
        raise AssertionError(f"in the forked child:\n{error}")
    return result


def _child(function: Callable[..., Any], args: tuple[Any, ...], env: dict[str, str], answer: str) -> None:
    os.environ.update(env)
    result, error = None, None
    try:
        result = function(*args)
    except BaseException:
        error = traceback.format_exc()
    torch.save((result, error), answer)
    os._exit(0)  # no atexit work of vLLM's in a child that is done


def in_process(generator_class: type) -> type:
    """Return a subclass of the generator whose engine runs in this process.

    The executor is set on the finished config, because the CPU platform turns a request for it into the
    multiprocess one from vLLM 0.20 on.
    """

    class InProcessGenerator(generator_class):  # type: ignore[misc, valid-type]
        def _create_vllm_config(self, **arguments: Any) -> Any:
            config = super()._create_vllm_config(**arguments)
            config.parallel_config.distributed_executor_backend = "uni"
            return config

    return InProcessGenerator


def extract(model: str, prompts: list[list[int]], **arguments: Any) -> dict[str, Any]:
    """Return `results` and `capture_info` of one generator over `prompts`; to be run by `run_forked`."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    with in_process(VllmHiddenStatesGenerator)(model, **arguments) as generator:
        return {
            "results": generator.generate(prompts),
            "capture_info": generator.capture_info,
            "layer_ids": generator.layer_ids,
        }


def _name(function: Callable[..., Any]) -> str:
    return getattr(getattr(function, "func", function), "__name__", repr(function))
