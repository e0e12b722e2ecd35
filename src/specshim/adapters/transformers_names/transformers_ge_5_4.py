"""transformers 5.4 made its config classes dataclasses whose annotations name `torch`, which it does not import."""

from __future__ import annotations

from specshim.patching.model import Adapter, Patch

ADAPTER = Adapter(
    id="transformers_names.transformers_ge_5_4",
    why="pydantic resolves the inherited annotation 'torch.dtype' in this module and finds no torch",
    upstream="transformers 5.4.0: PreTrainedConfig became a dataclass; torch is imported for type checking only",
    remove_when="speculators < 0.5 is no longer supported (0.5.0 passes the namespace itself)",
    patches=(Patch("transformers_names.torch.alias", "alias", "torch", "torch:"),),
)
