"""speculators 0.4: `_get_captured_states` replies with a dict, request id to one tensor per layer."""

from __future__ import annotations

from specshim.adapters.worker_extension.common import CONTRACT, method_patches
from specshim.patching.model import Adapter

ADAPTER = Adapter(
    id="worker_extension.speculators_ge_0_4",
    why="the replaced forward is Llama-shaped and drops embedding scaling, deepstack and extra layer arguments",
    upstream="vLLM 0.12-0.33: decoder layers with other arguments; the V2 model runner has no input_batch",
    remove_when="speculators < 0.5 is no longer supported",
    patches=method_patches("specshim.extraction.worker_extension:HiddenStatesWorkerExtension._get_captured_states"),
    contract=CONTRACT,
)
