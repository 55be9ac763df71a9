"""Where work for the engines is handed out and rollouts come in: docs/rl.md, "The task server"."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .. import ProtocolError, TimedOut
from .desk_connections import Connections
from .desk_handshake import Handshake, job_token, new_nonce, nonce_of
from .desk_link import Link
from .desk_messages import BEATS_IN_A_LEASE, MOST_BYTES, Item, number_of, pack, unpack
from .failures import in_one_line
from .sequence import Sequence
from .timeline import Clock, host_identity

_log = logging.getLogger("weightcast.rl")
_LAST_WORDS = 1.0  # Seconds for the end to reach everyone.


@dataclasses.dataclass
class _Peer:
    """A client that has proven that it has the job token."""

    name: str
    role: str
    item: Item | None = None
    waits_with: int | None = None  # The version with which an engine waits for work.
    wants: int | None = None  # The iteration for which a trainer waits.


class Desk:
    """Trainer 0's. One thread of its own has the connections; methods may be called from any thread.

    news: called with the name of a client and what it tells of itself, from that thread; an exception of it
    refuses the client.
    """

    def __init__(
        self,
        bind: str,
        *,
        trainers: int,
        lease: float,
        clock: Clock,
        news: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._trainers, self._lease, self._clock, self._news = trainers, lease, clock, news
        self._peers: dict[Link, _Peer] = {}
        self._strangers: dict[Link, Handshake] = {}  # Who has said hello only.
        self._waiting: collections.deque[Item] = collections.deque()
        self._open: dict[tuple[int, int], Item] = {}  # Those that nobody has brought yet.
        self._expected: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (iteration, trainer) → its items.
        self._results: dict[tuple[int, int], list[Sequence]] = {}
        self._token, configured = job_token()
        self._version = -1
        self._end: str | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._beaten = time.monotonic()
        self._connections = Connections(bind, anywhere=configured)
        self.port = self._connections.port
        self._thread = threading.Thread(target=self._run, name="wc-rl-desk", daemon=True)
        self._thread.start()

    # --- Trainer 0

    def offer(self, items: Iterable[Item], *, first: bool = False) -> None:
        """Work of one or more iterations, in the order in which it is handed out.

        first: before what waits already.
        """
        with self._changed:
            items = list(items)
            self._waiting = collections.deque([*items, *self._waiting] if first else [*self._waiting, *items])
            for item in items:
                self._open[item.key] = item
                self._expected.setdefault((item.iteration, item.trainer), []).append(item.key)
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
                    lambda: self._failure or self._is_whole(iteration, trainer), min(left, self._lease)
                )
                if self._failure:
                    raise self._failure
                if ready:
                    return self._pop(iteration, trainer)
                if left <= self._lease:
                    raise TimedOut(
                        f"the rollouts of iteration {iteration} are not here after {timeout:g} s; "
                        f"{self._missing()}"
                    )
                idle = self.engines() and not any(peer.item for peer in self._peers.values())
            if idle:
                check()

    def engines(self) -> list[str]:
        """Those heard of within the lease."""
        with self._changed:
            now = time.monotonic()
            return [
                one.name
                for link, one in self._peers.items()
                if one.role == "inference" and now - link.heard < self._lease
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
                self._connections.wake()

    def _run(self) -> None:
        try:
            while self._serve():
                for link, message in self._connections.turn(self._until_beat()):
                    with self._changed:
                        self._hear(link, message)
                        self._beat()
                with self._changed:
                    self._beat()
        except Exception as error:
            _log.exception("the task server has failed")
            with self._changed:
                self._failure, self._end = (
                    error,
                    f"trainer 0: the task server has failed: {in_one_line(error)}",
                )
                self._changed.notify_all()
        finally:
            with self._changed:
                self._closed = True
                self._say_end()
            self._connections.end(_LAST_WORDS)

    def _hear(self, link: Link, data: bytes | None) -> None:
        """data: None: the connection has ended. Whatever a message does wrong is its sender's fault."""
        if data is None:
            return self._lose(link, "its connection has ended")
        try:
            return self._on(link, unpack(data))
        except ProtocolError as error:
            reason = str(error)
        except Exception as error:
            reason = f"its message is malformed: {type(error).__name__}: {error}"
        who = self._peers.get(link)
        self._connections.refusals.add(f"{who.name if who else 'a stranger'}: {reason}")
        self._send(link, {"type": "refused", "reason": reason})
        self._lose(link, "it is refused")
        return None

    def _lose(self, link: Link, reason: str) -> None:
        self._strangers.pop(link, None)
        if (peer := self._peers.pop(link, None)) is not None:
            self._take_back(peer, f"{peer.name}: {reason}")
        self._connections.close(link)

    def _on(self, link: Link, message: dict[str, Any]) -> None:
        peer, kind = self._peers.get(link), message["type"]
        if peer is None:
            return self._on_proof(link, message) if link in self._strangers else self._on_hello(link, message)
        if peer.role == "trainer" and kind == "want":
            peer.wants = number_of(message, "iteration")
        elif peer.role == "inference" and kind == "free":
            version = number_of(message, "version")
            if peer.item is None:  # Otherwise an item is on its way to it.
                peer.waits_with = version
        elif peer.role == "inference" and kind == "done":
            self._on_done(message)
        elif kind != "alive":
            raise ProtocolError(
                f"a {peer.role} sends a message of the unknown type '{kind[:32]}'; "
                "use one release of weightcast in all processes"
            )
        self._tell(peer, message)
        return None

    def _on_hello(self, link: Link, message: dict[str, Any]) -> None:
        if message["type"] != "hello":
            raise ProtocolError("it has not proven that it has the job token; start it again")
        name, role = message.get("name"), message.get("role")
        if not isinstance(name, str) or not 0 < len(name) <= 256 or role not in ("trainer", "inference"):
            raise ProtocolError(
                "its hello has no name and role; use one release of weightcast in all processes"
            )
        if not name.isprintable():
            raise ProtocolError("its name has unprintable characters; give --engine another")
        if role == "trainer" and not (name.isdecimal() and int(name) < self._trainers):
            raise ProtocolError(
                f"there is no trainer {name[:32]!r} among {self._trainers}; "
                "give all processes the same --num_training"
            )
        nonce = new_nonce()
        self._strangers[link] = Handshake(name, role, nonce_of(message), nonce)
        self._send(link, {"type": "challenge", "nonce": nonce})

    def _on_proof(self, link: Link, message: dict[str, Any]) -> None:
        known = self._strangers.pop(link)  # A challenge is good for one proof.
        known.check(self._token, "client", message)
        name, role = known.name, known.role
        for other, peer in list(self._peers.items()):
            if (peer.name, peer.role) == (name, role):
                self._send(other, {"type": "refused", "reason": f"another {role} named {name} has come"})
                self._lose(other, "it has been started again")
        self._peers[link] = _Peer(name, role)
        self._connections.admit(link, MOST_BYTES)
        proof = known.proof(self._token, "desk")
        clock = {"start": self._clock.start, "reading": Clock.reading(), "host": host_identity()}
        self._send(link, {"type": "welcome", "proof": proof, **clock})

    def _on_done(self, message: dict[str, Any]) -> None:
        key = number_of(message, "iteration"), number_of(message, "number")
        item = self._open.get(key)
        if item is None:
            return  # Another has brought it.
        sequences = message.get("sequences")
        if not isinstance(sequences, list) or len(sequences) != len(item.prompts) * item.samples:
            raise ProtocolError(
                "an item came back with another number of sequences; "
                "use one release of weightcast in all processes"
            )
        self._results[key] = [Sequence.unpack(one) for one in sequences]
        del self._open[key]  # Not before: what is refused goes to another.
        # It may have been taken back from this engine, which was only slow.
        self._waiting = collections.deque(one for one in self._waiting if one is not item)
        for one in self._peers.values():
            if one.item is item:
                one.item = None
        self._changed.notify_all()

    def _tell(self, peer: _Peer, message: dict[str, Any]) -> None:
        news = message.get("news")
        if isinstance(news, dict) and news:
            self._news(peer.name, news)

    def _until_beat(self) -> float:
        return self._beaten + self._lease / BEATS_IN_A_LEASE - time.monotonic()

    def _beat(self) -> None:
        """Between any two messages, so that nobody keeps it from others."""
        if self._until_beat() > 0:
            return
        self._beaten = now = time.monotonic()
        for link, peer in self._peers.items():
            if now - link.heard > self._lease:
                self._take_back(peer, f"{peer.name} missed heartbeats for {self._lease:g} s")
            self._send(link, {"type": "alive"})

    def _take_back(self, peer: _Peer, reason: str) -> None:
        if peer.item is not None:
            _log.warning("%s: its work goes to another engine", reason)
            self._waiting.appendleft(peer.item)
            peer.item = None

    def _serve(self) -> bool:
        """Answers those who wait and can be answered. False: the run is over."""
        with self._changed:
            if self._end is not None:
                return False
            for link, peer in self._peers.items():
                if peer.wants is not None and self._is_whole(peer.wants, trainer := int(peer.name)):
                    share = [[one.pack() for one in item] for item in self._pop(peer.wants, trainer)]
                    self._send(link, {"type": "share", "iteration": peer.wants, "items": share})
                    peer.wants = None
                elif peer.waits_with is not None:
                    self._serve_engine(link, peer, peer.waits_with)
            return True

    def _say_end(self) -> None:
        for link in self._strangers:
            self._send(link, {"type": "refused", "reason": "the run has ended"})
        for link in self._peers:
            self._send(link, {"type": "end", "reason": self._end})

    def _serve_engine(self, link: Link, peer: _Peer, version: int) -> None:
        item = next((one for one in self._waiting if one.oldest <= version <= one.newest), None)
        if item is not None:
            self._waiting.remove(item)
            peer.item, peer.waits_with = item, None
            self._send(link, {"type": "item", "item": dataclasses.asdict(item)})
        elif version < self._version:
            peer.waits_with = None
            self._send(link, {"type": "update", "version": self._version})

    def _send(self, link: Link, message: dict[str, Any]) -> None:
        self._connections.send(link, pack(message))

    # --- State; with the lock

    def _is_whole(self, iteration: int, trainer: int) -> bool:
        keys = self._expected.get((iteration, trainer))
        return keys is not None and all(key in self._results for key in keys)

    def _pop(self, iteration: int, trainer: int) -> list[list[Sequence]]:
        return [self._results.pop(key) for key in self._expected.pop((iteration, trainer))]

    def _missing(self) -> str:
        away = {peer.item.key: peer.name for peer in self._peers.values() if peer.item is not None}
        held = f"; with {', '.join(sorted(set(away.values())))}" if away else ""
        items = f"{len(self._open)} items are open, {len(self._waiting)} wait for an engine"
        return f"{items}, {len(self.engines())} engines are here{held}"
