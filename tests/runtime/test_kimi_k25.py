"""Kimi-K2.5: a multimodal wrapper whose decoder lies at language_model.model.layers; text prompts."""

from __future__ import annotations

import os

import pytest
from packaging.version import Version

from specshim.probe.reference import Reference
from specshim.probe.tiny_models import MEDIA_TOKEN, make_kimi_k25


def _vllm_version() -> Version:
    import vllm

    return Version(vllm.__version__)


@pytest.mark.skipif(
    _vllm_version() < Version("0.15.1"), reason="vLLM has KimiK25ForConditionalGeneration from 0.15.1 on"
)
def test_states_behind_the_wrapper_are_those_of_the_decoder_alone(tmp_path, prompts, assert_right):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    make_kimi_k25(tmp_path)
    batch = [[token % MEDIA_TOKEN for token in prompt] for prompt in prompts(12, seed=60, longest=150)]
    with VllmHiddenStatesGenerator(
        str(tmp_path),
        [3, 0, 2],
        max_model_len=256,
        max_num_batched_tokens=64,
        dtype="float32",
        limit_mm_per_prompt={"vision_chunk": 0},
    ) as generator:
        results = generator.generate(batch)
        info = generator.capture_info
    assert info["decoder"] == "language_model.model.layers"
    assert info["layer_class"] == "DeepseekV2DecoderLayer"
    assert_right(results, batch, [3, 0, 2], reference=Reference(tmp_path / "text"))
    assert os.environ.get("VLLM_MLA_DISABLE") == "1" or _vllm_version() >= Version("0.28")
