"""Find the decoder layers of a loaded model by what they are, and the norm that follows them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from torch import nn

from specshim.errors import CaptureError

# Parts of a multimodal wrapper that have layers of their own but are not the language model's decoder.
_OTHER_TOWERS = ("vision", "visual", "audio", "image", "video", "speech", "encoder", "projector", "sound")


@dataclass(frozen=True)
class Decoder:
    """The decoder layers: `path` within the model, the module that owns the list, and the list itself."""

    path: str
    owner: nn.Module
    layers: nn.ModuleList

    def is_held(self, index: int) -> bool:
        """Tell whether this pipeline stage holds the layer (other stages hold placeholders)."""
        return type(self.layers[index]).__name__ != "PPMissingLayer"

    def norms(self) -> list[tuple[str, nn.Module]]:
        """Return the owner's children that may be the final norm, with their names."""
        return [
            (name, child)
            for name, child in self.owner.named_children()
            if "norm" in type(child).__name__.lower() or "norm" in name.lower() or name == "ln_f"
        ]


def find_decoder(model: Any, num_layers: int) -> Decoder:
    """Return the language model's decoder: the outermost ModuleList of `num_layers` layers outside other towers.

    The model's own `get_language_model()` is asked first, so that a tower with as many layers as the decoder is not
    mistaken for it. Raises CaptureError if there is none, or if several fit.
    """
    roots = [("", model)]
    language_model = _language_model(model)
    if language_model is not None:
        name = next((n for n, m in model.named_modules() if m is language_model), "language_model")
        roots.insert(0, (name, language_model))
    for prefix, root in roots:
        found = _outermost_lists(prefix, root, num_layers)
        if len(found) == 1:
            return found[0]
        if len(found) > 1:
            raise CaptureError(
                f"{type(model).__name__} has several lists of {num_layers} layers ({', '.join(d.path for d in found)}),"
                " so its decoder cannot be told apart"
            )
    lists = [f"{name} ({len(module)})" for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    raise CaptureError(
        f"{type(model).__name__} has no list of {num_layers} decoder layers, the number in its text config. "
        f"Lists found: {', '.join(lists) or 'none'}"
    )


def _language_model(model: Any) -> nn.Module | None:
    getter = getattr(model, "get_language_model", None)
    if getter is None:
        return None
    try:
        found = getter()
    except (NotImplementedError, AttributeError):
        return None
    return found if isinstance(found, nn.Module) and found is not model else None


def _outermost_lists(prefix: str, root: nn.Module, num_layers: int) -> list[Decoder]:
    """Search breadth-first; stop at the first depth that has a fitting list."""
    found: dict[int, Decoder] = {}
    level: deque[tuple[str, nn.Module]] = deque([(prefix, root)])
    while level and not found:
        below: deque[tuple[str, nn.Module]] = deque()
        for path, module in level:
            for name, child in module.named_children():
                child_path = f"{path}.{name}" if path else name
                if isinstance(child, nn.ModuleList):
                    if len(child) == num_layers:
                        found.setdefault(id(child), Decoder(child_path, module, child))
                elif not any(tower in name.lower() for tower in _OTHER_TOWERS):
                    below.append((child_path, child))
        level = below
    return list(found.values())
