"""What the desk and its clients say to each other.

Messages are msgpack maps with a `type`, at most 64 MiB:

client  → desk  hello {name, role, nonce} · proof {proof}
desk → client   challenge {nonce} · welcome {proof, start, reading, host} · refused {reason}

and when it is welcome:

engine  → desk  free {version, news} · done {iteration, number, sequences, news} · alive
trainer → desk  want {iteration, news} · alive {news}
desk → engine   item {item} · update {version} · end {reason} · alive · refused
desk → trainer  share {iteration, items: sequences of each} · end · alive · refused

`news` is a map of what a process tells of itself; the desk hands it on. A good `end` has no reason.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack

from .. import InvalidArgument, ProtocolError

MOST_BYTES = 64 << 20
BEATS_IN_A_LEASE = 4


@dataclasses.dataclass
class Item:
    """Prompts that are generated together; its outcome depends on nothing but its fields and the weights.

    oldest, newest: versions that it may be generated with. samples: of each prompt, side by side in the
    result. greedy: the likeliest tokens, without `seed`. trainer: whose share it is.
    """

    iteration: int
    number: int
    trainer: int
    prompts: list[list[int]]
    samples: int
    seed: int
    oldest: int
    newest: int
    greedy: bool = False

    @property
    def after(self) -> int:
        """The iteration that it is of; evaluations are counted from -1 down, that before the first is -1."""
        return self.iteration if self.iteration >= 0 else -1 - self.iteration

    @property
    def key(self) -> tuple[int, int]:
        return self.iteration, self.number


def item_of(message: dict[str, Any]) -> Item:
    """Raises ProtocolError for what no desk sends."""
    try:
        return Item(**message["item"])
    except (KeyError, TypeError) as error:
        raise ProtocolError(
            f"the task server sends a malformed item: {error}; use one release of weightcast in all processes"
        ) from None


def pack(message: dict[str, Any]) -> bytes:
    """Raises InvalidArgument for one that the other side would end the connection for."""
    data = msgpack.packb(message, use_bin_type=True)
    if len(data) > MOST_BYTES:
        raise InvalidArgument(
            f"a message of type '{message['type']}' has {len(data)} bytes, "
            f"over the task server's {MOST_BYTES}; "
            "lower --rollouts_per_gpu or --samples_per_prompt"
        )
    return data


def unpack(data: bytes) -> dict[str, Any]:
    """Raises ProtocolError for what no `pack` makes."""
    try:
        message = msgpack.unpackb(data, raw=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(
            f"a message is not msgpack: {error}; use one release of weightcast in all processes"
        ) from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(
            "a message is not a map with a type; use one release of weightcast in all processes"
        )
    return message


def number_of(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not -(1 << 62) < value < 1 << 62:
        raise ProtocolError(
            f"a message of type {message['type']} has no number '{name}'; "
            "use one release of weightcast in all processes"
        )
    return value
