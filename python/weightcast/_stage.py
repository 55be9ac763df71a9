"""Lasting memory for tensors that are gathered one by one; `weightcast.torch.Stage`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch

from .errors import InvalidArgument
from .memory import allocate
from .shards import Mesh, Shard

_BLOCK = 256 << 20  # Bytes that are allocated at once: each allocation takes a file descriptor.
_ALIGNMENT = 64

Tensors = Iterable[tuple[str, torch.Tensor]]


def rows_of(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """By torch.chunk's rule; the last ranks may get none."""
    rows = math.ceil(tensor.shape[0] / world)
    return tensor[rows * rank : rows * (rank + 1)]


class Stage(Mapping[str, Shard]):
    """This rank's share of tensors that an iterator yields whole, in memory that stays.

    A framework that gathers its weights gives them one by one as (name, tensor), each only until the next.
    `Stage(tensors, rank, world)` walks them once and keeps `rank`'s rows of each: `world` ranks that walk the
    same iterator keep every row once. Then, for each version, `fill(tensors)` walks them again. Register the
    stage itself, and fill it only when its bytes may change (`Update.wait_sources`).

        stage = weightcast.torch.Stage(gathered(), rank, world)
        trainer.register(stage)
        trainer.publish(1).wait_sources()
        stage.fill(gathered())

    rank, world: among those that call this; one process alone that sees the iterator is 0 of 1.
    dtype: of what is kept, if not the tensor's own: casts as torch does.
    The tensors may lie on any device; what is kept is host memory. One thread at a time.
    Errors: InvalidArgument, naming the tensor, for a name that comes twice, and in `fill` for names, shapes
    or dtypes other than the first time; what was filled before it stays filled.
    """

    def __init__(
        self, tensors: Tensors, rank: int = 0, world: int = 1, *, dtype: torch.dtype | None = None
    ) -> None:
        if not 0 <= rank < world:
            raise InvalidArgument(
                f"rank is {rank}, world is {world}; rank must be an integer in [0, world - 1]: correct one "
                "of the two"
            )
        self._rank, self._world, self._dtype = rank, world, dtype
        self._block, self._used = torch.empty(0, dtype=torch.uint8), 0
        self._like: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._kept: dict[str, torch.Tensor] = {}
        for name, tensor in tensors:
            if name in self._like:
                raise InvalidArgument(f"{name} comes twice from the iterator; yield each name once")
            self._like[name] = (tensor.shape, tensor.dtype)
            part = self._part(tensor)
            if part is not None:
                self._kept[name] = self._space(part)
                self._kept[name].copy_(part)

    def fill(self, tensors: Tensors) -> None:
        """Walks the same tensors again and keeps this rank's rows of what they are now."""
        missing = set(self._like)
        for name, tensor in tensors:
            if self._like.get(name) != (tensor.shape, tensor.dtype):
                raise InvalidArgument(self._otherwise(name, tensor))
            if name not in missing:
                raise InvalidArgument(f"{name} comes twice from the iterator; yield each name once")
            missing.discard(name)
            part = self._part(tensor)
            if part is not None:
                self._kept[name].copy_(part)
        if missing:
            raise InvalidArgument(
                f"the iterator ended without {', '.join(sorted(missing)[:5])}; "
                "yield every tensor that came the first time"
            )

    def _otherwise(self, name: str, tensor: torch.Tensor) -> str:
        if name not in self._like:
            return f"{name} was not there the first time; yield the same tensors each time"
        shape, dtype = self._like[name]
        return (
            f"{name} is {tensor.dtype} {list(tensor.shape)} now; it was {dtype} {list(shape)}; "
            "yield it as the first time"
        )

    def _part(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Its rows; a scalar is rank 0's. None: nothing of it is this rank's."""
        tensor = tensor.detach()
        if tensor.dim() == 0:
            return tensor if self._rank == 0 else None
        part = rows_of(tensor, self._rank, self._world)
        return part if part.numel() > 0 else None

    def _space(self, part: torch.Tensor) -> torch.Tensor:
        dtype = self._dtype if self._dtype is not None and part.is_floating_point() else part.dtype
        size = part.numel() * dtype.itemsize
        if size > len(self._block) - self._used:
            self._block, self._used = torch.from_numpy(allocate(max(size, _BLOCK))), 0
        space = self._block[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return space.view(dtype).view(part.shape)

    def __getitem__(self, name: str) -> Shard:
        shape, _ = self._like[name]
        if not shape:
            return Shard(self._kept[name])
        return Shard(self._kept[name], tuple(shape), mesh=Mesh((self._world,), (self._rank,)), placements=[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)
