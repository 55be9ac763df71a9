"""What the rollout queue and its clients say to each other, and how they prove that they have one job token.

A message is a msgpack map with a `type`, of at most 64 MiB:

client → queue  hello {name, role, nonce} · proof {proof}
queue → client  challenge {nonce} · welcome {proof, start, reading, host} · refused {reason}

and when it is welcome:

engine  → queue  free {version, telemetry} · done {iteration, number, sequences, telemetry} · alive
trainer → queue  want {iteration, telemetry} · alive {telemetry}
queue → engine   item {item} · update {version} · end {reason} · alive · refused
queue → trainer  share {iteration, items: sequences of each} · end · alive · refused

`telemetry` is a map of what a process tells of itself; the queue hands it on. A good `end` has no reason.
"""

from __future__ import annotations

import dataclasses
import hmac
import secrets
from typing import Any, Literal

import msgpack

from .. import InvalidArgument, ProtocolError
from .failures import other_release

MOST_BYTES = 64 << 20
MOST_AT_ONCE = 1 << 18  # Bytes of one read.
BEATS_IN_A_LEASE = 4
_FOREIGN = "it sent something else than a message of weightcast.rl: it is another program or release"
_LABEL = "weightcast.rl rollouts 1"
_NONCE_BYTES = 32
_LEAST_ENTRY = 32  # A list may claim an entry for each so many bytes that a message may have.


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
    """Raises ProtocolError for what no queue sends."""
    try:
        return Item(**message["item"])
    except (KeyError, TypeError) as error:
        raise other_release(f"the rollout queue sends a malformed item: {error}") from None


def pack(message: dict[str, Any]) -> bytes:
    """Raises InvalidArgument for one that the other side would end the connection for."""
    data = msgpack.packb(message, use_bin_type=True)
    if len(data) > MOST_BYTES:
        raise InvalidArgument(
            f"this process's message '{message['type']}' has {len(data)} bytes, more than {MOST_BYTES}; "
            "lower --max_gen_length, --rollouts_per_gpu, --samples_per_prompt or --eval_prompts"
        )
    return data


class Inbox:
    """What has come of messages on a connection. Both methods raise ProtocolError for what no `pack` makes.

    most: bytes that a message may have.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        room = most + MOST_AT_ONCE  # The next message may begin in the same read.
        self._unpacker = msgpack.Unpacker(max_buffer_size=room, max_array_len=most // _LEAST_ENTRY)

    def add(self, data: bytes) -> None:
        try:
            self._unpacker.feed(data)
        except msgpack.BufferFull:
            raise other_release(f"it sent a message of more bytes than are allowed, {self._most}") from None

    def next(self) -> dict[str, Any] | None:
        """A message that has come whole."""
        try:
            message = self._unpacker.unpack()
        except msgpack.OutOfData:
            return None
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise other_release(f"{_FOREIGN} ({error})") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise other_release(_FOREIGN)
        return message


def number_of(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if type(value) is not int or not -(1 << 62) < value < 1 << 62:
        raise other_release(f"it sent a message of type '{message['type']}' without an integer '{name}'")
    return value


def printable(text: str) -> str:
    """For a log or a terminal: what others have said may hold anything."""
    return "".join(one if one.isprintable() else "?" for one in text[:1000])


def host_and_port(address: str) -> tuple[str, int]:
    """Of "host:port"; an IPv6 host stands in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


# --- Authentication


def new_nonce() -> bytes:
    return secrets.token_bytes(_NONCE_BYTES)


def nonce_of(message: dict[str, Any], sender: str = "it") -> bytes:
    nonce = message.get("nonce")
    if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
        raise other_release(f"{sender} sent a message of type '{message['type']}' that has no nonce")
    return nonce


@dataclasses.dataclass(frozen=True)
class Handshake:
    """What both sides have said before either proves anything. name, role: the client's."""

    name: str
    role: str
    client_nonce: bytes
    server_nonce: bytes

    def proof(self, token: bytes, side: Literal["client", "server"]) -> bytes:
        """Holds for this side of this one connection."""
        said = [_LABEL, side, self.name, self.role, self.client_nonce, self.server_nonce]
        return hmac.digest(token, msgpack.packb(said, use_bin_type=True), "sha256")

    def check(self, token: bytes, side: Literal["client", "server"], message: dict[str, Any]) -> None:
        """Raises ProtocolError if the proof in the message is not that of a side that has this token."""
        proof = message.get("proof")
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, self.proof(token, side)):
            raise ProtocolError("it has another job token; give all processes one WEIGHTCAST_TOKEN")
