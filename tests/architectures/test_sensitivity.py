"""The comparison can fail: with the usual rule, or with a neighbouring layer, it is off by far more than it allows."""

from __future__ import annotations

import pytest

from tests.architectures import compare
from tests.architectures.test_architectures import ENVIRONMENT
from tests.runtime.forked import run_forked


def _with_the_usual_sum(name):
    from specshim.extraction import residual_stream

    residual_stream.fitting_rules = lambda errors, dtype: [residual_stream.SUM]
    return compare.compare_text(name)


def _against_the_neighbouring_layer(name):
    error = compare.max_relative_error
    neighbours = [5, 0, 4]  # where layer 3 was captured
    compare.max_relative_error = lambda result, _layer_ids, states: error(result, neighbours, states)
    return compare.compare_text(name)


@pytest.mark.parametrize("name", ["Cohere", "StableLM", "Exaone4"])
def test_the_sum_that_is_right_for_most_models_is_seen_to_be_wrong(name):
    assert run_forked(_with_the_usual_sum, name, env=ENVIRONMENT)["relative"] > 0.1


def test_a_neighbouring_layer_is_seen_to_be_wrong():
    assert run_forked(_against_the_neighbouring_layer, "Llama", env=ENVIRONMENT)["relative"] > 0.1
