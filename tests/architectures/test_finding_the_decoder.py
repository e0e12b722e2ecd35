"""The decoder is found by what it is. Fake module trees: no engine is needed to say which list is meant."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specshim.errors import CaptureError
from specshim.extraction.decoder_layers import find_decoder


def _tree(paths: dict[str, nn.Module]) -> nn.Module:
    root = nn.Module()
    for path, leaf in paths.items():
        module = root
        *parents, last = path.split(".")
        for name in parents:
            if not hasattr(module, name):
                module.add_module(name, nn.Module())
            module = getattr(module, name)
        module.add_module(last, leaf)
    return root


def _layers(count: int = 6, kv_cache: bool = False) -> nn.ModuleList:
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(count))
    if kv_cache:
        layers[0].kv_cache = torch.empty(0)
    return layers


# transformers' models have no KV cache in their layers, vLLM's have.
PATHS = [
    "model.layers",
    "language_model.model.layers",
    "model.language_model.layers",
    "transformer.h",
    "transformer.blocks",
    "model.text_model.layers",
    "llm.model.layers",
    "text.blocks",
    "model.decoder.layers",
    "gpt_neox.layers",
]


@pytest.mark.parametrize(
    ("path", "kv_cache"),
    # Without a KV cache nothing tells that ChatGLM's "encoder" is the decoder.
    [*((path, kv_cache) for path in PATHS for kv_cache in (True, False)), ("transformer.encoder.layers", True)],
)
@pytest.mark.parametrize("tower", ["vision_tower.encoder.layers", "visual.blocks", "audio_tower.layers"])
@pytest.mark.parametrize("tower_first", [True, False])
def test_a_tower_with_as_many_layers_is_not_taken_for_it(path, kv_cache, tower, tower_first):
    decoder = _layers(kv_cache=kv_cache)
    lists = {tower: _layers(), path: decoder} if tower_first else {path: decoder, tower: _layers()}
    assert find_decoder(_tree(lists), 6).path == path


def test_encoder_in_the_name_does_not_exclude_the_only_list():
    assert find_decoder(_tree({"transformer.encoder.layers": _layers()}), 6).path == "transformer.encoder.layers"


def test_the_models_own_language_model_counts_more_than_any_name():
    model = _tree({"perception.layers": _layers(), "vision_aware_text.model.layers": _layers()})
    model.get_language_model = lambda: model.vision_aware_text
    assert find_decoder(model, 6).path == "vision_aware_text.model.layers"


def test_layers_with_a_kv_cache_count_more_than_a_tower_further_out_with_an_unknown_name():
    model = _tree({"perception.layers": _layers(), "language_model.model.layers": _layers(kv_cache=True)})
    assert find_decoder(model, 6).path == "language_model.model.layers"


def test_a_list_under_two_names_is_one_list():
    layers = _layers()
    assert find_decoder(_tree({"model.layers": layers, "model.blocks": layers}), 6).layers is layers


def test_lists_within_layers_are_not_decoders():
    layers = nn.ModuleList(_tree({"experts": _layers(6)}) for _ in range(6))
    assert find_decoder(_tree({"model.layers": layers}), 6).path == "model.layers"


def test_no_list_of_the_right_length_names_the_architecture_and_what_was_found():
    with pytest.raises(CaptureError, match=r"Module has no list of 7 .*model\.layers \(6\)"):
        find_decoder(_tree({"model.layers": _layers()}), 7)


def test_two_lists_that_nothing_tells_apart_are_refused():
    with pytest.raises(CaptureError, match=r"several lists of 6 layers \(model\.H\.layers, model\.L"):
        find_decoder(_tree({"model.H.layers": _layers(), "model.L.layers": _layers()}), 6)
