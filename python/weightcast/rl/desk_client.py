"""An engine's or a trainer's way to the desk: docs/rl.md, "The task server"."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from .. import InvalidArgument, PeerDead, ProtocolError, TimedOut, Unavailable
from .desk_handshake import Handshake, job_token, new_nonce, nonce_of
from .desk_link import Link, host_and_port
from .desk_messages import BEATS_IN_A_LEASE, Item, pack, unpack
from .sequence import Sequence
from .timeline import Clock

_ONE_TRY, _TRY_AGAIN = 2.0, 0.1  # Seconds of a try to connect, and between two.


class EndOfRun(Unavailable):
    """The desk says that the run is over. reason: why it failed, or nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the run has ended: {reason}" if reason else "the run has ended")
        self.reason = reason


class DeskClient:
    """An engine's or a trainer's way to the desk. All methods on one thread."""

    def __init__(self, address: str, *, name: str, role: str, lease: float, timeout: float) -> None:
        """Raises TimedOut when nobody answers there, InvalidArgument when the desk refuses us."""
        self._lease, self._address, self._token = lease, address, job_token().secret
        self._came: collections.deque[bytes] = collections.deque()  # Messages that nobody has looked at.
        self._kept: collections.deque[dict[str, Any]] = collections.deque()
        self._lock = threading.Lock()  # Of the link, while `at_work` beats beside `listen`.
        deadline = time.monotonic() + timeout
        while True:
            self._link = self._connect(deadline)
            try:
                self.clock = self._introduce(name, role, deadline)
                return
            except BaseException as error:
                self.close()
                if isinstance(error, EndOfRun) or not isinstance(error, Unavailable):
                    raise
                time.sleep(_TRY_AGAIN)  # The desk had no place free.

    def _connect(self, deadline: float) -> Link:
        try:
            place = host_and_port(self._address)
        except ValueError:
            raise InvalidArgument(f"--desk is {self._address!r}; give host:port") from None
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                return Link(socket.create_connection(place, timeout=min(left, _ONE_TRY)))
            time.sleep(min(_TRY_AGAIN, max(0.0, left)))
        raise self._nobody()

    def _nobody(self) -> TimedOut:
        return TimedOut(
            f"no answer from the task server {self._address} within --timeout; does trainer 0 run there?"
        )

    def _introduce(self, name: str, role: str, deadline: float) -> Clock:
        """Each side proves its job token to the other. Returns a clock that counts like trainer 0's."""
        nonce = new_nonce()
        self._send({"type": "hello", "name": name, "role": role, "nonce": nonce})
        challenge = self._answer("challenge", deadline)
        handshake = Handshake(name, role, nonce, nonce_of(challenge))
        # Not from the hello on: that may have waited for the desk to be opened.
        sent = Clock.reading()
        self._send({"type": "proof", "proof": handshake.proof(self._token, "client")})
        welcome = self._answer("welcome", deadline)
        received = Clock.reading()
        try:
            handshake.check(self._token, "desk", welcome)
        except ProtocolError as error:
            raise InvalidArgument(
                f"what answers at {self._address} is not this run's task server: {error}"
            ) from None
        return Clock.from_hello(welcome["start"], welcome["reading"], sent, received, welcome["host"])

    def _answer(self, kind: str, deadline: float) -> dict[str, Any]:
        """The next message, which must be of this kind."""
        message = self._receive(deadline - time.monotonic())
        if message is None:
            raise self._nobody()
        if message["type"] != kind:
            raise ProtocolError(
                f"the task server {self._address} sends no {kind}; "
                "use one release of weightcast in all processes"
            )
        return message

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

    def _say_alive(self) -> None:
        """Says so, if nothing has been said for a part of the lease."""
        if time.monotonic() - self._said >= self._lease / BEATS_IN_A_LEASE:
            self._send({"type": "alive"})

    def listen(self) -> None:
        """To be called often while other work is done: says that this process is alive, and takes note of the
        desk's beats and of the end of the run. An order is kept for `next`."""
        with self._lock:
            if (message := self._next(0)) is not None:
                self._kept.append(message)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Says meanwhile that this process is alive, however rarely it calls `listen`. Call nothing else."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self._lease / BEATS_IN_A_LEASE):
                with self._lock:
                    self._say_alive()

        thread = threading.Thread(target=beat, name="wc-rl-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def next(self, timeout: float) -> dict[str, Any] | None:
        """The desk's next order, or None after `timeout`.

        Raises EndOfRun at its end, PeerDead when the desk was not heard of for a lease.
        """
        return self._kept.popleft() if self._kept else self._next(timeout)

    def _next(self, timeout: float) -> dict[str, Any] | None:
        deadline = time.monotonic() + timeout
        # What came while this thread was busy elsewhere has kept the lease.
        while True:
            left = deadline - time.monotonic()
            try:
                message = self._receive(min(left, self._lease / BEATS_IN_A_LEASE))
            except EndOfRun:
                raise
            except Unavailable:
                raise self._gone("has closed the connection; its log says why") from None
            if message is not None:
                if message["type"] != "alive":
                    return message
                continue
            self._say_alive()
            if time.monotonic() - self._link.heard > self._lease:
                raise self._gone(f"missed heartbeats for {self._lease:g} s; see its log")
            if time.monotonic() >= deadline:
                return None

    def _gone(self, how: str) -> PeerDead:
        return PeerDead(f"the trainers are gone: trainer 0, the task server {self._address}, {how}")

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        """The desk's next message, if it does not end everything; None: there is none in this time."""
        deadline = time.monotonic() + timeout
        while not self._came:
            if not self._link.wait(deadline - time.monotonic()):
                return None
            self._came.extend(self._link.receive())
        message = unpack(self._came.popleft())
        if message["type"] == "end":
            raise EndOfRun(str(message.get("reason") or ""))
        if message["type"] == "refused":
            reason = "".join(one if one.isprintable() else "?" for one in str(message.get("reason"))[:1000])
            raise InvalidArgument(f"the task server {self._address} refuses this process: {reason}")
        return message

    def _send(self, message: dict[str, Any]) -> None:
        """Waits until it is sent. Where the desk has ended, what it has said before is not lost: `next` finds
        it, or that there is nothing."""
        self._said = time.monotonic()
        with contextlib.suppress(Unavailable):
            self._link.send(pack(message))
            while self._link.unsent:
                if not self._link.wait(self._lease, to_send=True):
                    raise self._gone(f"has taken nothing for {self._lease:g} s; see its log")
                self._link.flush()

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> DeskClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
