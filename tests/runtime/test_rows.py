"""`result[i]` is what prompt i alone would give: for any batch, any order, any call."""

from __future__ import annotations

import torch

from tests.runtime.conftest import LAYER_IDS, MAX_MODEL_LEN, TOKENS_PER_STEP


def test_one_prompt(generator, prompts, assert_right):
    batch = prompts(1, shortest=30)
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_twelve_prompts_come_back_in_input_order(generator, prompts, assert_right):
    # Ten and more request ids sort differently as strings than as numbers.
    batch = prompts(12, seed=1)
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_more_prompts_than_a_step_takes(generator, prompts, assert_right):
    batch = prompts(33, seed=2)
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_two_hundred_prompts(generator, prompts, assert_right):
    batch = prompts(200, seed=3)
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_repeated_calls_and_another_order_give_the_same(generator, prompts, assert_right):
    batch = prompts(9, seed=4)
    first = generator.generate(batch)
    again = generator.generate(batch)
    reversed_batch = generator.generate(batch[::-1])
    assert_right(first, batch, LAYER_IDS)
    assert_right(again, batch, LAYER_IDS)
    assert_right(reversed_batch, batch[::-1], LAYER_IDS)


def test_identical_prompts_and_shared_prefixes(generator, prompts, assert_right):
    prefix, *tails = prompts(7, seed=5, shortest=40, longest=60)
    batch = [prefix + tail for tail in tails] + [prefix] * 4 + [tails[0]] * 3
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_a_prompt_longer_than_a_step_among_short_ones(generator, prompts, assert_right):
    long = prompts(1, seed=6, shortest=4 * TOKENS_PER_STEP + 3, longest=MAX_MODEL_LEN - 1)
    batch = [*prompts(5, seed=7), *long, *prompts(5, seed=8)]
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_the_longest_prompt_that_is_not_cut(generator, prompts, assert_right):
    batch = prompts(1, seed=9, shortest=MAX_MODEL_LEN - 1, longest=MAX_MODEL_LEN - 1)
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_one_token_prompts(generator, assert_right):
    batch = [[7], [8], [7]]
    assert_right(generator.generate(batch), batch, LAYER_IDS)


def test_a_tensor_and_lists_of_tensors_are_prompts_too(generator, prompts, assert_right):
    batch = prompts(4, seed=10, shortest=25, longest=25)
    assert_right(generator.generate(torch.tensor(batch)), batch, LAYER_IDS)
    assert_right(generator.generate([torch.tensor(p, dtype=torch.int32) for p in batch]), batch, LAYER_IDS)


def test_results_are_independent_cpu_tensors_in_the_models_dtype(generator, prompts, assert_right):
    batch = prompts(2, seed=11, shortest=10)
    kept, spoiled = generator.generate(batch), generator.generate(batch)
    for result in spoiled:
        for states in result["hidden_states"]:
            assert states.device.type == "cpu"
            assert states.dtype == torch.float32
        # Duplicated layer ids are equal, not the same memory.
        assert torch.equal(result["hidden_states"][2], result["hidden_states"][3])
        result["hidden_states"][2].zero_()
        assert result["hidden_states"][3].abs().sum() > 0
    assert_right(kept, batch, LAYER_IDS)


def test_layer_id_means_the_residual_stream_after_that_layer_before_the_final_norm(generator, prompts, reference):
    (prompt,) = prompts(1, seed=12, shortest=20)
    (result,) = generator.generate([prompt])
    with torch.inference_mode():
        output = reference.model.model(input_ids=torch.tensor([prompt]), output_hidden_states=True)
        normed = reference.model.model.norm(result["hidden_states"][LAYER_IDS.index(5)])
    # transformers' own list holds the embedding at 0 and the state after layer L at L + 1, like vLLM's aux ids.
    after_layer_3 = output.hidden_states[3 + 1][0]
    torch.testing.assert_close(result["hidden_states"][LAYER_IDS.index(3)], after_layer_3, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normed, output.last_hidden_state[0], rtol=1e-4, atol=1e-4)
    for documented in (type(generator), type(generator).generate):
        assert "before the final norm" in documented.__doc__
        assert "L + 1" in documented.__doc__
