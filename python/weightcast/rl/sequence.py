"""A prompt and what was generated for it, in memory and on its way to the trainers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .failures import other_release

_PARTS = {"prompt": "<i4", "tokens": "<i4", "logprobs": "<f4", "versions": "<i4"}


@dataclass
class Sequence:
    """A prompt and what was generated for it.

    tokens: end of sequence included, if it was reached. logprobs: natural logarithm of each token's
    probability at the temperature it was sampled with. versions: of the weights that made each token.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def spans(self) -> list[tuple[int, int]]:
        """(version, how many tokens it made), in order."""
        return [(version, len(list(made))) for version, made in itertools.groupby(self.versions)]

    def pack(self) -> dict[str, bytes]:
        """Little-endian arrays: 4-byte integers, and floats that are exactly those of float32."""
        return {name: np.asarray(getattr(self, name), kind).tobytes() for name, kind in _PARTS.items()}

    @classmethod
    def unpack(cls, packed: Any, sender: str = "it") -> Sequence:
        """Raises ProtocolError for what no `pack` makes."""
        try:
            one = cls(**{name: np.frombuffer(packed[name], kind).tolist() for name, kind in _PARTS.items()})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise other_release(f"{sender} sent a malformed rollout: {error!r}") from None
        if not one.prompt or not len(one.tokens) == len(one.logprobs) == len(one.versions) > 0:
            raise other_release(
                f"{sender} sent a rollout of {len(one.prompt)} prompt tokens, and {len(one.tokens)} tokens, "
                f"{len(one.logprobs)} logprobs and {len(one.versions)} versions; all must be there, the last "
                "three in equal number"
            )
        return one
