"""An engine's or a trainer's way to the rollout queue: docs/rl.md, "The rollout queue"."""

from __future__ import annotations

import contextlib
import math
import queue
import select
import socket
import threading
import time
from typing import Any

from .. import Error, InvalidArgument, PeerDead, ProtocolError, TimedOut, Unavailable, job_token
from . import rollout_protocol as protocol
from .failures import other_release
from .rollout_protocol import Handshake, Inbox, Item
from .sequence import Sequence
from .timeline import Clock

_ONE_TRY, _TRY_AGAIN = 2.0, 0.1  # Seconds of a try to connect, and between two.


class EndOfRun(Unavailable):
    """The queue says that the run is over. reason: why it failed, or nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the run has ended: {reason}" if reason else "the run has ended")
        self.reason = reason


class RolloutClient:
    """Methods are of one thread. Another one says meanwhile that this process is alive, and reads what comes,
    so a long step of a model does not count as silence."""

    def __init__(self, address: str, *, name: str, role: str, lease: float, timeout: float) -> None:
        """Raises TimedOut when nobody answers there, InvalidArgument when the queue refuses us."""
        self._lease, self._address, self._token = lease, address, job_token()[0]
        self._queue = f"the rollout queue {address}"
        self._orders: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._sending = threading.Lock()
        self._said = self._heard = time.monotonic()
        self._closed = False
        deadline = time.monotonic() + timeout
        while True:
            self._inbox = Inbox()
            self._socket = self._connect(deadline)
            try:
                self.clock = self._introduce(name, role, deadline)
                break
            except EOFError:
                self._socket.close()
                time.sleep(_TRY_AGAIN)  # The queue had no place free.
            except BaseException:
                self._socket.close()
                raise
        self._thread = threading.Thread(target=self._run, name="wc-rl-client", daemon=True)
        self._thread.start()

    def _connect(self, deadline: float) -> socket.socket:
        try:
            place = protocol.host_and_port(self._address)
        except ValueError:
            raise InvalidArgument(f"--rollout_queue is {self._address!r}; give host:port") from None
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                connected = socket.create_connection(place, timeout=min(left, _ONE_TRY))
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connected.settimeout(self._lease)
                return connected
            time.sleep(min(_TRY_AGAIN, max(0.0, left)))
        raise self._nobody()

    def _nobody(self) -> TimedOut:
        return TimedOut(f"no answer from {self._queue} within --timeout; check that trainer 0 runs there")

    def _introduce(self, name: str, role: str, deadline: float) -> Clock:
        """Each side proves its job token to the other. Returns a clock that counts like trainer 0's."""
        nonce = protocol.new_nonce()
        self._send(type="hello", name=name, role=role, nonce=nonce)
        theirs = protocol.nonce_of(self._answer("challenge", deadline), self._queue)
        handshake = Handshake(name, role, nonce, theirs)
        # Not from the hello on: that may have waited for the queue to be opened.
        sent = Clock.reading()
        self._send(type="proof", proof=handshake.proof(self._token, "client"))
        welcome = self._answer("welcome", deadline)
        received = Clock.reading()
        try:
            handshake.check(self._token, "server", welcome)
        except ProtocolError as error:
            raise InvalidArgument(
                f"what answers at {self._address} is not this run's rollout queue: {error}"
            ) from None
        return Clock.from_hello(welcome["start"], welcome["reading"], sent, received, welcome["host"])

    def _answer(self, kind: str, deadline: float) -> dict[str, Any]:
        """The next message, which must be of this kind."""
        message = self._receive(deadline - time.monotonic())
        if message is None:
            raise self._nobody()
        if message["type"] != kind:
            found = protocol.printable(message["type"][:32])
            raise other_release(f"{self._queue} sent type '{found}', not '{kind}'")
        return message

    def ask(self, version: int, telemetry: dict[str, Any]) -> None:
        """Says that this engine is free; `next` brings what to do."""
        self._send(type="free", version=version, telemetry=telemetry)

    def bring(self, item: Item, sequences: list[Sequence], telemetry: dict[str, Any]) -> None:
        where = {"iteration": item.iteration, "number": item.number}
        self._send(type="done", **where, sequences=[one.pack() for one in sequences], telemetry=telemetry)

    def want(self, iteration: int, telemetry: dict[str, Any]) -> None:
        """Says that a trainer waits for its share; `next` brings it."""
        self._send(type="want", iteration=iteration, telemetry=telemetry)

    def share(self, iteration: int, telemetry: dict[str, Any]) -> list[list[Sequence]]:
        """A trainer's items of an iteration, in the order of their numbers.

        Without a limit: trainer 0, which may evaluate before it waits for rollouts itself, judges for all how
        long is too long. Its queue tells of its end, or falls silent.
        """
        self.want(iteration, telemetry)
        share = self.next(math.inf)
        assert share is not None
        return [[Sequence.unpack(one, self._queue) for one in item] for item in share["items"]]

    def tell(self, telemetry: dict[str, Any]) -> None:
        self._send(type="alive", telemetry=telemetry)

    def check(self) -> None:
        """Raises what `next` would raise now: to be called often while other work is done."""
        if self._failure is not None:
            raise self._failure

    def next(self, timeout: float) -> dict[str, Any] | None:
        """The queue's next order, or None after `timeout`.

        Raises EndOfRun at its end, PeerDead when nothing was received from the queue for a lease.
        """
        try:
            found = self._orders.get(timeout=None if timeout == math.inf else max(0.0, timeout))
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            self._orders.put(found)  # Also what the next call finds.
            raise found
        return found

    # --- The thread

    def _run(self) -> None:
        try:
            self._heard = time.monotonic()
            beat = self._lease / protocol.BEATS_IN_A_LEASE
            while not self._closed:
                message = self._receive(beat)
                # Only now: what came while this thread had no turn has kept the lease.
                if time.monotonic() - self._heard > self._lease:
                    raise self._gone(f"missed heartbeats for {self._lease:g} s")
                if message is not None and message["type"] != "alive":
                    self._orders.put(message)
                # What is being sent says it too.
                if time.monotonic() - self._said >= beat and not self._sending.locked():
                    self._send(type="alive")
        except Exception as error:  # It is raised where the process works.
            self._failure = error if isinstance(error, Error) else self._gone("has closed the connection")
            self._orders.put(self._failure)

    def _gone(self, how: str) -> PeerDead:
        return PeerDead(f"the trainers are gone: trainer 0, {self._queue}, {how}; see its log")

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        """The queue's next message, if it does not end everything; None: there is none in this time.

        Raises EOFError when the connection has ended.
        """
        deadline = time.monotonic() + timeout
        try:
            while (message := self._inbox.next()) is None:
                poller = select.poll()
                poller.register(self._socket, select.POLLIN)
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    return None
                self._inbox.add(self._read())
        except ProtocolError as error:
            raise ProtocolError(f"{self._queue}: {error}") from None
        if message["type"] == "end":
            raise EndOfRun(str(message.get("reason") or ""))
        if message["type"] == "refused":
            reason = protocol.printable(str(message.get("reason")))
            raise InvalidArgument(f"{self._queue} refuses this process: {reason}")
        return message

    def _read(self) -> bytes:
        """What is here."""
        try:
            found = self._socket.recv(protocol.MOST_AT_ONCE)
        except OSError:
            raise EOFError from None
        if not found:
            raise EOFError
        self._heard = time.monotonic()
        return found

    def _send(self, **message: Any) -> None:
        """Waits until it is sent. Where the queue has ended, what it has said before is not lost: `next`
        finds it, or that there is nothing."""
        data = memoryview(protocol.pack(message))
        with self._sending:
            self._said = time.monotonic()
            try:
                while data:
                    data = data[self._socket.send(data) :]
            except TimeoutError:
                raise self._gone(f"has read nothing for {self._lease:g} s") from None
            except OSError:
                pass

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):  # It has ended.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def __enter__(self) -> RolloutClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
