"""A stock vLLM takes its weights from weightcast; docs/adapters.md, "vLLM".

    VLLM_PLUGINS=weightcast vllm serve MODEL --weight-transfer-config '{"backend": "weightcast"}'

vLLM finds this module by the entry points of the installed package: it calls `register` in each of its
processes, and `front_end` in its API server. Importing it imports neither vLLM nor torch and makes nothing:
vLLM forks.
"""

from __future__ import annotations

import logging
import os
from typing import Any

BACKEND = "weightcast"

__all__ = ["BACKEND", "front_end", "register"]


def register() -> None:
    """Makes the backend known to vLLM's factories; safe to call again."""
    from vllm.distributed.weight_transfer import factory

    _print_lines()
    _add(factory.WeightTransferEngineFactory, "weightcast.vllm.worker", "WeightcastEngine")
    trainers = getattr(factory, "WeightTransferTrainerFactory", None)
    if trainers is not None:  # Since vLLM 0.28.
        _add(trainers, "weightcast.vllm.trainer", "WeightcastTrainerEngine")
    from vllm.v1.worker.worker_base import WorkerBase

    # What the front end calls in the workers, by `collective_rpc`.
    WorkerBase.weightcast_join = _join
    WorkerBase.weightcast_switch = _switch


def front_end() -> Any:
    """What vLLM's API server runs of weightcast, where VLLM_PLUGINS names it."""
    from .server import FrontEnd

    return FrontEnd()


def _print_lines() -> None:
    """To standard error, as the core does, where the setting `log_level` asks for more than warnings."""
    level = os.environ.get("WEIGHTCAST_LOG_LEVEL", "").upper()
    log = logging.getLogger(BACKEND)
    if level in ("DEBUG", "INFO") and not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.addFilter(lambda _: not logging.getLogger().handlers)  # Which prints it, if made later.
        log.addHandler(handler)
        log.setLevel(level)


def _add(factory: Any, module: str, name: str) -> None:
    if BACKEND not in factory._registry:
        factory.register_engine(BACKEND, module, name)


def _join(worker: Any, place: dict[str, Any]) -> bool:
    return worker.weight_transfer_engine.lead(place, getattr(worker.model_runner, "drafter", None))


def _switch(worker: Any, timeout: float) -> None:
    worker.weight_transfer_engine.switch(timeout)


def __getattr__(name: str) -> Any:
    """What needs vLLM, when it is asked for."""
    if name in ("TrainerInit", "WeightcastTrainerEngine"):
        from . import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; see docs/adapters.md for its names")
