"""Tokenizers and configs that need remote code load with the same trust flag everywhere."""

from __future__ import annotations

import functools
import json
import shutil

import pytest

from tests.runtime.forked import extract, run_forked

TOKENIZER = """
from transformers import PreTrainedTokenizerFast


class RemoteTokenizer(PreTrainedTokenizerFast):
    remote = True
"""

CONFIG = """
from transformers import LlamaConfig


class RemoteConfig(LlamaConfig):
    model_type = "remote_llama"
"""


@pytest.fixture(scope="module")
def remote_llama(llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote") / "model"
    shutil.copytree(llama, folder)
    (folder / "tokenization_remote.py").write_text(TOKENIZER)
    (folder / "configuration_remote.py").write_text(CONFIG)
    _edit(
        folder / "tokenizer_config.json",
        tokenizer_class="RemoteTokenizer",
        auto_map={"AutoTokenizer": [None, "tokenization_remote.RemoteTokenizer"]},
    )
    _edit(
        folder / "config.json",
        model_type="remote_llama",
        auto_map={"AutoConfig": "configuration_remote.RemoteConfig"},
    )
    return folder


def _edit(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_remote_code_is_trusted_by_tokenizer_config_and_engine_alike(remote_llama, prompts, assert_right):
    batch = prompts(4, seed=50)
    answer = run_forked(
        functools.partial(extract, str(remote_llama), batch, layer_ids=[5], max_model_len=256, dtype="float32")
    )
    assert_right(answer["results"], batch, [5])


def test_without_trust_nothing_is_loaded(remote_llama):
    report = run_forked(functools.partial(_error_without_trust, str(remote_llama)))
    assert "trust_remote_code" in report


def _error_without_trust(model):
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    try:
        VllmHiddenStatesGenerator(model, [0], max_model_len=256, trust_remote_code=False)
    except Exception as error:
        return str(error)
    return "no error"
