"""Where work for the engines is handed out and rollouts come in: docs/rl.md, "The desk"."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from ..errors import ProtocolError, TimedOut, Unavailable
from .desk_handshake import Handshake, job_token, new_nonce, nonce_of
from .desk_messages import BEATS_IN_A_LEASE, MOST_BYTES, Item, number_of, pack, unpack
from .sequence import Sequence
from .timeline import Clock, host_identity

_log = logging.getLogger("weightcast.rl")
# Of those who have not proven yet that they have the job token.
_MOST_STRANGERS = 256
_MOST_STRANGERS_BYTES = 2048  # In a message.
_NOT_WELCOME = "it has not proven that it has the job token, or its connection was lost; start it again"


@dataclasses.dataclass
class _Peer:
    """A client that has proven that it has the job token."""

    name: str
    role: str
    heard: float
    item: Item | None = None
    waits_with: int | None = None  # The version with which an engine waits for work.
    wants: int | None = None  # The iteration for which a trainer waits.


class Desk:
    """Trainer 0's. One thread of its own has the socket; methods may be called from any thread.

    news: called with the name of a client and what it tells of itself, from that thread; it may refuse by
    ProtocolError.
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
        self._peers: dict[bytes, _Peer] = {}
        self._strangers: dict[bytes, Handshake] = {}  # Who has said hello only; the oldest first.
        self._waiting: collections.deque[Item] = collections.deque()
        self._open: dict[tuple[int, int], Item] = {}  # Those that nobody has brought yet.
        self._expected: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (iteration, trainer) → its items.
        self._results: dict[tuple[int, int], list[Sequence]] = {}
        self._token = job_token()
        self._version = -1
        self._end: str | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        host, _, port = bind.rpartition(":")
        try:
            self._socket.bind(f"tcp://{host or '*'}:{port or '*'}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise Unavailable(f"the desk cannot listen on {bind}: {error}; choose another --desk") from None
        if not self._token:
            _log.warning("there is no job token: whoever reaches the desk is admitted; set WEIGHTCAST_TOKEN")
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(bound.rpartition(":")[2])
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.bind(f"inproc://desk-{id(self)}")
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.connect(f"inproc://desk-{id(self)}")
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
                for one in self._peers.values()
                if one.role == "inference" and now - one.heard < self._lease
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
            if not self._wake_in.closed:
                self._wake_in.send(b"")

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_out, zmq.POLLIN)
        beat = time.monotonic()
        try:
            while True:
                found = dict(poller.poll(round(self._lease * 1000 / BEATS_IN_A_LEASE)))
                if self._wake_out in found:
                    self._wake_out.recv()
                if self._socket in found:
                    self._receive_all()
                now = time.monotonic()
                if now - beat >= self._lease / BEATS_IN_A_LEASE:
                    beat = now
                    self._beat(now)
                if not self._serve():
                    break
        except Exception as error:
            _log.exception("the desk has failed")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
        finally:
            with self._changed:
                for socket in (self._socket, self._wake_out, self._wake_in):
                    socket.close()
            self._context.term()

    def _receive_all(self) -> None:
        while self._socket.poll(0):
            frames = self._socket.recv_multipart()
            sender = frames[0]
            with self._changed:
                try:
                    if len(frames) != 2:
                        raise ProtocolError("a message has more than one part")
                    if sender not in self._peers and len(frames[1]) > _MOST_STRANGERS_BYTES:
                        raise ProtocolError(_NOT_WELCOME)
                    self._on(sender, unpack(frames[1]))
                except ProtocolError as error:
                    who = self._peers.pop(sender, None)
                    if who is not None:
                        self._take_back(who, f"{who.name} is refused")
                    _log.warning("the desk refuses %s: %s", who.name if who else "a stranger", error)
                    self._send(sender, {"type": "refused", "reason": str(error)})

    def _on(self, sender: bytes, message: dict[str, Any]) -> None:
        peer, kind = self._peers.get(sender), message["type"]
        if kind == "hello":
            return self._on_hello(sender, message)
        if kind == "proof":
            return self._on_proof(sender, message)
        if peer is None:
            raise ProtocolError(_NOT_WELCOME)
        peer.heard = time.monotonic()
        if peer.role == "trainer" and kind == "want":
            peer.wants = number_of(message, "iteration")
            self._tell(peer, message)
            return None
        if peer.role == "inference" and kind == "free":
            if peer.item is None:  # Otherwise an item is on its way to it.
                peer.waits_with = number_of(message, "version")
            self._tell(peer, message)
            return None
        if peer.role == "inference" and kind == "done":
            self._on_done(message)
            self._tell(peer, message)
            return None
        self._tell(peer, message)
        if kind != "alive":
            raise ProtocolError(f"a {peer.role} sends a message of type '{kind[:32]}'")
        return None

    def _on_hello(self, sender: bytes, message: dict[str, Any]) -> None:
        name, role = message.get("name"), message.get("role")
        if not isinstance(name, str) or not 0 < len(name) <= 256 or role not in ("trainer", "inference"):
            raise ProtocolError("its hello has no name and role")
        if role == "trainer" and not (name.isdecimal() and int(name) < self._trainers):
            raise ProtocolError(f"there is no trainer {name[:32]!r} among {self._trainers}")
        self._strangers.pop(sender, None)
        if len(self._strangers) == _MOST_STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        nonce = new_nonce()
        self._strangers[sender] = Handshake(name, role, nonce_of(message), nonce)
        self._send(sender, {"type": "challenge", "nonce": nonce})

    def _on_proof(self, sender: bytes, message: dict[str, Any]) -> None:
        known = self._strangers.pop(sender, None)  # A challenge is good for one proof.
        if known is None:
            raise ProtocolError("its proof answers no challenge; start it again")
        known.check(self._token, "client", message)
        name, role = known.name, known.role
        for other, peer in list(self._peers.items()):
            if other == sender or (peer.name, peer.role) == (name, role):
                self._take_back(peer, f"{name} has been started again")
                del self._peers[other]
        self._peers[sender] = _Peer(name, role, time.monotonic())
        proof = known.proof(self._token, "desk")
        clock = {"start": self._clock.start, "reading": Clock.reading(), "host": host_identity()}
        self._send(sender, {"type": "welcome", "proof": proof, **clock})

    def _on_done(self, message: dict[str, Any]) -> None:
        key = number_of(message, "iteration"), number_of(message, "number")
        item = self._open.get(key)
        if item is None:
            return  # Another has brought it.
        sequences = message.get("sequences")
        if not isinstance(sequences, list) or len(sequences) != len(item.prompts) * item.samples:
            raise ProtocolError("an item came back with another number of sequences")
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

    def _beat(self, now: float) -> None:
        with self._changed:
            for sender, peer in self._peers.items():
                if now - peer.heard > self._lease:
                    self._take_back(peer, f"nothing heard of {peer.name} for {self._lease:g} s")
                self._send(sender, {"type": "alive"})

    def _take_back(self, peer: _Peer, reason: str) -> None:
        if peer.item is not None:
            _log.warning("%s: its work goes to another engine", reason)
            self._waiting.appendleft(peer.item)
            peer.item = None

    def _serve(self) -> bool:
        """Answers those who wait and can be answered. False: the run is over."""
        with self._changed:
            for stranger in self._strangers if self._end is not None else ():
                self._send(stranger, {"type": "refused", "reason": "the run has ended"})
            for sender, peer in self._peers.items():
                if self._end is not None:
                    self._send(sender, {"type": "end", "reason": self._end})
                elif peer.wants is not None and self._is_whole(peer.wants, trainer := int(peer.name)):
                    share = [[one.pack() for one in item] for item in self._pop(peer.wants, trainer)]
                    self._send(sender, {"type": "share", "iteration": peer.wants, "items": share})
                    peer.wants = None
                elif peer.waits_with is not None:
                    self._serve_engine(sender, peer, peer.waits_with)
            return self._end is None

    def _serve_engine(self, sender: bytes, peer: _Peer, version: int) -> None:
        item = next((one for one in self._waiting if one.oldest <= version <= one.newest), None)
        if item is not None:
            self._waiting.remove(item)
            peer.item, peer.waits_with = item, None
            self._send(sender, {"type": "item", "item": dataclasses.asdict(item)})
        elif version < self._version:
            peer.waits_with = None
            self._send(sender, {"type": "update", "version": self._version})

    def _send(self, to: bytes, message: dict[str, Any]) -> None:
        try:
            self._socket.send_multipart([to, pack(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _log.debug("the desk cannot answer: %s", error)  # It is silent from now on, and then lost.

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
