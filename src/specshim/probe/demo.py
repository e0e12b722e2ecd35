"""The main job on a tiny model, on this machine, in a minute: `python -m specshim.probe.demo`.

Makes a tiny Llama with a tokenizer, runs speculators' generator under specshim on it, compares every row of every
layer with transformers, and prints a table. Exits with 0 only if all rows match.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import specshim


def main(arguments: list[str] | None = None) -> int:
    """Run the demonstration; return 0 if every row matched, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m specshim.probe.demo", description=__doc__)
    parser.add_argument("--prompts", type=int, default=12, help="number of random prompts (default: 12)")
    parser.add_argument("--layers", type=int, nargs="+", default=[5, 0, 3], help="decoder layers to extract")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32", help="model dtype")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="Field name .* shadows")

    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    import torch

    from specshim.probe.reference import TOLERANCES, Reference, max_abs_error, max_relative_error
    from specshim.probe.tiny_models import VOCABULARY_SIZE, make_llama

    tolerance = TOLERANCES[options.dtype]
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCABULARY_SIZE) for _ in range(rng.randint(3, 150))] for _ in range(options.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(Path(folder), dtype=getattr(torch, options.dtype))
        started = time.monotonic()
        # 64 tokens a step, so that longer prompts are computed in chunks beside other prompts.
        with VllmHiddenStatesGenerator(
            str(model), options.layers, max_model_len=512, max_num_batched_tokens=64, dtype=options.dtype
        ) as generator:
            ready = time.monotonic()
            results = generator.generate(prompts)
            done = time.monotonic()
            info = generator.capture_info
        reference = Reference(model)
        rows, worst = [], 0.0
        for index, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
            expected = reference.states(prompt)
            relative = max_relative_error(result, options.layers, expected)
            worst = max(worst, relative)
            error = max_abs_error(result, options.layers, expected)
            verdict = "match" if relative < tolerance else "WRONG"
            rows.append((str(index), str(len(prompt)), _join(options.layers), f"{error:.1e}", verdict))

    _print_table(("prompt", "tokens", "layers", "max abs error", "verdict"), rows)
    records = [r for r in specshim.status() if r.outcome is specshim.Outcome.APPLIED]
    _print_table(("target", "adapter", "patches"), [(r.target, str(r.adapter), str(len(r.patches))) for r in records])
    print(", ".join(f"{package} {version}" for package, version in _versions(records).items()))
    print(
        f"decoder at {info['decoder']} ({info['layer_class']}, {info['rule']}, {info['runner']} model runner); "
        f"engine ready in {ready - started:.0f} s, {sum(map(len, prompts))} tokens in {done - ready:.2f} s"
    )
    right = bool(records) and worst < tolerance
    print("every row is what transformers computes" if right else "NOT every row is right")
    return 0 if right else 1


def _join(values: list[int]) -> str:
    return " ".join(map(str, values))


def _versions(records: list[Any]) -> dict[str, str]:
    return {package: version for record in records for package, version in record.versions.items()}


def _print_table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, tuple("-" * width for width in widths), *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()


if __name__ == "__main__":
    sys.exit(main())
