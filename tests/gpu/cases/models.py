"""Shapes of the weights of published models."""

import math
from typing import NamedTuple

Shape = tuple[int, ...]


class Qwen(NamedTuple):
    layers: int
    hidden: int
    inner: int
    keys: int  # Width of all key-value heads together.
    words: int
    tied: bool


# From config.json of Qwen/Qwen2.5-0.5B and -7B; "small" only has their form.
SIZES = {
    "0.5b": Qwen(24, 896, 4864, 128, 151_936, True),
    "7b": Qwen(28, 3584, 18_944, 512, 152_064, False),
    "small": Qwen(2, 64, 128, 16, 2000, False),
}


def qwen(size: str) -> list[Shape]:
    """Of Qwen2.5, in the order of its checkpoint."""
    layers, hidden, inner, keys, words, tied = SIZES[size]
    layer: list[Shape] = [(hidden, hidden), (hidden,), (keys, hidden), (keys,), (keys, hidden), (keys,)]
    layer += [(hidden, hidden), (inner, hidden), (inner, hidden), (hidden, inner), (hidden,), (hidden,)]
    ends: list[Shape] = [(hidden,)] if tied else [(hidden,), (words, hidden)]
    return [(words, hidden), *layers * layer, *ends]


def bytes_of(shapes: list[Shape]) -> int:
    """Of tensors in BF16."""
    return sum(2 * math.prod(shape) for shape in shapes)
