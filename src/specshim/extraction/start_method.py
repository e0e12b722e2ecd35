"""How vLLM may start its workers: by forking only where a forked child could still use the accelerator.

vLLM forks by default and switches to spawning when CUDA is initialised. But a mere look at the number of devices,
which loading a model with transformers does, already makes torch refuse CUDA in every forked child, and vLLM does not
notice: its workers then die with "Cannot re-initialize CUDA in forked subprocess". Only a forked child can tell, so
one is asked.
"""

from __future__ import annotations

import logging
import os
import warnings

import torch

logger = logging.getLogger("specshim")

VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


def prepare_start_method() -> None:
    """Make vLLM spawn its workers if forked ones could not use the accelerator."""
    from vllm import envs

    # An earlier engine in this process froze what it had read from the environment.
    unfreeze = getattr(envs, "disable_envs_cache", None)
    if unfreeze is not None:
        unfreeze()
    if os.environ.get(VARIABLE) != "spawn" and not fork_is_safe():
        logger.warning("workers are spawned, because a forked one could not use the accelerator (%s=spawn)", VARIABLE)
        os.environ[VARIABLE] = "spawn"


def fork_is_safe() -> bool:
    """Tell whether a child forked now could use the accelerator. The child only looks and exits."""
    modules = [getattr(torch, name) for name in ("cuda", "xpu") if hasattr(torch, name)]
    checks = [module._is_in_bad_fork for module in modules if hasattr(module, "_is_in_bad_fork")]
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; this child takes no lock.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(any(check() for check in checks))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0
