"""Where work for the engines is handed out and rollouts come in: docs/rl.md, "The rollout queue"."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .. import ProtocolError, TimedOut, job_token
from . import rollout_protocol as protocol
from .failures import in_one_line, other_release
from .rollout_listener import Listener
from .rollout_protocol import Handshake, Inbox, Item, number_of
from .sequence import Sequence
from .timeline import Clock, host_identity

_log = logging.getLogger("weightcast.rl")
_LAST_WORDS = 1.0  # Seconds for the end to reach everyone.
_MOST_UNSENT = 2 * protocol.MOST_BYTES


@dataclasses.dataclass(eq=False)
class _Peer:
    """A client that has proven that it has the job token."""

    name: str
    role: str
    writer: asyncio.StreamWriter
    heard: float = dataclasses.field(default_factory=time.monotonic)  # When bytes came last.
    item: Item | None = None
    waits_with: int | None = None  # The version with which an engine waits for work.
    wants: int | None = None  # The iteration for which a trainer waits.

    @property
    def who(self) -> str:
        return f"{'engine' if self.role == 'inference' else 'trainer'} {self.name}"

    def send(self, **message: Any) -> None:
        """It may have ended: its reader finds out."""
        if self.writer.transport.get_write_buffer_size() > _MOST_UNSENT:
            self.writer.transport.abort()  # It does not read.
        elif not self.writer.is_closing():
            self.writer.write(protocol.pack(message))


@dataclasses.dataclass(eq=False)
class RolloutQueue:
    """Trainer 0's. One thread of its own has the connections; methods may be called from any thread.

    telemetry: called with the name of a client and what it tells of itself, from that thread; an exception of
    it refuses the client.
    """

    bind: str
    _: dataclasses.KW_ONLY
    trainers: int
    lease: float
    clock: Clock
    telemetry: Callable[[str, dict[str, Any]], None]

    def __post_init__(self) -> None:
        self._peers: list[_Peer] = []
        self._waiting: collections.deque[Item] = collections.deque()
        self._items: dict[tuple[int, int], Item] = {}  # Those that no trainer has taken yet.
        self._results: dict[tuple[int, int], list[Sequence]] = {}
        self._token, configured = job_token()
        self._version = -1
        self._end: str | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._beaten = time.monotonic()
        self._listener = Listener(self.bind, self._token, configured, greet=self._greet, admit=self._admit)
        self.port = self._listener.port
        self._loop = asyncio.new_event_loop()
        self._woken = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="wc-rl-rollouts", daemon=True)
        self._thread.start()

    # --- Trainer 0

    def offer(self, items: Iterable[Item], *, first: bool = False) -> None:
        """Work of one or more iterations, in the order in which it is handed out.

        first: before what waits already.
        """
        with self._changed:
            new = {item.key: item for item in items}
            self._items |= new
            if first:
                self._waiting.extendleft(reversed(new.values()))
            else:
                self._waiting.extend(new.values())
        self._wake()

    def announce(self, version: int) -> None:
        """This version is published: engines that have nothing to do with an older one wait for it."""
        with self._changed:
            self._version = version
        self._wake()

    def take(
        self, iteration: int, trainer: int, timeout: float, check: Callable[[], None] = lambda: None
    ) -> list[list[Sequence]]:
        """The results of a trainer's items, in the order of their numbers. Once. Raises TimedOut.

        check: called once in a lease if engines are here and none has work; may raise what ends the wait.
        """
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                left = deadline - time.monotonic()
                ready = self._changed.wait_for(
                    lambda: self._failure or self._is_whole(iteration, trainer), min(left, self.lease)
                )
                if self._failure:
                    raise self._failure
                if ready:
                    return self._pop(iteration, trainer)
                if left <= self.lease:
                    after = f"the evaluation after iteration {-1 - iteration}"
                    what = f"the rollouts of {f'iteration {iteration}' if iteration >= 0 else after}"
                    raise TimedOut(f"{what} are not here after {timeout:g} s; {self._missing()}")
                idle = self.engines() and not any(peer.item for peer in self._peers)
            if idle:
                check()

    def engines(self) -> list[str]:
        """Those received from within the lease."""
        with self._changed:
            now = time.monotonic()
            return [
                one.name for one in self._peers if one.role == "inference" and now - one.heard < self.lease
            ]

    def end(self, reason: str = "") -> None:
        """Tells everyone that the run is over, with what has failed, if anything has; and closes."""
        with self._changed:
            self._end = reason
        self._wake()
        self._thread.join(5)

    # --- The thread

    def _wake(self) -> None:
        with self._changed:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._woken.set)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._work())
        except Exception as error:
            _log.exception("the rollout queue has failed, which ends the run; start it again")
            with self._changed:
                self._failure = error
                self._end = f"trainer 0: the rollout queue has failed: {in_one_line(error)}"
                self._changed.notify_all()
        finally:
            with self._changed:
                self._closed = True
            self._loop.run_until_complete(self._say_end())
            self._loop.close()

    async def _work(self) -> None:
        accepting = asyncio.ensure_future(self._listener.accept())
        try:
            while self._serve():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), max(0.0, self._until_beat()))
                self._woken.clear()
                self._beat()
                self._listener.refusals.say()
                if accepting.done():
                    accepting.result()  # Raises why.
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])

    async def _say_end(self) -> None:
        for peer in self._peers:
            peer.send(type="end", reason=self._end)
            with contextlib.suppress(OSError, RuntimeError):
                peer.writer.write_eof()
        await self._listener.end(_LAST_WORDS)

    def _greet(self, hello: dict[str, Any]) -> Handshake:
        if hello["type"] != "hello":
            raise other_release(f"it sent type '{hello['type'][:32]}' and has not proven its job token")
        name, role = hello.get("name"), hello.get("role")
        if not isinstance(name, str) or role not in ("trainer", "inference"):
            raise other_release("it sent a hello without a name, or without the role trainer or inference")
        if not 0 < len(name) <= 256 or not name.isprintable():
            raise ProtocolError(f"its name is {name[:32]!r}; give --engine 1 to 256 printable characters")
        if role == "trainer" and not (name.isdecimal() and int(name) < self.trainers):
            raise ProtocolError(
                f"there is no trainer {name[:32]!r} among the {self.trainers} of this run; "
                "give all processes the same --num_training"
            )
        return Handshake(name, role, protocol.nonce_of(hello), protocol.new_nonce())

    async def _admit(self, known: Handshake, connected: socket.socket) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reader, writer = await asyncio.open_connection(sock=connected)
        peer = _Peer(known.name, known.role, writer)
        with self._changed:
            for other in [one for one in self._peers if (one.name, one.role) == (peer.name, peer.role)]:
                reason = f"another {peer.who} has come; end one of them, or give each engine its own --engine"
                other.send(type="refused", reason=reason)
                self._lose(other, "it has been started again")
            self._peers.append(peer)
        clock = {"start": self.clock.start, "reading": Clock.reading(), "host": host_identity()}
        peer.send(type="welcome", proof=known.proof(self._token, "server"), **clock)
        await self._listen_to(peer, reader)

    async def _listen_to(self, peer: _Peer, reader: asyncio.StreamReader) -> None:
        """Whatever a message does wrong is its sender's fault."""
        inbox, reason = Inbox(), ""
        try:
            while more := await reader.read(protocol.MOST_AT_ONCE):
                peer.heard = time.monotonic()
                inbox.add(more)
                while (message := inbox.next()) is not None:
                    with self._changed:
                        self._on(peer, message)
                    self._woken.set()
                    await asyncio.sleep(0)  # Others have their turn, and so have heartbeats.
        except ProtocolError as error:
            reason = str(error)
        except OSError:
            pass  # The connection has ended.
        except Exception as error:
            reason = str(other_release(f"it sent a malformed message: {error!r}"))
        finally:
            if reason:
                self._listener.refusals.add(f"{peer.who}: {reason}")
                peer.send(type="refused", reason=reason)
            with self._changed:
                self._lose(peer, "it is refused" if reason else "its connection has ended")
            self._woken.set()

    def _lose(self, peer: _Peer, reason: str) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._take_back(peer, reason)
        peer.writer.close()

    def _on(self, peer: _Peer, message: dict[str, Any]) -> None:
        kind = message["type"]
        if peer.role == "trainer" and kind == "want":
            peer.wants = number_of(message, "iteration")
        elif peer.role == "inference" and kind == "free":
            version = number_of(message, "version")
            if peer.item is None:  # Otherwise an item is on its way to it.
                peer.waits_with = version
        elif peer.role == "inference" and kind == "done":
            self._on_done(message)
        elif kind != "alive":
            raise other_release(f"it sent a message of type '{kind[:32]}', which its role does not send")
        telemetry = message.get("telemetry")
        if isinstance(telemetry, dict) and telemetry:
            self.telemetry(peer.name, telemetry)

    def _on_done(self, message: dict[str, Any]) -> None:
        key = number_of(message, "iteration"), number_of(message, "number")
        item = self._items.get(key)
        if item is None or key in self._results:
            return  # Another has brought it.
        sequences = message.get("sequences")
        wanted = len(item.prompts) * item.samples
        if not isinstance(sequences, list) or len(sequences) != wanted:
            raise other_release(f"its batch {key[1]} of iteration {item.after} lacks the {wanted} sequences")
        self._results[key] = [Sequence.unpack(one) for one in sequences]
        # It may have been taken back from this engine, which was only slow.
        with contextlib.suppress(ValueError):
            self._waiting.remove(item)
        for one in self._peers:
            if one.item is item:
                one.item = None
        self._changed.notify_all()

    def _until_beat(self) -> float:
        return self._beaten + self.lease / protocol.BEATS_IN_A_LEASE - time.monotonic()

    def _beat(self) -> None:
        if self._until_beat() > 0:
            return
        self._beaten = now = time.monotonic()
        with self._changed:
            for peer in self._peers:
                if now - peer.heard > self.lease:
                    self._take_back(peer, f"it missed heartbeats for {self.lease:g} s")
                peer.send(type="alive")

    def _take_back(self, peer: _Peer, reason: str) -> None:
        if peer.item is not None:
            _log.warning("%s: %s, so its work goes to another engine; see its log", peer.who, reason)
            self._waiting.appendleft(peer.item)
            peer.item = None

    def _serve(self) -> bool:
        """Answers those who wait and can be answered. False: the run is over."""
        with self._changed:
            if self._end is not None:
                return False
            for peer in self._peers:
                if peer.wants is not None and self._is_whole(peer.wants, trainer := int(peer.name)):
                    share = [[one.pack() for one in item] for item in self._pop(peer.wants, trainer)]
                    peer.send(type="share", iteration=peer.wants, items=share)
                    peer.wants = None
                elif peer.waits_with is not None:
                    self._serve_engine(peer, peer.waits_with)
            return True

    def _serve_engine(self, peer: _Peer, version: int) -> None:
        item = next((one for one in self._waiting if one.oldest <= version <= one.newest), None)
        if item is not None:
            self._waiting.remove(item)
            peer.item, peer.waits_with = item, None
            peer.send(type="item", item=dataclasses.asdict(item))
        elif version < self._version:
            peer.waits_with = None
            peer.send(type="update", version=self._version)

    # --- State; with the lock

    def _share(self, iteration: int, trainer: int) -> list[tuple[int, int]]:
        """The items of a trainer, by their keys."""
        wanted = (iteration, trainer)
        return [key for key, item in self._items.items() if (item.iteration, item.trainer) == wanted]

    def _is_whole(self, iteration: int, trainer: int) -> bool:
        share = self._share(iteration, trainer)
        return bool(share) and all(key in self._results for key in share)

    def _pop(self, iteration: int, trainer: int) -> list[list[Sequence]]:
        share = self._share(iteration, trainer)
        for key in share:
            del self._items[key]
        return [self._results.pop(key) for key in share]

    def _missing(self) -> str:
        away = {peer.item.key: peer.name for peer in self._peers if peer.item is not None}
        names = ", ".join(sorted(set(away.values())))
        here = ", ".join(self.engines())
        if away:
            state = f"see the logs of {names}, which work on the others, or raise --timeout"
        elif here:
            state = f"see the logs of {here}, which have taken none, or raise --timeout"
        else:
            state = "no engine is connected; start engines, and see the logs of those that have ended"
        missing = f"{len(self._items) - len(self._results)} batches of prompts are not done"
        return f"{missing}, {len(self._waiting)} of them wait for an engine; {state}"
