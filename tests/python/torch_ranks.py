"""Torch models for the tests, and trainer ranks that wrap them in each way that there is."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Model(nn.Module):
    """Sizes that four ranks cannot share evenly, a tied head, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)
        self.gain = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(5), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        hidden = self.norm(self.down(torch.relu(self.up(self.embed(tokens)))))
        return self.head(hidden * self.gain)


def _ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _accelerate(model: nn.Module) -> nn.Module:
    import accelerate

    return accelerate.Accelerator(cpu=True).prepare(model)


def _fsdp(model: nn.Module) -> nn.Module:
    fully_shard(model.up)
    return fully_shard(model)


def _hsdp(model: nn.Module) -> nn.Module:
    return fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))


def _columns(model: nn.Module) -> nn.Module:
    """Whole columns, which FSDP wants to be shared evenly, of two parameters."""
    cut = {model.up.weight: Shard(1), model.down.weight: Shard(1)}
    return fully_shard(model, shard_placement_fn=cut.get)


def _fsdp_of_tp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["data"])


WRAPPINGS = {
    2: {"ddp": _ddp, "fsdp": _fsdp, "columns": _columns},
    4: {"fsdp": _fsdp, "hsdp": _hsdp, "tensor-parallel": _fsdp_of_tp},
}
if importlib.util.find_spec("accelerate"):
    WRAPPINGS[2]["accelerate"] = _accelerate


@contextlib.contextmanager
def process_group(folder: str, rank: int, world_size: int) -> Iterator[None]:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="1",
    )
    store = dist.FileStore(os.path.join(folder, "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def no_gather() -> Iterator[None]:
    """Fails if anything inside is a collective or puts a DTensor together."""
    with (
        mock.patch.object(DTensor, "full_tensor", side_effect=AssertionError("full_tensor")),
        mock.patch.object(DTensor, "redistribute", side_effect=AssertionError("redistribute")),
        CommDebugMode() as collectives,
    ):
        yield
    assert collectives.get_total_counts() == 0, collectives.get_comm_counts()


def bytes_of(state: dict[str, torch.Tensor], kind: torch.dtype) -> dict[str, bytes]:
    """Of each tensor, floats as `kind`."""
    cast = {name: value.to(kind) if value.is_floating_point() else value for name, value in state.items()}
    return {name: value.reshape(-1).view(torch.uint8).numpy().tobytes() for name, value in cast.items()}


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """By the bare model's names, gathered by torch (a collective), the tied head left out."""
    with CommDebugMode() as collectives:
        state = {
            name.removeprefix("module."): (
                value.full_tensor() if isinstance(value, DTensor) else value
            ).detach()
            for name, value in model.state_dict().items()
            if not name.endswith("head.weight")
        }
    sharded = any(isinstance(value, DTensor) for value in model.state_dict().values())
    assert (collectives.get_total_counts() > 0) == sharded, "what no_gather looks for is not what torch does"
    return state
