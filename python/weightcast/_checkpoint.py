"""A module's tensors as its checkpoint has them; `weightcast.torch.checkpoint_shards`."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch import nn

from .capture import Landing, boxes
from .errors import InvalidArgument
from .shards import Shard


def checkpoint_shards(module: nn.Module) -> dict[str, Any]:
    """What this rank holds of `module`, by the names and shapes of its checkpoint. Nothing is copied.

    `transformers` keeps some tensors otherwise in memory than in checkpoints, such as all experts of a layer
    in one: these are views of them. Inference engines know the names of the checkpoint. The same as `shards`
    for modules of other libraries. To have moved tensors found again, register a function:
    `trainer.register(lambda: checkpoint_shards(model))`.
    Errors: InvalidArgument, naming a tensor that transformers transposes or computes for its checkpoint.
    """
    from .torch import shards

    mine = shards(module)
    revert = _revert(module)
    if revert is None:
        return dict(mine)
    shapes = {name: _whole_shape(shard) for name, shard in mine.items()}
    found: dict[str, Any] = {}
    for name, (shape, box) in boxes(revert, shapes).items():
        shard = mine[box.source]
        if box.size == box.shape == shape:
            found[name] = shard  # Renamed at most.
        elif (part := _part(shard, shape, box)) is not None:
            found[name] = part
    return found


def _revert(module: nn.Module) -> Any:
    """transformers' own way back to the names of the checkpoint, if it has one for this module."""
    transformers = sys.modules.get("transformers")
    bare = getattr(module, "module", module)
    if transformers is None or not isinstance(bare, transformers.PreTrainedModel):
        return None
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # Before 5.0 both are the same.
        return None
    return lambda tensors: revert_weight_conversion(bare, tensors)


def _whole_shape(shard: Shard) -> tuple[int, ...]:
    return tuple(shard.array.shape if shard.shape is None else shard.shape)


def _part(shard: Shard, shape: tuple[int, ...], box: Landing) -> Shard | None:
    """What this rank's shard of the source has of `box`, as a part of the result; None if nothing."""
    held, size = _offset(shard, box.source), tuple(shard.array.shape)
    low = [max(a, b) for a, b in zip(held, box.offset, strict=True)]
    high = [min(a + b, c + d) for a, b, c, d in zip(held, size, box.offset, box.size, strict=True)]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return None
    array = shard.array.detach()
    for dimension, (first, last) in enumerate(zip(low, high, strict=True)):
        array = array.narrow(dimension, first - held[dimension], last - first)
    kept = [d for d in range(len(box.shape)) if not (box.size[d] == 1 and box.shape[d] > 1)]
    if [box.size[d] for d in kept] != list(shape):
        raise InvalidArgument(
            f"{box.target} has the shape {list(shape)} in the checkpoint, but {[box.size[d] for d in kept]} "
            f"in the module's {box.source}; register a dict with a Shard named {box.target}"
        )
    offset = [low[d] - box.offset[d] for d in kept]
    return Shard(array.squeeze(tuple(d for d in range(array.dim()) if d not in kept)), shape, offset)


def _offset(shard: Shard, name: str) -> tuple[int, ...]:
    """Where it lies in the tensor of this name. Meshes cut as `torch.chunk` does, dimension by dimension."""
    shape = _whole_shape(shard)
    if shard.mesh is None:
        return tuple(shard.offset) if shard.offset is not None else (0,) * len(shape)
    offset, size = [0] * len(shape), list(shape)
    places = zip(shard.placements or (), shard.mesh.sizes, shard.mesh.coordinates, strict=True)
    for placement, ranks, rank in places:
        if not isinstance(placement, int):
            continue
        rows = math.ceil(size[placement] / ranks)
        first = min(rank * rows, size[placement])
        offset[placement] += first
        size[placement] = min(rows, size[placement] - first)
    if tuple(size) != tuple(shard.array.shape):
        raise InvalidArgument(
            f"{name}: this rank holds {list(shard.array.shape)}, but its shard's placements make {size}; "
            "register tensors that are cut as torch.chunk cuts them"
        )
    return tuple(offset)
