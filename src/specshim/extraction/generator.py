"""The generator: the methods that replace those of speculators' class, as one class that also works on its own."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from specshim.errors import CaptureError
from specshim.extraction.prompts import check_layer_ids, check_prompts
from specshim.extraction.worker_extension import composed_path

logger = logging.getLogger("specshim")

# speculators' own defaults, kept: at least this many tokens a step, and vLLM's usual bound on sequences a step.
MIN_MAX_BATCHED_TOKENS = 8192
MAX_NUM_SEQS = 256
# One token is sampled and thrown away: vLLM finishes a request only by sampling.
MAX_DECODE_TOKENS = 1
# Prompts handed to the scheduler ahead of the ones being computed, so that a step is always full.
STEPS_OF_REQUESTS_AHEAD = 2


class VllmHiddenStatesGenerator:
    """Computes the hidden states of prompts with vLLM, prefill only.

    `result[i]` belongs to prompt i and is what prompt i alone would give, for any batch, any order and any call.

    Layer id L means the residual stream after decoder layer L, before the final norm, counted from 0; in vLLM's own
    numbering of auxiliary hidden states that is L + 1 (its 0 is the embedding). So `num_layers - 1` is the state that
    the model's final norm would be applied to.
    """

    _extra_request_fields: dict[str, Any] = {}

    def __init__(
        self,
        model_path: str,
        layer_ids: list[int] | None = None,
        max_model_len: int = 2048,
        gpu_memory_utilization: float = 0.8,
        tensor_parallel_size: int = 1,
        max_num_batched_tokens: int | None = None,
        **engine_args: Any,
    ) -> None:
        """Load the model into vLLM and hook its decoder layers.

        `layer_ids` are decoder layers counted from 0, in any order, duplicates kept; None chooses
        `[2, n // 2, n - 3, n - 1]`. `engine_args` are vLLM's engine arguments of the installed release (`dtype`,
        `distributed_executor_backend`, `enforce_eager`, `pipeline_parallel_size`, `load_format`, ...).

        Raises TypeError for an argument that this vLLM release does not know, ValueError for a layer id out of range.
        """
        self.model_path = model_path
        self.tensor_parallel_size = tensor_parallel_size
        self._request_counter = 0
        self._session: Any = None
        self._engine_args = _check_engine_args(engine_args)
        self._engine_args_used = False

        trust_remote_code = bool(engine_args.get("trust_remote_code", True))
        num_layers = self._num_hidden_layers(trust_remote_code)
        if layer_ids is None:
            layer_ids = [2, num_layers // 2, num_layers - 3, num_layers - 1]
            logger.info("layers chosen: %s of %d", layer_ids, num_layers)
        self.layer_ids = check_layer_ids(layer_ids, num_layers)
        self.tokenizer = None
        if not engine_args.get("skip_tokenizer_init"):
            from transformers import AutoTokenizer

            tokenizer_path = engine_args.get("tokenizer") or model_path
            self.tokenizer = AutoTokenizer.from_pretrained(tokenizer_path, trust_remote_code=trust_remote_code)

        arguments: dict[str, Any] = {
            "model_path": model_path,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
        }
        # speculators 0.3 did not have this parameter, and neither have overrides written for it.
        if max_num_batched_tokens is not None or _accepts(self._create_vllm_config, "max_num_batched_tokens"):
            arguments["max_num_batched_tokens"] = max_num_batched_tokens
        self.vllm_config = self._create_vllm_config(**arguments)
        if self._engine_args and not self._engine_args_used:
            raise TypeError(
                f"{type(self).__name__} overrides _create_vllm_config without calling super(), so these arguments "
                f"cannot reach vLLM: {', '.join(sorted(self._engine_args))}"
            )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _num_hidden_layers(self, trust_remote_code: bool) -> int:
        """Return the number of decoder layers in the text config, read the way vLLM reads it."""
        from vllm.transformers_utils.config import get_config, get_hf_text_config

        config_path = self._engine_args.get("hf_config_path") or self.model_path
        config = get_config(
            config_path,
            trust_remote_code,
            self._engine_args.get("revision"),
            self._engine_args.get("code_revision"),
        )
        num_layers = getattr(get_hf_text_config(config), "num_hidden_layers", None)
        if num_layers is None:
            raise ValueError("Cannot determine num_layers from config")
        return int(num_layers)

    def _create_vllm_config(
        self,
        model_path: str,
        max_model_len: int,
        gpu_memory_utilization: float,
        tensor_parallel_size: int,
        max_num_batched_tokens: int | None = None,
    ) -> Any:
        """Return the VllmConfig of the engine, built by vLLM's own EngineArgs. Subclasses may override it."""
        from vllm.engine.arg_utils import EngineArgs

        tokens = max_num_batched_tokens or max(MIN_MAX_BATCHED_TOKENS, max_model_len)
        arguments: dict[str, Any] = {
            "model": model_path,
            "tokenizer": model_path,
            "trust_remote_code": True,
            "dtype": "auto",
            "max_model_len": max_model_len,
            "max_num_batched_tokens": tokens,
            "max_num_seqs": min(MAX_NUM_SEQS, tokens),
            "enforce_eager": True,
            "gpu_memory_utilization": gpu_memory_utilization,
            "tensor_parallel_size": tensor_parallel_size,
            "distributed_executor_backend": "mp",
            "enable_prefix_caching": False,
            "async_scheduling": False,
        }
        arguments.update(self._engine_args)
        self._engine_args_used = True
        return EngineArgs(**arguments).create_engine_config()

    def _prepare_config(self, config: Any) -> None:
        """Mend what this vLLM release gets wrong in a config that was built by hand; most get nothing wrong."""

    def _start(self) -> None:
        """Start the engine, hook the layers, and let the capture prove itself on one short prompt."""
        config = self.vllm_config
        self._prepare_config(config)
        check_layer_ids(self.layer_ids, config.model_config.hf_text_config.num_hidden_layers)
        # Whatever a subclass built: rows that vLLM serves from its prefix cache are never computed, and steps that
        # are scheduled ahead are not matched to their outputs.
        config.cache_config.enable_prefix_caching = False
        config.scheduler_config.async_scheduling = False
        config.parallel_config.worker_extension_cls = composed_path(config.parallel_config.worker_extension_cls)
        self._session = self._open_session(config)
        engine = self._session.engine
        self.executor = engine.model_executor
        self.scheduler = engine.scheduler
        self.block_hasher = getattr(engine, "request_block_hasher", None)
        self._setup_capture()
        self.capture_info = self._calibrate()

    def _open_session(self, config: Any) -> Any:
        from specshim.extraction.session import EngineSession

        return EngineSession(config, self._extra_request_fields)

    def _setup_capture(self) -> None:
        """Hook the decoder layers in every worker. Subclasses may override it."""
        self._session.call_workers("_setup_hidden_states_capture", self.layer_ids)

    def _calibrate(self) -> dict[str, Any]:
        """Run one short prompt so that the workers find out what a layer's output means; share it between stages."""
        length = min(8, self.vllm_config.model_config.max_model_len - MAX_DECODE_TOKENS)
        vocabulary_size = self.vllm_config.model_config.get_vocab_size()
        self._session.calibrate([(7 * i + 1) % vocabulary_size for i in range(length)])
        info: dict[str, Any] = self._session.capture_info
        missing = sorted(set(self.layer_ids) - set(info["layer_ids"]))
        if missing:
            raise CaptureError(
                f"no worker captures decoder layers {missing}; {type(self).__name__}._setup_capture hooked "
                f"{info['layer_ids']}"
            )
        logger.info("hidden states: %s", info)
        return info

    def generate(self, token_ids: Any) -> list[dict[str, Any]]:
        """Return the hidden states of every prompt, in the order of `token_ids`.

        `token_ids` is a list of token-id lists or 1-D tensors, or a 2-D tensor. Each result has `input_ids` (int64,
        shape (tokens,)), `hidden_states` (one CPU tensor of shape (tokens, hidden size) in the model's dtype for each
        of `layer_ids`, in that order) and `loss_mask` (None). Layer id L means the residual stream after decoder layer
        L, before the final norm, counted from 0 (vLLM's own auxiliary ids call it L + 1).

        Raises ValueError or TypeError for bad input, before any engine work and with the generator usable afterwards;
        EngineFailedError or CaptureError if the engine fails, with the generator closed; GeneratorClosedError after
        that or after `close()`.
        """
        results: dict[int, dict[str, Any]] = dict(self.iter_generate(token_ids))
        return [results[index] for index in range(len(results))]

    def iter_generate(self, token_ids: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (index, result) for each prompt as soon as it is complete; see `generate`.

        Input is checked at the call, not at the first `next()`. Leaving the loop early gives up the other prompts.
        """
        self._session._raise_if_closed()
        prompts = check_prompts(
            token_ids,
            vocabulary_size=self.vllm_config.model_config.get_vocab_size(),
            max_prompt_length=self.vllm_config.model_config.max_model_len - MAX_DECODE_TOKENS,
        )
        self._request_counter += 1
        return self._results(prompts)

    def _results(self, prompts: list[list[int]]) -> Iterator[tuple[int, dict[str, Any]]]:
        session = self._session
        window = STEPS_OF_REQUESTS_AHEAD * self.vllm_config.scheduler_config.max_num_seqs
        waiting = deque(enumerate(prompts))
        running: dict[str, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < window:
                    index, prompt = waiting.popleft()
                    running[session.add(prompt)] = index
                session.step()
                for request_id in list(running):
                    layers = session.take(request_id)
                    if layers is not None:
                        index = running.pop(request_id)
                        yield index, self._result(prompts[index], layers)
        finally:
            session.abort(running)

    def _result(self, prompt: list[int], layers: dict[int, torch.Tensor]) -> dict[str, Any]:
        states: list[torch.Tensor] = []
        for position, layer_id in enumerate(self.layer_ids):
            repeated = layer_id in self.layer_ids[:position]
            states.append(layers[layer_id].clone() if repeated else layers[layer_id])
        return {
            "input_ids": torch.tensor(prompt, dtype=torch.long),
            "hidden_states": states,
            "loss_mask": None,
        }

    def close(self) -> None:
        """Stop the engine; no worker process is left when this returns. Calling it again does nothing."""
        session = getattr(self, "_session", None)
        if session is not None:
            session.close()

    def __enter__(self) -> VllmHiddenStatesGenerator:
        """Return the generator itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the generator."""
        self.close()

    def __del__(self) -> None:
        """Close the generator when it is forgotten; `close()` or a `with` block does it at a known time."""
        try:
            self.close()
        except Exception:
            logger.debug("exception while closing a forgotten generator", exc_info=True)


def _check_engine_args(engine_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments if vLLM's EngineArgs of this release has them all and none defeats the capture."""
    if not engine_args:
        return {}
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    known = {field.name for field in dataclasses.fields(EngineArgs)}
    unknown = sorted(set(engine_args) - known)
    if unknown:
        raise TypeError(
            f"VllmHiddenStatesGenerator got unknown arguments: {', '.join(unknown)} "
            f"(vLLM {vllm.__version__} has no such engine arguments)"
        )
    if engine_args.get("enable_prefix_caching"):
        raise ValueError("enable_prefix_caching must stay off: states of cached tokens are never computed")
    if engine_args.get("async_scheduling"):
        raise ValueError("async_scheduling must stay off: the generator reads each step's rows before the next")
    return engine_args


def _accepts(function: Any, parameter: str) -> bool:
    parameters = inspect.signature(function).parameters
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
