"""Which architectures cannot be built or run on which releases, with the message that shows why.

Each entry is (requirement, pattern): while the installed package fits the requirement, the run must fail with a message
that the pattern matches. An entry that no longer holds fails its test.
"""

from __future__ import annotations

from importlib.metadata import version

from packaging.requirements import Requirement
from packaging.version import Version

NOT_IN_TRANSFORMERS = r"module transformers has no attribute \w+Config"

NO_SELECTIVE_SCAN = "no attribute 'selective_scan_fwd'"
CONVOLUTION = r"too many values to unpack \(expected 2\)"

EXPECTED_FAILURES: dict[str, list[tuple[str, str]]] = {
    "Ministral3": [("transformers<5", NOT_IN_TRANSFORMERS)],
    "Glm4-MoE lite": [("transformers<5", NOT_IN_TRANSFORMERS)],
    "MiniMax-M2": [
        ("transformers<5", NOT_IN_TRANSFORMERS),
        # The CPU router without expert groups knows no sigmoid.
        ("vllm>=0.17", r'assert self\.scoring_func == "softmax"'),
    ],
    "Afmoe": [("transformers<5", NOT_IN_TRANSFORMERS)],
    "Nemotron-H, attention and MLP layers": [("transformers<5", NOT_IN_TRANSFORMERS)],
    "OLMo hybrid": [
        ("transformers<5", NOT_IN_TRANSFORMERS),
        ("vllm>=0.17", "module 'triton' has no attribute 'set_allocator'"),
    ],
    "Gemma4": [("transformers<5", NOT_IN_TRANSFORMERS)],
    "HRM": [("transformers<5", NOT_IN_TRANSFORMERS)],
    # transformers 5 writes the experts in a layout that vLLM's DBRX does not read.
    "Dbrx": [("transformers>=5", r"KeyError: 'blocks\.0\.ffn\.experts\.w13_weight'")],
    # vLLM's CPU kernels before 0.17 lack these.
    "GPT-OSS": [("vllm<0.17", "expected scalar type BFloat16 but found Float")],
    "Llama4": [("vllm<0.17", "assert not apply_router_weight_on_input")],
    "Llama 4, wrapper": [("vllm<0.17", "assert not apply_router_weight_on_input")],
    "LFM2": [("vllm<0.17", CONVOLUTION)],
    "Qwen3-Next": [("vllm<0.17", CONVOLUTION)],
    # No CPU kernel at all.
    "Jamba": [("vllm<0.17", CONVOLUTION), ("vllm>=0.17", NO_SELECTIVE_SCAN)],
    "Mamba": [("vllm<0.17", CONVOLUTION), ("vllm>=0.17", NO_SELECTIVE_SCAN)],
    "Gemma3n": [("transformers<5", r"KeyError: 'self_decoder\.language_model\.altup_projections")],
}

# Where vLLM itself computes otherwise than transformers; a wrong row is still off by about 1.
RELATIVE_TOLERANCES: dict[str, float] = {
    "Apertus": 0.01,  # vLLM's xIELU evaluates its parameters in bfloat16
    "Qwen3-Next": 0.2,  # bfloat16 in a recurrence, which adds up along the prompt
    "Bloom": 0.005,  # vLLM's GELU is the exact one, Bloom's the tanh approximation
}

# Architectures whose layers return something else than one residual stream, with the refusal.
REFUSED: dict[str, str] = {
    # Four parallel streams (AltUp).
    "Gemma3n": r"CaptureError: Gemma3nForCausalLM: .*shape \(4, 8, 128\).*not one residual stream",
    # Two stacks of layers that run in turns.
    "HRM": r"CaptureError: HrmTextForCausalLM has (no list of|several lists)",
}

# What calibration has to choose where the usual sum is wrong; the class may differ between releases.
_FIRST = {"first of the pair"}
RULES: dict[str, set[str]] = {
    "Cohere": _FIRST,
    "Cohere2": _FIRST,
    "Exaone4": _FIRST,
    "Exaone4, hybrid": _FIRST,
    "StableLM": _FIRST,
    "GraniteMoE hybrid, attention layers": _FIRST,
    "AyaVision, wrapper": _FIRST,
    "OLMo2": {"single tensor"},
    "GPT-NeoX": {"single tensor"},
    "StarCoder2": {"single tensor"},
    "SmolLM3": {"single tensor"},
}


def expected_failure(name: str) -> str | None:
    """Return the pattern of the failure that is expected of the installed releases, or None."""
    for requirement, pattern in EXPECTED_FAILURES.get(name, []):
        required = Requirement(requirement)
        if required.specifier.contains(_installed(required.name), prereleases=True):
            return pattern
    return None


def _installed(package: str) -> Version:
    for name in (package, f"{package}-cpu"):
        try:
            return Version(Version(version(name)).public)
        except ImportError:
            continue
    raise LookupError(f"{package} is not installed")
