"""Real engines whose layers mean something that a layer id cannot name: refused while the generator is made."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from specshim.probe.tiny_models import make_llama
from tests.architectures.test_architectures import ENVIRONMENT
from tests.runtime.forked import in_process, run_forked


def _make_generator_of_another_class(architecture):
    """Make a generator of a model that shares Llama's configuration fields, with vLLM's dummy weights."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    from tests.architectures.compare import inspect_models_here

    inspect_models_here()
    with TemporaryDirectory() as folder:
        make_llama(Path(folder))
        in_process(VllmHiddenStatesGenerator)(
            folder,
            [0, 5],
            max_model_len=128,
            load_format="dummy",
            hf_overrides={"architectures": [architecture], "total_ut_steps": 2},
        )


def test_a_looped_model_is_refused_by_name():
    with pytest.raises(AssertionError) as caught:
        run_forked(_make_generator_of_another_class, "IQuestLoopCoderForCausalLM", env=ENVIRONMENT)
    message = str(caught.value)
    assert "CaptureError: IQuestLoopCoderForCausalLM: decoder layer 0 (model.layers) ran more than once" in message
    assert "In a looped model a layer id does not say which pass is meant" in message
