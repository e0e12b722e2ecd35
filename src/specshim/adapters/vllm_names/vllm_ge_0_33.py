"""vLLM 0.33 moved the KV-cache planning helpers, which speculators imports and the patched generator never calls."""

from __future__ import annotations

from typing import Any

from specshim.patching.model import Adapter, Patch


def _moved(name: str) -> Any:
    def helper(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"vLLM 0.33 no longer has vllm.v1.core.kv_cache_utils.{name}; specshim only makes the import work, "
            "because the patched generator lets vLLM plan its own KV cache"
        )

    helper.__name__ = helper.__qualname__ = name
    return helper


_get_kv_cache_groups_uniform_spec = _moved("_get_kv_cache_groups_uniform_spec")
get_kv_cache_config_from_groups = _moved("get_kv_cache_config_from_groups")
unify_hybrid_kv_cache_specs = _moved("unify_hybrid_kv_cache_specs")

ADAPTER = Adapter(
    id="vllm_names.vllm_ge_0_33",
    why="speculators imports three KV-cache helpers at its first line that are no longer there",
    upstream="vLLM 0.33.0: planning moved from kv_cache_utils to kv_cache_planning",
    remove_when="speculators < 0.5 is no longer supported",
    patches=tuple(
        Patch(f"vllm_names.kv_cache_utils.{name}", "alias", name, f"{__name__}:{name}")
        for name in (
            "_get_kv_cache_groups_uniform_spec",
            "get_kv_cache_config_from_groups",
            "unify_hybrid_kv_cache_specs",
        )
    ),
)
