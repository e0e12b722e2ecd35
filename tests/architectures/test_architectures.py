"""Every architecture that can be built tiny: each row of each layer against transformers, or a known reason why not.

A reason is tried out, not believed: if the architecture runs after all, its test fails until the reason is removed.
"""

from __future__ import annotations

import re

import pytest

from specshim.probe.reference import TOLERANCES
from specshim.probe.tiny_models.text import TEXT_MODELS
from specshim.probe.tiny_models.wrappers import WRAPPERS
from tests.architectures.compare import LAYER_IDS, compare_text, compare_wrapper, make_generator
from tests.architectures.expectations import REFUSED, RELATIVE_TOLERANCES, RULES, expected_failure
from tests.runtime.forked import run_forked

# Two runs (in order, reversed) of twelve prompts, three layers each.
FEWEST_ROWS = 2 * 12 * len(LAYER_IDS) * 3
# Where every wrapper that vLLM runs through its transformers backend has its decoder.
TRANSFORMERS_BACKEND = "model.language_model.layers"
# The children take one thread each, which vLLM then must not bind to all cores.
ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _run(name, function, dtype, architecture_table, environment=None):
    reason = expected_failure(name)
    try:
        report = run_forked(function, name, env=ENVIRONMENT | (environment or {}))
    except AssertionError as error:
        message = str(error)
        if reason is None:
            architecture_table[name] = f"FAILED: {message.strip().splitlines()[-1]}"
            raise
        if not re.search(reason, message):
            pytest.fail(f"{name} was expected to fail with {reason!r}, but failed otherwise:\n{message}")
        architecture_table[name] = f"cannot run: {reason}"
        pytest.skip(reason)
    architecture_table[name] = report
    if reason is not None:
        pytest.fail(f"{name} was expected to fail with {reason!r}, but it runs: {report}")
    assert report["rows"] >= FEWEST_ROWS
    assert report["dtypes"] == [f"torch.{dtype}"]
    assert report["chunked"], "the prompts were not prefilled in chunks"
    assert report["relative"] < RELATIVE_TOLERANCES.get(name, TOLERANCES[dtype]), report
    return report["info"]


@pytest.mark.parametrize("name", [name for name in TEXT_MODELS if name not in REFUSED])
def test_text(name, architecture_table):
    tiny = TEXT_MODELS[name]
    info = _run(name, compare_text, tiny.dtype, architecture_table, tiny.environment)
    assert info["rule"] in RULES.get(name, {info["rule"]})


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper_with_text_prompts(name, architecture_table):
    info = _run(name, compare_wrapper, "float32", architecture_table)
    assert info["decoder"] in (WRAPPERS[name].decoder, TRANSFORMERS_BACKEND)


@pytest.mark.parametrize("name", REFUSED)
def test_an_unknown_residual_stream_is_refused_before_any_data(name, architecture_table):
    reason = expected_failure(name)
    with pytest.raises(AssertionError) as caught:
        run_forked(make_generator, name, env=ENVIRONMENT | TEXT_MODELS[name].environment)
    message = str(caught.value)
    if reason is not None:
        assert re.search(reason, message), message
        architecture_table[name] = f"cannot run: {reason}"
        pytest.skip(reason)
    assert re.search(REFUSED[name], message), message
    architecture_table[name] = f"refused: {message.strip().splitlines()[-1]}"
