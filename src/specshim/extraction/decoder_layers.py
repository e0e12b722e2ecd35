"""Find the decoder layers of a loaded model by what they are, and the norm that follows them."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import nn

from specshim.errors import CaptureError

# Parts of a multimodal wrapper that have layers of their own but are not the language model's decoder.
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "video", "speech", "encoder", "projector", "sound")

_OF_HEADS = re.compile(r"^(q|k|v|qk|kv|query|key|value)_")
_NORM_NAME = re.compile(r"norm|^ln(_|\d|$)|^layer_?norm")


@dataclass(frozen=True)
class Decoder:
    """The decoder layers: `path` within the model, the module that owns the list, and the list itself."""

    path: str
    owner: nn.Module
    layers: nn.ModuleList

    def is_held(self, index: int) -> bool:
        """Tell whether this pipeline stage holds the layer (other stages hold placeholders)."""
        return type(self.layers[index]).__name__ != "PPMissingLayer"

    def layer_class(self, index: int) -> str:
        """Return the class name of a layer."""
        return type(self.layers[index]).__qualname__

    def beside_the_layers(self) -> list[nn.Module]:
        """Return the owner's other children: some of them run on what the last layer returned."""
        return [child for child in self.owner.children() if child is not self.layers]


def norms_of(model: Any) -> list[tuple[str, nn.Module]]:
    """Return every norm that may run on the residual stream, with its path: by class name or by GPT-2's names.

    Norms of queries, keys and values are left out. Some of them reduce over the tensor-parallel ranks, and one rank
    that computes such a norm again would wait for the others forever.
    """
    return [(path, module) for path, module in model.named_modules() if _is_norm(path.rpartition(".")[2], module)]


def _is_norm(name: str, module: nn.Module) -> bool:
    if next(module.children(), None) is not None or hasattr(module, "tp_world") or _OF_HEADS.search(name.lower()):
        return False
    class_name = type(module).__name__
    return not class_name.endswith("TP") and bool("norm" in class_name.lower() or _NORM_NAME.search(name.lower()))


def find_decoder(model: Any, num_layers: int) -> Decoder:
    """Return the language model's decoder: the list of `num_layers` layers that is not another tower's.

    Several lists of that length are told apart by, in this order: lying in what the model calls its language model;
    having layers with a KV cache, which vLLM's encoders do not; not lying in a part named like another tower; lying
    further out. Each only counts where it leaves a list. Raises CaptureError if there is no list, or if several remain.
    """
    architecture = type(model).__qualname__
    fitting = [decoder for decoder in _lists(model) if len(decoder.layers) == num_layers]
    if not fitting:
        lists = ", ".join(f"{decoder.path} ({len(decoder.layers)})" for decoder in _lists(model)) or "none"
        raise CaptureError(
            f"{architecture} has no list of {num_layers} decoder layers, the number in its text config, so its "
            f"hidden states cannot be captured. Lists found: {lists}"
        )
    language_model = _language_model(model)
    if language_model is not None:
        inside = {id(module) for module in language_model.modules()}
        fitting = [d for d in fitting if id(d.layers) in inside] or fitting
    fitting = [d for d in fitting if _has_kv_cache(d.layers)] or fitting
    fitting = [d for d in fitting if not _names_another_tower(d.path)] or fitting
    depth = min(d.path.count(".") for d in fitting)
    fitting = [d for d in fitting if d.path.count(".") == depth]
    if len(fitting) > 1:
        raise CaptureError(
            f"{architecture} has several lists of {num_layers} layers ({', '.join(d.path for d in fitting)}), so a "
            "layer id does not say which of them is meant; this architecture is not supported"
        )
    return fitting[0]


def _language_model(model: Any) -> nn.Module | None:
    getter = getattr(model, "get_language_model", None)
    if getter is None:
        return None
    try:
        found = getter()
    except (NotImplementedError, AttributeError):
        return None
    return found if isinstance(found, nn.Module) and found is not model else None


def _lists(model: nn.Module) -> list[Decoder]:
    """Return every ModuleList that does not lie within another one."""
    found: dict[int, Decoder] = {}
    waiting: deque[tuple[str, nn.Module]] = deque([("", model)])
    while waiting:
        path, module = waiting.popleft()
        for name, child in module.named_children():
            child_path = f"{path}.{name}" if path else name
            if isinstance(child, nn.ModuleList):
                found.setdefault(id(child), Decoder(child_path, module, child))
            else:
                waiting.append((child_path, child))
    return list(found.values())


def _names_another_tower(path: str) -> bool:
    return any(tower in name for name in path.lower().split(".") for tower in _OTHER_TOWERS)


def _has_kv_cache(layers: nn.ModuleList) -> bool:
    return any(hasattr(module, "kv_cache") for module in layers.modules())
