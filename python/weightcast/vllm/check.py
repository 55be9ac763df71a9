"""The mapping of a model for each rank of a vLLM engine, found in one process without weights.

The model is made on the meta device, once for each rank. Only vLLM's tensor parallelism is told a rank:
making and loading a model needs no communication.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform

from ..errors import InvalidArgument
from .reload import Reload
from .supported import warn_if_untested


@dataclass(frozen=True)
class Place:
    """`size` elements from `offset` of the trainers' `tensor` go to element `start` of `parameter`."""

    rank: int
    tensor: str
    offset: list[int]
    size: list[int]
    parameter: str
    start: int
    processed: bool  # By vLLM, into another layout or a packed copy; else the parameter holds the bytes.


@dataclass(frozen=True)
class Mapping:
    vllm: str
    platform: str
    model: str  # vLLM's class.
    dtype: str
    tp: int
    places: list[Place]
    spare_bytes: list[int]  # Of each rank.
    unwanted: list[str]


def mapping(model: str, offered: dict[str, tuple[str, tuple[int, ...]]], tp: int, dtype: str) -> Mapping:
    """offered: {name: (dtype, shape)}, as trainers would.

    Errors: InvalidArgument, naming the tensor or setting that an engine would refuse.
    """
    warn_if_untested(vllm.__version__)
    config = _config(model, tp, dtype)
    places: list[Place] = []
    spare_bytes: list[int] = []
    unwanted: list[str] = []
    kind = ""
    with _one_process(config):
        for rank in range(tp):
            made = _make(config, rank, tp)
            reload = Reload(made, config, torch.device("meta"))
            found = reload.find(offered)
            spare_bytes.append(reload.spare_bytes(found))
            unwanted, kind = reload.unwanted(offered), type(made).__name__
            places += [
                Place(
                    rank,
                    landing.source,
                    list(landing.offset),
                    list(landing.size),
                    landing.target,
                    landing.start,
                    not reload.holds_bytes(landing.target),
                )
                for landing in found.landings
            ]
    name = str(config.model_config.dtype).removeprefix("torch.")
    return Mapping(
        vllm.__version__, current_platform.device_type, kind, name, tp, places, spare_bytes, unwanted
    )


def table(found: Mapping) -> str:
    rows = [("TENSOR", "BOX", "RANK", "PARAMETER", "FROM ELEMENT", "LANDING")]
    for place in found.places:
        box = ", ".join(f"{a}:{a + b}" for a, b in zip(place.offset, place.size, strict=True))
        landing = "vLLM processes it" if place.processed else "as it is"
        rows.append((place.tensor, f"[{box}]", str(place.rank), place.parameter, str(place.start), landing))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    spare = ", ".join(f"{one / 2**20:.1f}" for one in found.spare_bytes)
    lines += [
        "",
        f"{found.model} of vLLM {found.vllm} on {found.platform}, {found.dtype}, TP={found.tp}: "
        f"{len({place.tensor for place in found.places})} tensors go to {len(found.places)} places",
        f"spare memory of each rank, MiB: {spare}",
    ]
    if found.unwanted:
        lines.append(f"not taken, on purpose: {', '.join(found.unwanted)}")
    return "\n".join(lines)


def _config(model: str, tp: int, dtype: str) -> VllmConfig:
    try:
        arguments = EngineArgs(
            model=model, tensor_parallel_size=tp, dtype=dtype, enforce_eager=True, skip_tokenizer_init=True,
            load_format="dummy", distributed_executor_backend="mp" if tp > 1 else "uni",
        )  # fmt: skip
        return arguments.create_engine_config()
    except Exception as error:
        raise InvalidArgument(
            f"vLLM does not take --model {model} with --tp {tp}: {_line(error)}; "
            "give a model and a --tp that vllm serve takes"
        ) from error


@contextlib.contextmanager
def _one_process(config: VllmConfig) -> Iterator[None]:
    """vLLM's process groups, of this process alone."""
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
        parallel_state.initialize_model_parallel()
        try:
            yield
        finally:
            parallel_state.destroy_model_parallel()
            parallel_state.destroy_distributed_environment()


def _make(config: VllmConfig, rank: int, tp: int) -> torch.nn.Module:
    group = parallel_state.get_tp_group()
    group.rank_in_group, group.world_size = rank, tp
    config.compilation_config.static_forward_context.clear()  # Layers of the rank before.
    try:
        with torch.device("meta"):
            return initialize_model(config)
    except Exception as error:
        raise InvalidArgument(
            f"vLLM cannot make {config.model_config.model} with --tp {tp}: {_line(error)}; change one of them"
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
