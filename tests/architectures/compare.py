"""In a forked child: write a tiny model, extract with a real engine, compare every row with transformers."""

from __future__ import annotations

import inspect
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from specshim.probe.reference import Reference, max_abs_error, max_relative_error
from specshim.probe.tiny_models.text import TEXT_MODELS, TinyModel, make_text
from specshim.probe.tiny_models.wrappers import FIRST_PLACEHOLDER, WRAPPERS, make_wrapper
from tests.architectures.without_torchvision import pretend_torchvision

# Out of order; the last layer, the first, and one between.
LAYER_IDS = [5, 0, 3]
MAX_MODEL_LEN = 256
# Less than the longest prompts, so that they are prefilled in chunks.
TOKENS_PER_STEP = 64


def make_prompts(count: int = 12, longest: int = 150, seed: int = 1) -> list[list[int]]:
    """Return prompts of 3 to `longest` tokens, without the special tokens."""
    rng = random.Random(seed)
    lengths = [3, longest, *(rng.randint(3, longest) for _ in range(count - 2))]
    return [[rng.randrange(3, FIRST_PLACEHOLDER) for _ in range(length)] for length in lengths]


def compare_text(name: str, **engine_args: Any) -> dict[str, Any]:
    """Return the errors of every row of `TEXT_MODELS[name]` against transformers, and what the capture found."""
    with TemporaryDirectory() as folder:
        make_text(name, Path(folder))
        tiny = TEXT_MODELS[name]
        reference = Reference(folder)
        if tiny.config == "DeepseekV3Config" and "llama_4_scaling" in tiny.written:
            _scale_queries(reference.model, **tiny.written["llama_4_scaling"])
        adapted = _wider_window(tiny) if tiny.config == "Cohere2Config" else {}
        return compare(Path(folder), reference, tiny.dtype, **(tiny.engine_args | adapted | engine_args))


def make_generator(name: str) -> None:
    """Make a generator of `TEXT_MODELS[name]` and nothing else: for models that are refused."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    from tests.runtime.forked import in_process

    inspect_models_here()
    with TemporaryDirectory() as folder:
        make_text(name, Path(folder))
        in_process(VllmHiddenStatesGenerator)(folder, [0], max_model_len=MAX_MODEL_LEN, dtype=TEXT_MODELS[name].dtype)


def compare_wrapper(name: str, **engine_args: Any) -> dict[str, Any]:
    """Return the same for `WRAPPERS[name]`, with text prompts."""
    pretend_torchvision()
    with TemporaryDirectory() as folder:
        make_wrapper(name, Path(folder))
        tiny = WRAPPERS[name]
        no_media = {"limit_mm_per_prompt": dict.fromkeys(tiny.modalities, 0)}
        reference = Reference(folder, tiny.auto_class)
        if tiny.reference_part:
            reference.model = getattr(reference.model, tiny.reference_part)
        return compare(Path(folder), reference, "float32", **(no_media | engine_args))


def compare(folder: Path, reference: Reference, dtype: str, **engine_args: Any) -> dict[str, Any]:
    """Return `relative`, `absolute` (largest errors), `rows`, `dtypes` and `info` of prompts in order and reversed."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    from tests.runtime.forked import in_process

    torch.set_num_threads(1)  # more only wait for each other in models this small
    prompts = make_prompts()
    expected = [reference.states(prompt) for prompt in prompts]
    reference.forget_model()
    inspect_models_here()
    arguments = {
        "max_model_len": MAX_MODEL_LEN,
        "max_num_batched_tokens": TOKENS_PER_STEP,
        "dtype": dtype,
    } | engine_args
    with in_process(VllmHiddenStatesGenerator)(str(folder), LAYER_IDS, **arguments) as generator:
        results = [*generator.generate(prompts), *reversed(generator.generate(prompts[::-1]))]
        scheduled = generator.vllm_config.scheduler_config
        info = generator.capture_info
        chunked = scheduled.max_num_batched_tokens == TOKENS_PER_STEP
    pairs = list(zip(results, [*prompts, *prompts], [*expected, *expected], strict=True))
    assert all(result["input_ids"].tolist() == prompt for result, prompt, _ in pairs)
    return {
        "relative": max(max_relative_error(result, LAYER_IDS, states) for result, _, states in pairs),
        "absolute": max(max_abs_error(result, LAYER_IDS, states) for result, _, states in pairs),
        "rows": sum(len(rows) for result, _, _ in pairs for rows in result["hidden_states"]),
        "dtypes": sorted({str(rows.dtype) for result in results for rows in result["hidden_states"]}),
        "chunked": chunked,
        "info": info,
    }


def _scale_queries(model: Any, beta: float, original_max_position_embeddings: int) -> None:
    """Give transformers' DeepSeek-V3 the long-context query scaling that only vLLM's has."""

    def scale(_module: Any, _args: Any, queries: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(queries.shape[1]).div(original_max_position_embeddings, rounding_mode="floor")
        return queries * (1 + beta * torch.log1p(positions))[None, :, None]

    for name, module in model.named_modules():
        if name.endswith("q_b_proj"):
            module.register_forward_hook(scale)


def _wider_window(tiny: TinyModel) -> dict[str, Any]:
    """Return the override for vLLM releases whose Cohere2 sees one token more than transformers' does."""
    from vllm.model_executor.models import commandr

    if "sliding_window + 1" not in inspect.getsource(commandr):
        return {}
    return {"hf_overrides": {"sliding_window": tiny.fields["sliding_window"] - 1}}


def inspect_models_here() -> None:
    """Let vLLM look at a model class in this process; its own way imports vLLM anew in a subprocess, for 20 s."""
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda function: function()
