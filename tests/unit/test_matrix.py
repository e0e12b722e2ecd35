"""compat_matrix.yaml claims nothing that was not run, and README claims nothing that the matrix does not."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import yaml
from packaging.version import Version

from specshim.adapters import TARGETS
from specshim.patching.planning import select

ROOT = Path(__file__).resolve().parent.parent.parent
CELLS = yaml.safe_load((ROOT / "compat_matrix.yaml").read_text())["cells"]


def test_there_are_cells_and_each_pair_has_one():
    pairs = [(cell["speculators"], cell["vllm"]) for cell in CELLS]
    assert len(pairs) == len(set(pairs)) >= 10


def test_a_claim_is_what_its_record_says():
    for cell in CELLS:
        record = json.loads((ROOT / cell["evidence"]["record"]).read_text())
        assert (record["speculators"], record["vllm"]) == (cell["speculators"], cell["vllm"])
        assert record["code"] == cell["evidence"]["code"]
        wrong = record["tests"]["failed"] + record["tests"]["error"]
        assert cell["status"] == ("broken" if wrong or not record["tests"]["passed"] else "shimmed")
        assert (cell["status"] == "shimmed") or cell["note"]
        assert record["max_abs_error"] == cell["evidence"]["max_abs_error"]
        # float32 against float32; a wrong row is off by the size of a layer's contribution.
        assert cell["status"] != "shimmed" or record["max_abs_error"] < 1e-3


def test_the_adapters_named_are_those_that_would_be_chosen():
    for cell in CELLS:
        versions = {"speculators": Version(cell["speculators"]), "vllm": Version(cell["vllm"])}
        (target,) = (t for t in TARGETS if t.id == "generator")
        entry = select(target.entries, versions)[0]
        assert importlib.import_module(entry.adapter).ADAPTER.id in cell["adapters"]


def test_readme_lists_exactly_the_pairs_that_are_right():
    readme = (ROOT / "README.md").read_text()
    for speculators in ("0.3.0", "0.4.0.1"):
        (listed,) = re.findall(rf"^\| {re.escape(speculators)} \|[^|]*\|([^|]*)\|$", readme, re.MULTILINE)
        right = [c["vllm"] for c in CELLS if c["speculators"] == speculators and c["status"] == "shimmed"]
        assert sorted(listed.replace(" ", "").split(",")) == sorted(right)
