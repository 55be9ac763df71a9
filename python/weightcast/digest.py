"""Digests that prove weights equal whatever their layout; docs/digest.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from . import _weightcast as _core


class ShardDigest(NamedTuple):
    """The digest of one shard. Plain data: pickle it, or send it as JSON."""

    name: str
    dtype: str  # Safetensors' name: "BF16".
    shape: tuple[int, ...]  # Of the whole tensor.
    offset: tuple[int, ...]
    size: tuple[int, ...]
    digest: str  # 32 hexadecimal digits.


def combine_digests(ranks: Iterable[Iterable[ShardDigest]]) -> dict[str, str]:
    """The digests of whole tensors, by name, from what `digest()` returned at all ranks of one side.

    Two sides have equal digests of a tensor if name, dtype, shape and bits are equal, and otherwise with a
    probability of 2^-64 at most. Of equal boxes (replicas) one is added. Errors name the tensor and the
    boxes; they call ranks by their place in `ranks`. `Corrupt`: replicas differ. `InvalidArgument`: boxes
    overlap, or one is missing; ranks disagree about dtype or shape.
    """
    return _core.combine_digests([[tuple(shard) for shard in rank] for rank in ranks])


def digests_from(core: Iterable[tuple]) -> list[ShardDigest]:
    return [
        ShardDigest(name, dtype, tuple(shape), tuple(offset), tuple(size), digest)
        for name, dtype, shape, offset, size, digest in core
    ]
