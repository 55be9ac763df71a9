"""Which part of which tensor a rank holds of a torch module, and where: nothing is gathered or copied.

trainer.register(module) does this by itself; docs/torch.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ._checkpoint import checkpoint_shards
from ._stage import Stage
from .errors import InvalidArgument
from .shards import REPLICATE, Mesh, Shard

__all__ = ["Stage", "checkpoint_shards", "shards"]

# Classes that put a module into themselves, and the attribute that has it.
_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "DeepSpeedEngine": "module"}
# What torch.compile and activation checkpointing put into the names of a module inside.
_PREFIXES = ("_orig_mod", "_checkpoint_wrapped_module")
_MESH_DIMENSIONS = 6  # The most of a mesh that the core takes.


def shards(module: nn.Module) -> dict[str, Shard]:
    """What this rank holds of `module`: the tensors of its state_dict by the names of the bare model.

    They are as they lie now. To have them found again after they moved, register the module itself, or a
    function: `trainer.register(lambda: {"actor." + name: one for name, one in shards(module).items()})`.
    Left out: what lies on other ranks only. Errors: InvalidArgument, naming what cannot be registered.
    """
    found = ((name, shard_of(name, Shard(tensor))) for name, tensor in tensors_of(module).items())
    return {name: shard for name, shard in found if shard is not None}


def tensors_of(module: nn.Module) -> dict[str, Any]:
    """The state_dict (parameters and persistent buffers) without wrappers' prefixes and extra states.

    What is tied is there once, by the name that comes first.
    """
    _refuse_hidden(module)
    wrapped = _wrapped_prefixes(module)
    tensors = {}
    seen: set[Any] = set()
    for key, tensor in module.state_dict(keep_vars=True).items():
        name = _plain_name(key, wrapped)
        if name.rpartition(".")[2] == "_extra_state":
            continue
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(
                f"{name} in the state_dict is a {type(tensor).__name__}, not a tensor; "
                "leave it out, or register tensors by name"
            )
        identities = _identities(tensor)
        if seen.isdisjoint(identities):
            tensors[name] = tensor
        seen.update(identities)
    return tensors


def _identities(tensor: Any) -> list[Any]:
    """Two tensors that share one are tied. Not where a shard lies: an empty one would, on some ranks only."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return [id(tensor)]
    if tensor.numel() == 0 or tensor.data_ptr() == 0:
        return [id(tensor)]
    return [id(tensor), (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())]


def shard_of(name: str, part: Shard) -> Shard | None:
    """`part`, whose array is a tensor, with the box of a DTensor; None if this rank is not in its mesh.

    Errors: InvalidArgument for what is not a dense tensor with memory of its own.
    """
    tensor = part.array
    _refuse_absent(name, tensor)
    if type(tensor).__name__ != "DTensor":
        return part
    if any(one is not None for one in (part.shape, part.offset, part.mesh, part.placements)):
        raise InvalidArgument(
            f"{name} is a DTensor and knows which part it is; leave out shape, offset, mesh and placements "
            "of its Shard"
        )
    if any(placement.is_partial() for placement in tensor.placements):
        raise InvalidArgument(
            f"{name} is a DTensor of partial sums ({tensor.placements}); first redistribute() it to Shard or "
            "Replicate"
        )
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    local = tensor._local_tensor  # to_local() without a node in the autograd graph.
    size, whole = _part_of(tensor.shape, tensor.device_mesh, tensor.placements, tuple(coordinate))
    if size != tuple(local.shape):
        raise InvalidArgument(
            f"{name}: this rank has {tuple(local.shape)} of {tuple(tensor.shape)}, but its placements "
            f"{tensor.placements} make {size}; make it with distribute_tensor, which cuts as torch.chunk does"
        )
    _refuse_absent(name, local)
    return replace(whole, array=local, declared=part.declared, landing=part.landing)


@functools.lru_cache(maxsize=4096)
def _part_of(
    shape: torch.Size, mesh: Any, placements: tuple[Any, ...], coordinate: tuple[int, ...]
) -> tuple[tuple[int, ...], Shard]:
    """The size of what this process, at `coordinate`, holds, and which part it is: a Shard without array.

    Remembered, as torch makes a list of indices each time. The controller checks that the boxes of all ranks
    are disjoint and whole, which they are only if the indices of each (in rising order) have no gaps.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    if {type(one).__name__ for one in placements} <= {"Shard", "Replicate"} and mesh.ndim <= _MESH_DIMENSIONS:
        plain = [one.dim if one.is_shard() else REPLICATE for one in placements]
        return tuple(size), Shard(
            None, tuple(shape), mesh=Mesh(tuple(mesh.shape), coordinate), placements=plain
        )
    return tuple(size), Shard(None, tuple(shape), tuple(offset))


# --- Names ------------------------------------------------------------------------------------------


def _wrapped_prefixes(module: nn.Module) -> list[tuple[str, str]]:
    """Prefixes of names that a wrapper has made longer, the longest first, and what they should be."""
    found = []
    for path, part in module.named_modules(remove_duplicate=False):
        for wrapper in _class_names(part) & _WRAPPERS.keys():
            outer = _without_prefixes(path + "." if path else "")
            found.append((f"{outer}{_WRAPPERS[wrapper]}.", outer))
    return found[::-1]


def _class_names(module: nn.Module) -> set[str]:
    """Of its class and that one's bases: so known without being imported."""
    return {kind.__name__ for kind in type(module).__mro__}


def _plain_name(key: str, wrapped: list[tuple[str, str]]) -> str:
    name = _without_prefixes(key)
    for longer, shorter in wrapped:
        if name.startswith(longer):
            name = shorter + name[len(longer) :]
    return name


def _without_prefixes(name: str) -> str:
    if not any(prefix in name for prefix in _PREFIXES):
        return name
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


# --- Refusals ---------------------------------------------------------------------------------------


def _refuse_hidden(module: nn.Module) -> None:
    """Modules whose tensors are not what they seem to be."""
    for path, part in module.named_modules():
        name = path or type(module).__name__
        if "FullyShardedDataParallel" in _class_names(part):
            raise InvalidArgument(
                f"{name} is an FSDP1 module, which hides its shards in flat parameters; use FSDP2 "
                "(torch.distributed.fsdp.fully_shard)"
            )
        if any(getattr(hook, "offload", False) is True for hook in _accelerate_hooks(part)):
            raise InvalidArgument(
                f"{name} is offloaded by Accelerate: its tensors are there only while it runs; load the "
                "model without offloading, or first call "
                "accelerate.hooks.remove_hook_from_module(model, recurse=True)"
            )


def _accelerate_hooks(module: nn.Module) -> Iterator[Any]:
    hook = module.__dict__.get("_hf_hook")
    if hook is not None:
        yield from getattr(hook, "hooks", (hook,))


def _refuse_absent(name: str, tensor: Any) -> None:
    """Tensors that have no memory, or that of a flat parameter of which they are not a box."""
    if hasattr(tensor, "ds_id") and tensor.numel() != tensor.ds_numel:
        raise InvalidArgument(
            f"{name} is partitioned by DeepSpeed ZeRO-3 (this rank has a slice of it); register and publish "
            "inside `with deepspeed.zero.GatheredParameters(list(module.parameters())):` and leave it after "
            "wait_sources, or train with ZeRO-2 or FSDP2"
        )
    if getattr(tensor, "_fsdp_flattened", False):
        raise InvalidArgument(f"{name} is part of an FSDP1 flat parameter; use FSDP2 (fully_shard)")
    if tensor.device.type == "meta":
        raise InvalidArgument(
            f"{name} is on the meta device and has no bytes; load the weights first (an offloaded model: "
            "without offloading)"
        )
    if type(tensor).__name__ == "DTensor" or tensor.layout != torch.strided:
        return
    if tensor.numel() > 0 and tensor.data_ptr() == 0:
        raise InvalidArgument(
            f"{name} is a {type(tensor).__name__} without memory of its own: its storage was freed, or it "
            "wraps other tensors; register and publish (an engine: wait) while it has its storage, or "
            "register the tensors inside"
        )
