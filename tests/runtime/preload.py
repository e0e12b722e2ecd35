"""Modules that every forked child would import by itself; importing this one brings them all into the fork server."""

import importlib

for name in (
    "specshim.extraction.generator",
    "specshim.extraction.session",
    "specshim.extraction.worker_extension",
    "specshim.probe.reference",
    "specshim.probe.tiny_models",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "vllm.engine.arg_utils",
    "vllm.model_executor.models.llama",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
):
    importlib.import_module(name)
