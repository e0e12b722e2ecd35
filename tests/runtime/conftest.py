"""Fixtures of the run-time suite: a real vLLM engine on the CPU, a tiny model, and transformers' states beside it.

The suite runs inside a cell (`nox -s cell`), where vLLM, speculators, torch and transformers are installed.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import specshim
from specshim.probe.reference import RELATIVE_TOLERANCE, Reference, max_abs_error, max_relative_error
from specshim.probe.tiny_models import VOCABULARY_SIZE, make_llama

# Out of order, with a duplicate, the first and the last layer.
LAYER_IDS = [5, 0, 3, 3]
MAX_MODEL_LEN = 512
# Small, so that prompts are cut into chunks and one prompt alone can be longer than a step.
TOKENS_PER_STEP = 64
USER_EXTENSION = "tests.runtime.user_extension.UserExtension"

_worst = {"relative": 0.0, "absolute": 0.0, "rows": 0, "prompts": 0}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cell-record", help="write the outcome of the run to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "last: destroys the shared engine, so it runs after all others")
    config.stash[_started] = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


_started = pytest.StashKey[float]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = session.config.getoption("--cell-record")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not target or reporter is None:
        return
    counts = {
        outcome: len(reporter.stats.get(outcome, [])) for outcome in ("passed", "failed", "error", "skipped", "xfailed")
    }
    record = {
        "tests": counts,
        "max_abs_error": _worst["absolute"],
        "max_relative_error": _worst["relative"],
        "prompts_compared": _worst["prompts"],
        "rows_compared": _worst["rows"],
        "seconds": round(time.monotonic() - session.config.stash[_started], 1),
        "adapters": [record.adapter for record in specshim.status() if record.adapter],
    }
    Path(target).write_text(json.dumps(record, indent=1) + "\n")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def reference(llama: Path) -> Reference:
    return Reference(llama)


@pytest.fixture(scope="session")
def generator(llama: Path) -> Iterator[Any]:
    """The stock class, patched, on its default path: worker processes, spawned; with an extension of the user's own."""
    from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

    generator = VllmHiddenStatesGenerator(
        str(llama),
        LAYER_IDS,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=TOKENS_PER_STEP,
        dtype="float32",
        worker_extension_cls=USER_EXTENSION,
    )
    yield generator
    generator.close()
    gc.collect()


@pytest.fixture
def prompts() -> Callable[..., list[list[int]]]:
    """Return a maker of random prompts, different for every seed."""

    def make(count: int, longest: int = 120, seed: int = 0, shortest: int = 1) -> list[list[int]]:
        rng = random.Random(seed)
        return [[rng.randrange(VOCABULARY_SIZE) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]

    return make


@pytest.fixture(scope="session")
def assert_right(reference: Reference) -> Callable[..., None]:
    """Return the check that result[i] is what prompt i alone gives, row by row and layer by layer."""

    def check(
        results: list[dict[str, Any]],
        prompts: list[list[int]],
        layer_ids: list[int],
        reference: Reference = reference,
        tolerance: float = RELATIVE_TOLERANCE,
    ) -> None:
        assert len(results) == len(prompts)
        for index, (result, prompt) in enumerate(zip(results, prompts, strict=True)):
            assert result["input_ids"].tolist() == list(prompt), f"prompt {index}"
            assert result["loss_mask"] is None
            assert len(result["hidden_states"]) == len(layer_ids)
            expected = reference.states(prompt)
            relative = max_relative_error(result, layer_ids, expected)
            assert relative < tolerance, f"prompt {index} of {len(prompts)}: relative error {relative:.1e}"
            if tolerance == RELATIVE_TOLERANCE:
                _worst["relative"] = max(_worst["relative"], relative)
                _worst["absolute"] = max(_worst["absolute"], max_abs_error(result, layer_ids, expected))
                _worst["rows"] += len(prompt) * len(layer_ids)
                _worst["prompts"] += 1

    return check
