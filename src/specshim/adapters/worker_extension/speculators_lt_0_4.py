"""speculators 0.3: `_get_captured_states` replies with one tensor per layer, all requests in one."""

from __future__ import annotations

from specshim.adapters.worker_extension.common import CONTRACT, method_patches
from specshim.patching.model import Adapter

ADAPTER = Adapter(
    id="worker_extension.speculators_lt_0_4",
    why="the replaced forward is Llama-shaped, needs SupportsEagle3 and forgets in which order rows were computed",
    upstream="vLLM 0.11.1: get_input_embeddings became embed_input_ids",
    remove_when="speculators < 0.4 is no longer supported",
    patches=method_patches("specshim.extraction.worker_extension:captured_states_by_layer"),
    contract=CONTRACT,
)
