"""transformers 5.24 removed `transformers.modeling_attn_mask_utils`, which the first Eagle model imports."""

from __future__ import annotations

from specshim.patching.model import Adapter, Patch

ADAPTER = Adapter(
    id="transformers_names.transformers_ge_5_24",
    why="`import speculators` imports _prepare_4d_causal_attention_mask from a module that is gone",
    upstream="transformers 5.24.0: modeling_attn_mask_utils was removed",
    remove_when="speculators < 0.7 is no longer supported (0.7.0 dropped the first Eagle model)",
    patches=(
        Patch(
            "transformers_names.attention_mask.module",
            "provide",
            "transformers.modeling_attn_mask_utils",
            "specshim.adapters.transformers_names.attention_mask:",
        ),
    ),
)
