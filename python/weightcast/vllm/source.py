"""Any `WeightSource` of vLLM's, of 0.29 to 0.33, as shards in host memory that stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from .._stage import rows_of
from ..errors import InvalidArgument
from ..shards import REPLICATE, Mesh, Shard
from ..torch import Stage


class _Cut(NamedTuple):
    """How a tensor lies on the trainers: `mesh` is over `owners`, with a placement for each dimension."""

    owners: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: list[int | str]


class StagedSource(Mapping[str, Shard]):
    """What this rank keeps of a source that yields tensors only for the moment.

    A source that gives this rank's pieces (`iter_local`, from 0.33 on) keeps those, and nothing is gathered.
    Of whole tensors each rank keeps its rows: among their owners, or among all ranks. A source of 0.32 whose
    ranks hold different tensors (`held_names`) does not say who else holds them: these are kept whole.
    Errors: InvalidArgument for a tensor that the source's metadata does not have.
    """

    def __init__(self, source: Any, rank: int, world: int) -> None:
        self._source, self._rank, self._world = source, rank, world
        metadata = source.metadata
        self._metadata = {one.name: one for one in (metadata() if callable(metadata) else metadata)}
        self._local = hasattr(source, "implements_iter_local") and source.implements_iter_local()
        self._held = hasattr(source, "held_names") and source.held_names() is not None
        self._stage = Stage(self._pieces())
        self._fresh = True

    def fill(self) -> None:
        """For each version: walks the source again, but for the first, which it was made of."""
        if not self._fresh:
            self._stage.fill(self._pieces())
        self._fresh = False

    def _pieces(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._tensors():
            if tensor is None:  # So 0.32 names what this rank does not hold.
                continue
            if name not in self._metadata:
                raise InvalidArgument(
                    f"the WeightSource yields {name}, which its metadata does not have; add it there"
                )
            cut = self._cut(name)
            if not self._local and cut.placements == [0]:
                tensor = rows_of(tensor, cut.owners.index(self._rank), len(cut.owners))
            yield name, tensor

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        if self._local:
            return self._source.iter_local()
        return self._source.iter_full() if hasattr(self._source, "iter_full") else iter(self._source)

    def _cut(self, name: str) -> _Cut:
        meta = self._metadata[name]
        owners = getattr(meta, "owners", None)
        if self._local:
            if owners is None:
                return _Cut((self._rank,), (1,), [REPLICATE])
            placements = meta.placements or (None,) * len(meta.mesh_shape)
            return _Cut(owners, meta.mesh_shape, [getattr(one, "dim", REPLICATE) for one in placements])
        if owners is None:
            owners = (self._rank,) if self._held else tuple(range(self._world))
        return _Cut(owners, (len(owners),), [0 if meta.shape else REPLICATE])

    def __getitem__(self, name: str) -> Shard:
        cut = self._cut(name)
        at, coordinates = cut.owners.index(self._rank), []
        for size in reversed(cut.mesh):
            at, here = divmod(at, size)
            coordinates.insert(0, here)
        return Shard(
            self._stage[name].array,
            tuple(self._metadata[name].shape),
            mesh=Mesh(tuple(cut.mesh), tuple(coordinates)),
            placements=cut.placements,
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._stage)

    def __len__(self) -> int:
        return len(self._stage)
