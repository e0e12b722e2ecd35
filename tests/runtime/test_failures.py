"""A failure ends in a clear error within seconds, a closed generator and no worker process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import specshim
from tests.runtime.conftest import MAX_MODEL_LEN


def _workers():
    return [p for p in multiprocessing.active_children() if "forkserver" not in type(p).__name__.lower()]


def test_an_exception_in_the_constructor_leaves_no_worker(llama, generator):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    before = set(_workers())
    seen = []

    class FailsLate(VllmHiddenStatesGenerator):
        def _setup_capture(self):
            seen.extend(set(_workers()) - before)
            raise RuntimeError("the user's own mistake")

    with pytest.raises(RuntimeError, match="the user's own mistake"):
        FailsLate(str(llama), [0], max_model_len=MAX_MODEL_LEN, dtype="float32")
    assert len(seen) == 1, "no worker had been started, so this run shows nothing"
    assert set(_workers()) == before
    assert not _is_running(seen[0].pid)


def test_workers_are_spawned_once_a_forked_one_could_not_use_the_accelerator():
    # A fresh interpreter: this one and the fork server have looked at the devices already.
    environment = {name: value for name, value in os.environ.items() if name != "VLLM_WORKER_MULTIPROC_METHOD"}
    done = subprocess.run([sys.executable, "-c", START_METHODS], capture_output=True, text=True, env=environment)
    counted = hasattr(torch._C, "_cuda_getDeviceCount")  # a torch built without CUDA has nothing to spoil
    assert done.stdout.split() == ["True", "None", str(not counted), "spawn" if counted else "None"], done.stderr


# Look at the number of devices, as loading a model with transformers does; print the answers before and after.
START_METHODS = """
import os, torch
from specshim.extraction.start_method import VARIABLE, fork_is_safe, prepare_start_method
print(fork_is_safe(), os.environ.get(VARIABLE))
torch.cuda.device_count()
safe = fork_is_safe()
prepare_start_method()
print(safe, os.environ.get(VARIABLE))
"""


def test_an_engine_that_fails_after_it_started_its_workers_leaves_none(monkeypatch):
    # A stand-in for vLLM's engine: only the order of events matters here, and a real one takes a minute to fail.
    from specshim.extraction import session

    started = []

    class FailsLate:
        def __init__(self, *_):
            worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
            worker.start()
            started.append(worker)
            raise ValueError("no memory for the KV cache")

    monkeypatch.setattr(session, "EngineCore", FailsLate)
    monkeypatch.setattr(session, "SECONDS_TO_EXIT", 0.1)
    monkeypatch.setattr(session.Executor, "get_class", lambda _config: None)
    with pytest.raises(ValueError, match="no memory for the KV cache"):
        session.EngineSession(None, {})
    assert started[0].exitcode == -signal.SIGKILL


@pytest.mark.last
def test_a_worker_that_dies_is_a_clear_error_within_seconds(generator, prompts):
    (report,) = generator.executor.collective_rpc("users_report", args=("",))
    iterator = generator.iter_generate(prompts(200, seed=70, shortest=100))
    next(iterator)
    os.kill(report["pid"], signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(specshim.EngineFailedError, match=f"worker process died.*pid {report['pid']}, exit code -9"):
        list(iterator)
    assert time.monotonic() - started < 30
    assert not _is_running(report["pid"])
    with pytest.raises(specshim.GeneratorClosedError, match="worker process died"):
        generator.generate([[1, 2]])


@pytest.mark.last
def test_close_leaves_no_process_and_says_so_afterwards(llama):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    before = set(_workers())
    with VllmHiddenStatesGenerator(str(llama), [0], max_model_len=MAX_MODEL_LEN, dtype="float32") as generator:
        (worker,) = set(_workers()) - before
        assert len(generator.generate([[1, 2, 3]])) == 1
        iterator = generator.iter_generate([[4], [5]])
    assert set(_workers()) == before
    assert not _is_running(worker.pid)
    generator.close()
    for call in (lambda: generator.generate([[1]]), lambda: generator.iter_generate([[1]]), lambda: next(iterator)):
        with pytest.raises(specshim.GeneratorClosedError, match=r"close\(\) was called"):
            call()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
