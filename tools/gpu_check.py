"""On a machine with a GPU: tiny models in bfloat16 against transformers in float32 and in bfloat16, row by row.

    VLLM_USE_V2_MODEL_RUNNER=1 python tools/gpu_check.py --json out.json Llama Qwen3 Qwen3-MoE

Metrics, worst over all rows of all layers: the largest difference relative to the row's largest value, and 1 - cosine.
A wrong row, layer or prompt has a 1 - cosine of about 1.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import specshim  # noqa: F401  (before speculators)

LAYER_IDS = [5, 0, 3, 1]


def check(name: str, prompts: list[list[int]], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of one architecture and what the capture found."""
    import torch
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    from specshim.probe.reference import Reference
    from specshim.probe.tiny_models.text import make_text

    with tempfile.TemporaryDirectory() as folder:
        make_text(name, Path(folder))
        # The weights that vLLM computes with are rounded to bfloat16, so the reference's are too.
        references = {"float32": Reference(folder), "bfloat16": Reference(folder)}
        for dtype, reference in references.items():
            reference.model.to(torch.bfloat16).to(getattr(torch, dtype))
        with VllmHiddenStatesGenerator(
            folder, LAYER_IDS, max_model_len=512, max_num_batched_tokens=256, dtype="bfloat16", **arguments
        ) as generator:
            results = generator.generate(prompts)
            info = generator.capture_info
    report: dict[str, Any] = {"architecture": name, **info, "rows": 0}
    for dtype, reference in references.items():
        relative, cosine = 0.0, 0.0
        for prompt, result in zip(prompts, results, strict=True):
            assert result["input_ids"].tolist() == prompt
            for layer_id, states in zip(LAYER_IDS, result["hidden_states"], strict=True):
                rows, expected = states.float(), reference.states(prompt)[layer_id].float()
                error = (rows - expected).abs().amax(-1) / expected.abs().amax(-1)
                relative = max(relative, float(error.max()))
                cosine = max(cosine, float(1 - torch.nn.functional.cosine_similarity(rows, expected, dim=-1).min()))
                report["rows"] += len(rows) if dtype == "float32" else 0
        report[f"relative_{dtype}"], report[f"cosine_{dtype}"] = relative, cosine
    return report


def main() -> None:
    """Check the named architectures; print a line for each and write all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="+")
    parser.add_argument("--prompts", type=int, default=37)
    parser.add_argument("--json", type=Path)
    options, rest = parser.parse_known_args()
    arguments = {name.lstrip("-"): json.loads(value) for name, value in (item.split("=", 1) for item in rest)}
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 500) for _ in range(rng.randint(3, 150))] for _ in range(options.prompts)]
    reports = []
    for name in options.architectures:
        try:
            report = check(name, prompts, arguments)
        except Exception as error:
            report = {"architecture": name, "error": f"{type(error).__name__}: {error}"}
        reports.append(report)
        print({key: f"{value:.1e}" if isinstance(value, float) else value for key, value in report.items()}, flush=True)
        if options.json:
            options.json.write_text(json.dumps(reports, indent=1) + "\n")


if __name__ == "__main__":
    main()
