"""The generator keeps its class, arguments, attributes and overridable methods; its extras reach vLLM."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

import specshim
from specshim.probe.reference import TOLERANCES
from tests.runtime.conftest import LAYER_IDS, MAX_MODEL_LEN, TOKENS_PER_STEP
from tests.runtime.forked import extract, in_process, run_forked

GENERATOR_MODULE = "speculators.data_generation.vllm_hidden_states_generator"


def _generator_class():
    from speculators.data_generation import VllmHiddenStatesGenerator

    return VllmHiddenStatesGenerator


def test_the_generator_and_what_it_imports_were_patched(generator):
    records = {record.target: record for record in specshim.status()}
    assert records["generator"].outcome == "applied"
    assert records["generator"].adapter.startswith("generator.vllm_")
    assert not [r for r in records.values() if r.outcome in ("failed", "displaced")]
    assert all(record.verified for record in records.values())


def test_the_class_stays_where_it_was(generator):
    cls = _generator_class()
    assert type(generator) is cls
    assert cls.__module__ == GENERATOR_MODULE
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_constructor_takes_the_arguments_of_both_releases_in_their_order():
    parameters = list(inspect.signature(_generator_class()).parameters.values())
    assert [p.name for p in parameters if p.kind is not p.VAR_KEYWORD] == [
        "model_path",
        "layer_ids",
        "max_model_len",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "max_num_batched_tokens",
    ]
    assert parameters[3].default == 0.8


def test_public_attributes(generator, llama):
    assert generator.model_path == str(llama)
    assert generator.layer_ids == LAYER_IDS
    assert generator.tensor_parallel_size == 1
    assert generator.tokenizer("t5 t6")["input_ids"] == [5, 6]
    assert generator.vllm_config.model_config.max_model_len == MAX_MODEL_LEN
    assert generator.vllm_config.scheduler_config.max_num_batched_tokens == TOKENS_PER_STEP
    assert generator.vllm_config.cache_config.gpu_memory_utilization == 0.8
    assert generator.executor.collective_rpc("check_health") == [None]
    assert not generator.scheduler.has_unfinished_requests()
    assert generator.capture_info == {
        "architecture": "LlamaForCausalLM",
        "decoder": "model.layers",
        "layer_class": "LlamaDecoderLayer",
        "runner": "V1",
        "rule": "hidden + residual",
        "layer_ids": [0, 3, 5],
    }


def test_a_users_worker_extension_lives_beside_ours_in_the_spawned_worker(generator):
    (report,) = generator.executor.collective_rpc("users_report", args=("hello",))
    assert report["greeting"].startswith("hello from ")
    assert report["pid"] != os.getpid()
    # The worker needed nothing of the driver's: specshim came with the extension, speculators never.
    assert "specshim" in report["modules"]


def test_no_accelerator_is_touched_on_the_cpu(generator):
    (report,) = generator.executor.collective_rpc("users_report", args=("",))
    assert report["cuda_initialised"] is False
    assert torch.cuda.is_initialized() is False


def test_kv_cache_memory_is_vllms_own_setting(generator):
    gib = float(os.environ["VLLM_CPU_KVCACHE_SPACE"]) * 2**30
    config = generator.vllm_config
    num_kv_heads, head_dim, layers, kinds, float32 = 2, 32, 6, 2, 4
    bytes_per_token = num_kv_heads * head_dim * layers * kinds * float32
    tokens = config.cache_config.num_gpu_blocks * config.cache_config.block_size
    # Whole blocks, and room that vLLM keeps for padding.
    assert 0.9 < tokens * bytes_per_token / gib <= 1.0


def test_extras_reach_vllms_engine_arguments(llama, prompts, assert_right):
    batch = prompts(5, seed=40)
    answer = run_forked(
        functools.partial(
            _extract_and_report, str(llama), batch, layer_ids=[1], max_model_len=256, dtype="bfloat16", seed=7
        )
    )
    assert answer["seed"] == 7
    assert answer["dtypes"] == {"torch.bfloat16"}
    assert_right(answer["results"], batch, [1], tolerance=TOLERANCES["bfloat16"])


def _extract_and_report(model, batch, **arguments):
    with in_process(_generator_class())(model, **arguments) as generator:
        results = generator.generate(batch)
        return {
            "results": results,
            "seed": generator.vllm_config.model_config.seed,
            "dtypes": {str(states.dtype) for result in results for states in result["hidden_states"]},
        }


def test_default_layer_ids(llama, prompts, assert_right):
    batch = prompts(3, seed=41)
    answer = run_forked(functools.partial(extract, str(llama), batch, max_model_len=256, dtype="float32"))
    assert answer["layer_ids"] == [2, 3, 3, 5]
    assert_right(answer["results"], batch, [2, 3, 3, 5])


def test_a_preempted_request_is_right(llama, prompts, assert_right):
    batch = prompts(12, seed=42, shortest=200, longest=240)
    answer = run_forked(functools.partial(_extract_with_little_kv_cache, str(llama), batch))
    assert answer["recomputed"] > 0, "nothing was preempted, so this run shows nothing"
    assert_right(answer["results"], batch, [0, 5])


def _extract_with_little_kv_cache(model, batch):
    from specshim.extraction.capture import RequestRows

    recomputed = []
    cut = RequestRows._cut
    RequestRows._cut = lambda self, length: (recomputed.append(length), cut(self, length))[1]
    answer = extract(
        model,
        batch,
        layer_ids=[0, 5],
        max_model_len=256,
        dtype="float32",
        max_num_batched_tokens=256,
        long_prefill_token_threshold=32,
        block_size=32,
        num_gpu_blocks_override=20,
    )
    return {**answer, "recomputed": len(recomputed)}


def test_a_subclass_that_builds_the_config_and_sets_up_the_capture_itself_keeps_working(llama, prompts, assert_right):
    batch = prompts(12, seed=43)
    answer = run_forked(functools.partial(_extract_with_subclass, str(llama), batch))
    assert answer["called"] == ["_create_vllm_config", "_setup_capture"]
    assert_right(answer["results"], batch, [4, 1])


def _subclass(called):
    """A subclass as scripts of the 0.3 and 0.4 era have it: the old signature, the config built by hand."""
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        LoadConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    class Subclass(_generator_class()):
        def _create_vllm_config(self, model_path, max_model_len, gpu_memory_utilization, tensor_parallel_size):
            called.append("_create_vllm_config")
            extra = (
                {"is_encoder_decoder": False}
                if "is_encoder_decoder" in inspect.signature(SchedulerConfig).parameters
                else {}
            )
            return VllmConfig(
                model_config=ModelConfig(
                    model=model_path,
                    tokenizer=model_path,
                    dtype="float32",
                    max_model_len=max_model_len,
                    enforce_eager=True,
                ),
                cache_config=CacheConfig(block_size=32, gpu_memory_utilization=gpu_memory_utilization),
                parallel_config=ParallelConfig(
                    tensor_parallel_size=tensor_parallel_size,
                    worker_extension_cls="speculators.data_generation.custom_worker.HiddenStatesWorkerExtension",
                ),
                scheduler_config=SchedulerConfig(
                    max_num_seqs=32, max_model_len=max_model_len, max_num_batched_tokens=2048, **extra
                ),
                device_config=DeviceConfig(),
                load_config=LoadConfig(),
            )

        def _setup_capture(self):
            called.append("_setup_capture")
            self.executor.collective_rpc("_setup_hidden_states_capture", args=(self.layer_ids,))

    return Subclass


def _extract_with_subclass(model, batch):
    called = []
    with _subclass(called)(model, [4, 1], max_model_len=256) as generator:
        return {"results": generator.generate(batch), "called": called}


def test_extras_that_an_override_swallows_are_an_error(llama):
    with pytest.raises(TypeError, match=r"overrides _create_vllm_config without calling super\(\).*seed"):
        _subclass([])(str(llama), [0], max_model_len=256, seed=3)


def test_compiled_layers_are_an_error_and_not_an_empty_result(llama, prompts):
    message = run_forked(functools.partial(_extract_compiled, str(llama), prompts(2, seed=44)), timeout=400)
    assert "enforce_eager=True" in message


def _extract_compiled(model, batch):
    try:
        extract(model, batch, layer_ids=[0], max_model_len=256, dtype="float32", enforce_eager=False)
    except specshim.SpecshimError as error:
        return str(error)
    return "no error"


def test_stock_worker_extension_is_patched_for_callers_of_its_own_protocol(llama, prompts, assert_right):
    batch = prompts(12, seed=45)
    answer = run_forked(functools.partial(_extract_by_stock_protocol, str(llama), batch))
    assert_right(answer, batch, [0, 5])


def _extract_by_stock_protocol(model, batch):
    """Drive the patched stock extension the way speculators' own generator did, through vLLM's LLM class."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension
    from vllm.sampling_params import SamplingParams

    from specshim.extraction.session import EngineSession

    class Subclass(in_process(_generator_class())):
        def _start(self):
            self.vllm_config.parallel_config.worker_extension_cls = (
                f"{HiddenStatesWorkerExtension.__module__}.{HiddenStatesWorkerExtension.__qualname__}"
            )
            self._session = EngineSession(self.vllm_config, self._extra_request_fields)

    assert SamplingParams
    generator = Subclass(model, [0, 5], max_model_len=256, dtype="float32")
    session = generator._session
    session.call_workers("_setup_hidden_states_capture", [0, 5])
    session.call_workers("_reset_capture")
    ids = [session.add(prompt) for prompt in batch]
    session._prompt_lengths.clear()  # nothing is fetched by our own protocol
    while session.engine.scheduler.has_unfinished_requests():
        session.step()
    (reply,) = session.call_workers("_get_captured_states")
    generator.close()
    if isinstance(reply, dict):
        by_request = [reply[request_id] for request_id in ids]
    else:  # speculators 0.3: one tensor per layer, requests in the order in which they were first computed
        lengths = [len(prompt) for prompt in batch]
        by_request = list(zip(*(layer.split(lengths) for layer in reply), strict=True))
    return [
        {"input_ids": torch.tensor(prompt), "hidden_states": list(states), "loss_mask": None}
        for prompt, states in zip(batch, by_request, strict=True)
    ]


def test_a_runner_that_is_neither_v1_nor_v2_is_refused():
    from specshim.extraction.batch_order import order_reader

    with pytest.raises(specshim.CaptureError, match=r"neither vLLM's V1 model runner .* nor its V2 one"):
        order_reader(SimpleNamespace(model=None))


def test_the_v2_runners_batch_is_read_wherever_the_release_keeps_it():
    from specshim.extraction.batch_order import order_reader

    batch = SimpleNamespace(req_ids=["b", "a"], num_scheduled_tokens=[1, 2])
    named = namedtuple("ExecuteModelState", "input_batch attn_metadata")(batch, {})
    for state in ((None, batch, None), (batch, None), named):
        runner = SimpleNamespace(execute_model_state=None, req_states=object())
        kind, read = order_reader(runner)
        runner.execute_model_state = state
        assert (kind, read(runner)) == ("V2", ["b", "a"])
    runner.execute_model_state = None
    with pytest.raises(specshim.CaptureError, match="kept no batch"):
        read(runner)
