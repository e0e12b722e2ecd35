"""The iterator form: results as soon as they are complete, and a generator that survives an early exit."""

from __future__ import annotations

import pytest

from tests.runtime.conftest import LAYER_IDS


def test_yields_every_prompt_with_its_index(generator, prompts, assert_right):
    batch = prompts(20, seed=20)
    results = dict(generator.iter_generate(batch))
    assert sorted(results) == list(range(20))
    assert_right([results[i] for i in range(20)], batch, LAYER_IDS)


def test_yields_a_short_prompt_before_later_ones_are_computed(generator, prompts):
    batch = prompts(40, seed=21, shortest=60)
    iterator = generator.iter_generate(batch)
    index, _ = next(iterator)
    assert index == 0
    assert generator.scheduler.has_unfinished_requests()
    assert len(dict(iterator)) == 39


def test_leaving_early_gives_up_the_rest_and_the_generator_stays_usable(generator, prompts, assert_right):
    batch = prompts(30, seed=22, shortest=60)
    for _ in generator.iter_generate(batch):
        break
    assert not generator.scheduler.has_unfinished_requests()
    other = prompts(6, seed=23)
    assert_right(generator.generate(other), other, LAYER_IDS)


def test_two_iterators_at_once_do_not_mix(generator, prompts, assert_right):
    first, second = prompts(8, seed=24), prompts(8, seed=25)
    a, b = generator.iter_generate(first), generator.iter_generate(second)
    found_a, found_b = {}, {}
    for _ in range(4):
        for iterator, found in ((a, found_a), (b, found_b)):
            index, result = next(iterator)
            found[index] = result
    found_b.update(b)
    found_a.update(a)
    assert_right([found_a[i] for i in range(8)], first, LAYER_IDS)
    assert_right([found_b[i] for i in range(8)], second, LAYER_IDS)


def test_input_is_checked_at_the_call(generator):
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        generator.iter_generate([[1, 2], []])
