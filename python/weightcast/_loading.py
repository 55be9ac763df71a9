"""What adapters of inference engines make of what `capture` has found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import torch

from .capture import Capture, Landing
from .errors import InvalidArgument
from .shards import Shard

_CAST = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}  # The transfer casts these.

Offered = Mapping[str, tuple[str, tuple[int, ...]]]  # As `Inference.offered` gives it.


def in_dtype(offered: Offered, dtype: torch.dtype) -> dict[str, tuple[str, tuple[int, ...]]]:
    """With the engine's dtype where the transfer casts, of which the engine's loader need not know."""
    own = _CAST.get(dtype)
    return {
        name: (own if own and given in _CAST.values() else given, shape)
        for name, (given, shape) in offered.items()
    }


def unwanted(found: Capture, offered: Offered, *, tied: bool) -> list[str]:
    """Tensors of the trainers that an engine leaves out on purpose. tied: its head is its embedding."""
    return [
        name
        for name in found.unused(offered)
        if name.endswith("rotary_emb.inv_freq") or (tied and name.endswith("lm_head.weight"))
    ]


def refuse_unused(
    found: Capture, offered: Offered, expected: Iterable[str], *, ranks: int, others: bool, model: str
) -> None:
    """What the loader takes nothing of, or too little: it may cut what is too long without a word.

    expected: names that may be left out. ranks: as many share a tensor at most. others: ranks that take other
    layers or experts, so that this one may leave a tensor out; the plan refuses what nobody takes.
    Errors: InvalidArgument, naming the tensor.
    """
    taken: Counter[str] = Counter()
    for landing in found.landings:
        taken[landing.source] += math.prod(landing.size)
    expected = set(expected)
    for name, (_, shape) in offered.items():
        if taken[name] == 0 and (others or name in expected):
            continue
        if taken[name] * ranks < math.prod(shape):
            raise InvalidArgument(
                f"{name}: {model} takes {taken[name]} of that tensor's {math.prod(shape)} elements; start "
                "the engine with the model of these weights, or leave that tensor out at the trainers"
            )


def shards_of(
    landings: Iterable[Landing],
    targets: Mapping[str, torch.Tensor],
    in_place: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, list[Shard]]:
    """What to register for each tensor of the trainers: its boxes, as views of `targets`.

    in_place: targets that land "in_place", whatever the registration's landing is.
    """
    live = in_place or {}
    shards: dict[str, list[Shard]] = {}
    for landing in landings:
        name = landing.target
        place, kind = (live[name], "in_place") if name in live else (targets[name], None)
        for piece in landing.pieces():
            shard = Shard(piece.view(place), piece.shape, piece.offset, landing=kind)
            shards.setdefault(landing.source, []).append(shard)
    return shards
