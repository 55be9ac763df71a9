"""The trainers' modules: DDP or FSDP2 over their group."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def wrap(module: nn.Module, kind: str, group: dist.ProcessGroup | None) -> nn.Module:
    """kind: "ddp" or "fsdp2". With ddp a module of one trainer stays as it is."""
    if kind == "fsdp2":
        assert group is not None
        mesh = DeviceMesh.from_group(group, next(module.parameters()).device.type)
        for block in _blocks(module):
            fully_shard(block, mesh=mesh)
        return fully_shard(module, mesh=mesh)
    alone = group is None or group.size() == 1
    return module if alone else DistributedDataParallel(module, process_group=group)


def plain(module: nn.Module) -> nn.Module:
    """Without DDP's wrapper."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The layers of a transformer: the entries of its longest list of modules."""
    lists = [one for one in module.modules() if isinstance(one, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def whole_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """The module's state, gathered: all trainers at once."""
    state = plain(module).state_dict()
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state.items()}


def local_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """This trainer's part of the module's state."""
    state = plain(module).state_dict()
    return {name: one.to_local() if isinstance(one, DTensor) else one for name, one in state.items()}


def in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As engines of this dtype hold it; itself where nothing is to be cast."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def with_tied(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The module's state, each tensor changed; what is tied is one tensor here too."""
    state = plain(module).state_dict(keep_vars=True)
    made = {id(one): change(one.detach()) for one in state.values()}
    return {name: made[id(one)] for name, one in state.items()}


def cast_tensors(module: nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The module's state as engines of this dtype hold it; what is tied is one tensor here too."""
    return with_tied(module, lambda one: in_dtype(one, dtype))


def hashes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Two hashes of its bytes. They differ if one value does; they do not tell the order of values."""
    bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()])
    # hash_tensor is the exclusive or: an even number of equal values is 0 in it, but not in the sum.
    return int(torch.hash_tensor(bits).view(torch.int64)), int(bits.sum(dtype=torch.int64))
