"""Bad input is a clear error before any engine work, and the generator is fully usable afterwards."""

from __future__ import annotations

import warnings

import pytest
import torch

import specshim
from specshim.probe.tiny_models import VOCABULARY_SIZE
from tests.runtime.conftest import LAYER_IDS, MAX_MODEL_LEN

BAD_PROMPTS = [
    pytest.param([], ValueError, "cannot be empty", id="no prompts"),
    pytest.param(torch.zeros((0, 4), dtype=torch.long), ValueError, "cannot be empty", id="no rows"),
    pytest.param([[1, 2], []], ValueError, "prompt 1 is empty", id="empty prompt"),
    pytest.param(torch.zeros((2, 0), dtype=torch.long), ValueError, "prompt 0 is empty", id="empty rows"),
    pytest.param([[1], [2, VOCABULARY_SIZE]], ValueError, "prompt 1 has token id 512 .*512", id="token too large"),
    pytest.param([[1, -1]], ValueError, "prompt 0 has token id -1", id="negative token"),
    pytest.param([[1, 2.0]], TypeError, "prompt 0 has 2.0", id="float token"),
    pytest.param([["t1"]], TypeError, "prompt 0 has 't1'", id="text token"),
    pytest.param(["t1 t2"], TypeError, "prompt 0 must be a list", id="text prompt"),
    pytest.param([[1, True]], TypeError, "prompt 0 has True", id="bool token"),
    pytest.param([1, 2, 3], TypeError, "prompt 0 must be a list", id="one flat prompt"),
    pytest.param(torch.zeros((1, 2, 3), dtype=torch.long), ValueError, "3-D tensor", id="3-D tensor"),
    pytest.param(torch.zeros(4, dtype=torch.long), ValueError, "1-D tensor", id="1-D tensor"),
    pytest.param(torch.zeros((2, 3)), TypeError, "prompt 0 must hold integers", id="float tensor"),
    pytest.param(
        [torch.zeros((1, 3), dtype=torch.long)], ValueError, "prompt 0 must be a 1-D", id="2-D tensor in list"
    ),
    pytest.param(None, TypeError, "NoneType", id="None"),
]


@pytest.mark.parametrize(("token_ids", "error", "message"), BAD_PROMPTS)
def test_bad_prompts_are_named(generator, token_ids, error, message):
    with pytest.raises(error, match=message):
        generator.generate(token_ids)
    assert not generator.scheduler.has_unfinished_requests()


def test_the_generator_is_fully_usable_after_bad_input(generator, prompts, assert_right):
    batch = prompts(12, seed=30)
    with pytest.raises(ValueError, match="prompt 12 is empty"):
        generator.generate([*batch, []])
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_over_long_prompts_are_cut_with_one_warning_that_counts_them(generator, prompts, assert_right):
    batch = prompts(3, seed=31, shortest=MAX_MODEL_LEN, longest=MAX_MODEL_LEN + 40) + prompts(2, seed=32)
    with pytest.warns(specshim.SpecshimWarning, match="3 of 5 prompts are longer .* 511 tokens") as caught:
        results = generator.generate(batch)
    assert len(caught) == 1
    assert_right(results, [p[: MAX_MODEL_LEN - 1] for p in batch], LAYER_IDS)


def test_prompts_that_fit_warn_about_nothing(generator, prompts):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generator.generate(prompts(2, seed=33))


@pytest.mark.parametrize(
    ("layer_ids", "error", "message"),
    [
        ([6], ValueError, r"Layer index 6 out of bounds \[0, 5\]"),
        ([0, -1], ValueError, "Layer index -1 out of bounds"),
        ([1.0], TypeError, "1.0, which is not an integer"),
        (["1"], TypeError, "not an integer"),
        ([], ValueError, "layer_ids cannot be empty"),
        (3, TypeError, "must be a list of integers"),
    ],
)
def test_bad_layer_ids_are_named_before_an_engine_starts(llama, layer_ids, error, message):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    with pytest.raises(error, match=message):
        VllmHiddenStatesGenerator(str(llama), layer_ids, max_model_len=MAX_MODEL_LEN)


def test_an_unknown_argument_names_the_vllm_release(llama):
    import vllm
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    with pytest.raises(TypeError, match=f"no_such_argument.*vLLM {vllm.__version__}"):
        VllmHiddenStatesGenerator(str(llama), [0], no_such_argument=1)


@pytest.mark.parametrize("argument", ["enable_prefix_caching", "async_scheduling"])
def test_an_argument_that_would_falsify_states_is_refused(llama, argument):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    with pytest.raises(ValueError, match=f"{argument} must stay off"):
        VllmHiddenStatesGenerator(str(llama), [0], **{argument: True})
