"""Driver side: vLLM's own EngineCore in this process, its workers, and the rows that they hand over."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.abstract import Executor

from specshim.errors import CaptureError, EngineFailedError, GeneratorClosedError
from specshim.extraction.start_method import prepare_start_method
from specshim.extraction.transfer import unpack

logger = logging.getLogger("specshim")

SECONDS_TO_EXIT = 20.0

LayerRows = dict[int, torch.Tensor]


class EngineSession:
    """One running engine. Requests go in, finished requests' rows come out; any failure closes it.

    vLLM builds the executor, the KV cache and the scheduler itself, which is the code that drifts most. The session
    only adds requests, steps, and calls the worker extension by name.
    """

    def __init__(self, vllm_config: Any, extra_request_fields: dict[str, Any]) -> None:
        """Start the engine and its workers; on any error no worker process is left."""
        self._extra_request_fields = extra_request_fields
        self._counter = itertools.count()
        self._prompt_lengths: dict[str, int] = {}
        self._finished: dict[str, LayerRows] = {}
        self.closed_because: str | None = None
        self.capture_info: dict[str, Any] = {}
        self._process = os.getpid()
        prepare_start_method()
        before = set(multiprocessing.active_children())
        # Not EngineCore(...): if its constructor fails after the workers were started, they must be found and stopped.
        self.engine = EngineCore.__new__(EngineCore)
        try:
            self.engine.__init__(vllm_config, Executor.get_class(vllm_config), False)
        except BaseException:
            self._workers = _started_since(before)
            self.close("the engine failed to start")
            raise
        self._workers = _started_since(before)

    def calibrate(self, prompt: list[int]) -> None:
        """Compute one prompt so that the last pipeline stage finds the rule, give it to the others, drop the rows.

        Afterwards `capture_info` says where the decoder is, which rule holds and which model runner computes.
        """
        del self._prompt_lengths[self.add(prompt)]  # its rows are not fetched
        while self.engine.scheduler.has_requests():
            self.step()
        reports = self.call_workers("_share_residual_rule")
        rules = {report["rule"] for report in reports if report["rule"]}
        if len(rules) != 1:
            raise CaptureError(f"the workers do not agree on what a decoder layer's output means: {sorted(rules)}")
        rule = rules.pop()
        self.call_workers("_share_residual_rule", rule)
        self.call_workers("_reset_capture")
        held = sorted({layer_id for report in reports for layer_id in report["layer_ids"]})
        self.capture_info = {**reports[0], "rule": rule, "layer_ids": held}

    # -- requests -----------------------------------------------------------------------------------------------

    def add(self, prompt: list[int]) -> str:
        """Queue a prompt (at least one token) for prefill; return its request id."""
        self._raise_if_closed()
        request_id = f"specshim-{next(self._counter)}"
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=1, temperature=0.0, detokenize=False),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            **self._extra_request_fields,
        )
        self.engine.add_request(*self.engine.preprocess_add_request(request))
        self._prompt_lengths[request_id] = len(prompt)
        return request_id

    def step(self) -> None:
        """Let the engine compute one step, and fetch the rows of the requests that it finished.

        Raises EngineFailedError if the engine or a worker failed, CaptureError if rows are missing; the session is
        then closed.
        """
        self._raise_if_closed()
        try:
            outputs, _ = self.engine.step_fn()
            finished = [
                output.request_id
                for group in (outputs or {}).values()
                for output in group.outputs
                if output.finish_reason is not None and output.request_id in self._prompt_lengths
            ]
            if finished:
                self._fetch(finished)
        except BaseException as error:
            self._fail(error)

    def take(self, request_id: str) -> LayerRows | None:
        """Return layer id -> (tokens, hidden size) of a finished request and forget it; None while it is computing."""
        return self._finished.pop(request_id, None)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Give up requests that are not finished, here, in the scheduler and in the workers."""
        ids = list(request_ids)
        for request_id in ids:
            self._finished.pop(request_id, None)
        running = [r for r in ids if self._prompt_lengths.pop(r, None) is not None]
        if not running or self.closed_because:
            return
        try:
            self.engine.abort_requests(running)
            self.call_workers("_drop_hidden_states", running)
        except BaseException as error:
            self._fail(error)

    def call_workers(self, method: str, *args: Any) -> list[Any]:
        """Call a method of the worker extension on every rank and return the replies in rank order."""
        self._raise_if_closed()
        replies: list[Any] = self.engine.model_executor.collective_rpc(method, args=args)
        return replies

    def _fetch(self, request_ids: list[str]) -> None:
        merged: dict[str, LayerRows] = {request_id: {} for request_id in request_ids}
        for reply in self.call_workers("_take_hidden_states", request_ids):
            for request_id, layers in reply.items():
                merged[request_id].update({layer: unpack(packed) for layer, packed in layers.items()})
        for request_id, layers in merged.items():
            expected = self._prompt_lengths.pop(request_id)
            wrong = {layer: len(rows) for layer, rows in layers.items() if len(rows) != expected}
            if wrong or not layers:
                raise CaptureError(
                    f"a prompt of {expected} tokens came back with {wrong or 'no'} rows per layer; no states are "
                    "returned"
                )
            self._finished[request_id] = layers

    # -- end ----------------------------------------------------------------------------------------------------

    def close(self, reason: str = "close() was called") -> None:
        """Stop the engine; when this returns no worker process is left. Calling it again does nothing.

        In a forked child, which inherits the object but not the engine, it does nothing either.
        """
        if self.closed_because or os.getpid() != self._process:
            return
        self.closed_because = reason
        self._finished.clear()
        self._prompt_lengths.clear()
        try:
            if hasattr(self.engine, "structured_output_manager"):
                self.engine.shutdown()
            elif hasattr(self.engine, "model_executor"):
                self.engine.model_executor.shutdown()
        except Exception:
            logger.warning("vLLM's engine did not shut down cleanly", exc_info=True)
        finally:
            _stop(self._workers)

    def _raise_if_closed(self) -> None:
        if self.closed_because:
            raise GeneratorClosedError(
                f"this generator is closed ({self.closed_because}); make a new VllmHiddenStatesGenerator"
            )

    def _fail(self, error: BaseException) -> None:
        """Close the session and raise the error that tells the caller what happened."""
        dead = [f"{w.name} (pid {w.pid}, exit code {w.exitcode})" for w in self._workers if not w.is_alive()]
        cause = f"worker process died: {', '.join(dead)}" if dead else f"{type(error).__name__}: {error}"
        self.close(cause)
        _release_frames(error)
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, (CaptureError, GeneratorClosedError)):
            raise error
        raise EngineFailedError(
            f"vLLM's engine failed while computing hidden states ({cause}). The generator is closed and its workers "
            "are stopped; the worker's own log above says more. Make a new VllmHiddenStatesGenerator to go on."
        ) from error


def _release_frames(error: BaseException) -> None:
    """Let go of the local variables that the error's tracebacks hold, which keep vLLM's message queues alive.

    Whoever keeps the error would keep them; and if Python's cycle collector is what finds them in the end, it may
    finalise a ZeroMQ context before its sockets, which waits for ever.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            traceback.clear_frames(found.__traceback__)
            waiting += [found.__cause__, found.__context__]


def _started_since(before: set[Any]) -> list[Any]:
    return [process for process in multiprocessing.active_children() if process not in before]


def _stop(processes: list[Any]) -> None:
    deadline = time.monotonic() + SECONDS_TO_EXIT
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join(5)
