"""An engine's or a trainer's way to the desk: docs/rl.md, "The desk"."""

from __future__ import annotations

import collections
import time
from typing import Any

import zmq

from ..errors import InvalidArgument, PeerDead, TimedOut
from .desk_messages import BEATS_IN_A_LEASE, MOST_BYTES, Item, pack, token_key, unpack
from .sequence import Sequence
from .timeline import Clock


class EndOfRun(Exception):
    """The desk says that the run is over; its text is why it failed, or nothing."""


class DeskClient:
    """An engine's or a trainer's way to the desk. One thread at a time."""

    def __init__(self, address: str, *, name: str, role: str, lease: float, timeout: float) -> None:
        """Raises TimedOut when nobody answers there, InvalidArgument when the desk refuses us."""
        self._lease, self._address = lease, address
        self._kept: collections.deque[dict[str, Any]] = collections.deque()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        try:
            self._socket.connect(f"tcp://{address}")
        except zmq.ZMQError:
            self.close()
            raise InvalidArgument(f"the desk's address is {address!r}; give host:port") from None
        self._heard = self._said = time.monotonic()
        self._send({"type": "hello", "key": token_key(), "name": name, "role": role})
        try:
            sent = Clock.reading()
            welcome = self._next(timeout, lease=float("inf"))
            if welcome is None:
                raise TimedOut(
                    f"nobody answers at the desk {address} for {timeout:g} s; does trainer 0 run there?"
                )
            # Counts like trainer 0's.
            self.clock = Clock.from_hello(
                welcome["start"], welcome["reading"], sent, Clock.reading(), welcome["host"]
            )
        except BaseException:
            self.close()
            raise

    def ask(self, version: int, news: dict[str, Any]) -> None:
        """Says that this engine is free; `next` brings what to do."""
        self._send({"type": "free", "version": version, "news": news})

    def bring(self, item: Item, sequences: list[Sequence], news: dict[str, Any]) -> None:
        packed = [one.pack() for one in sequences]
        self._send(
            {
                "type": "done",
                "iteration": item.iteration,
                "number": item.number,
                "sequences": packed,
                "news": news,
            }
        )

    def want(self, iteration: int, news: dict[str, Any]) -> None:
        """Says that a trainer waits for its share; `next` brings it."""
        self._send({"type": "want", "iteration": iteration, "news": news})

    def tell(self, news: dict[str, Any]) -> None:
        self._send({"type": "alive", "news": news})

    def alive(self) -> None:
        """To be called often while an item is worked on; says so a few times within a lease."""
        if time.monotonic() - self._said >= self._lease / BEATS_IN_A_LEASE:
            self._send({"type": "alive"})

    def listen(self) -> None:
        """Takes note of the desk's beats and of the end of the run; an order is kept for `next`."""
        if (message := self._next(0, self._lease)) is not None:
            self._kept.append(message)

    def next(self, timeout: float) -> dict[str, Any] | None:
        """The desk's next order, or None after `timeout`.

        Raises EndOfRun at its end, PeerDead when the desk was not heard of for a lease.
        """
        return self._kept.popleft() if self._kept else self._next(timeout, self._lease)

    def _next(self, timeout: float, lease: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout
        # What came while this thread was busy elsewhere has kept the lease.
        while True:
            now = time.monotonic()
            wait = max(0.0, min(deadline - now, self._lease / BEATS_IN_A_LEASE))
            if self._socket.poll(round(wait * 1000)):
                message = unpack(self._socket.recv())
                self._heard = time.monotonic()
                if message["type"] == "end":
                    raise EndOfRun(str(message.get("reason") or ""))
                if message["type"] == "refused":
                    raise InvalidArgument(
                        f"the desk {self._address} refuses this process: {message.get('reason')}"
                    )
                if message["type"] != "alive":
                    return message
                continue
            self.alive()
            if time.monotonic() - self._heard > lease:
                raise PeerDead(
                    f"the trainers are gone: trainer 0, whose desk is {self._address}, was not heard of "
                    f"for {lease:g} s"
                )
            if time.monotonic() >= deadline:
                return None

    def _send(self, message: dict[str, Any]) -> None:
        self._said = time.monotonic()
        self._socket.send(pack(message))

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> DeskClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
