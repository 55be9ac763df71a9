"""The rollout queue's listener: what a connection without a proof of the job token may cost.

Such a *stranger* says hello with its first bytes, or is not waited for. Then it has two seconds for a proof.
Strangers have a bounded number of connections and a tenth of the thread's time: a flood of them delays no
heartbeat and uses up no descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import os
import random
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from .. import Permission, ProtocolError, Unavailable
from .failures import other_release
from .rollout_protocol import Handshake, Inbox, host_and_port, pack, printable

_log = logging.getLogger("weightcast.rl")
_MOST_BYTES = 2048  # In a stranger's message.
_MOST_STRANGERS = 64  # Connections, or an eighth of the descriptors where that is less.
_SECONDS = 2.0  # For the proof.
_ACCEPTED_AT_ONCE = 16
_REST = 9  # Seconds of the thread for others, for each that strangers have used.
_WITHOUT_DESCRIPTORS = 0.5  # Seconds until the next try to accept.


class Refusals:
    """Counts whom the queue refuses, and says so at most once a second."""

    def __init__(self) -> None:
        self.count = 0
        self._said, self._said_at, self._last = 0, -1.0, ""

    def add(self, what: str) -> None:
        self.count += 1
        self._last = printable(what[:500])
        self.say()

    def say(self) -> None:
        """To be called again and again, so that the last ones are said too."""
        now, new = time.monotonic(), self.count - self._said
        if new and now - self._said_at >= 1:
            more = f" ({new} times, {self.count} in all)" if new > 1 else ""
            _log.warning("the rollout queue refuses %s%s", self._last, more)
            self._said, self._said_at = self.count, now


class Stranger:
    """A connection that has proven nothing. Each of its messages comes in one piece, as small ones do."""

    def __init__(self, connected: socket.socket, address: str) -> None:
        self.socket = connected
        self.address = address
        connected.setblocking(False)
        self._inbox = Inbox(_MOST_BYTES)

    def first(self) -> dict[str, Any]:
        """The message that is here. Raises OSError, EOFError or ProtocolError, as `second` does."""
        return self._hear(self.socket.recv(_MOST_BYTES))

    async def second(self) -> dict[str, Any]:
        """Waits for it, if it has not come with the first."""
        message = self._inbox.next()
        if message is None:
            message = self._hear(await asyncio.get_running_loop().sock_recv(self.socket, _MOST_BYTES))
        return message

    def _hear(self, data: bytes) -> dict[str, Any]:
        if not data:
            raise EOFError
        self._inbox.add(data)
        message = self._inbox.next()
        if message is None:
            raise other_release("its first messages came in pieces, as those of another program or release")
        return message

    def say(self, **message: object) -> None:
        """What is said to it always fits the socket's buffer, or it takes nothing."""
        with contextlib.suppress(OSError):
            self.socket.send(pack(message))


@dataclasses.dataclass(eq=False, repr=False)  # The token is shown nowhere.
class Listener:
    """Of one event loop.

    bind: "host:port"; no host: every interface. anywhere: whether it may be another than loopback.
    greet: answers a hello, or raises ProtocolError. admit: has the connection after the proof.
    """

    bind: str
    token: bytes
    anywhere: bool
    greet: Callable[[dict[str, Any]], Handshake]
    admit: Callable[[Handshake, socket.socket], Awaitable[None]]

    def __post_init__(self) -> None:
        self.refusals = Refusals()
        self.strangers: dict[Stranger, asyncio.Task] = {}
        self._tasks: set[asyncio.Task] = set()
        self._most = min(_MOST_STRANGERS, _descriptors() // 8)
        self._ended = False
        self._listener = _listen(self.bind, self.anywhere)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self) -> None:
        """For ever."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        while True:
            loop.add_reader(self._listener, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self._listener)
            ready.clear()
            begin = time.thread_time()
            pause = self._accept_some()
            await asyncio.sleep(pause + _REST * (time.thread_time() - begin))

    def _accept_some(self) -> float:
        """Seconds in which another try is of no use."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                break
            except OSError as error:
                self.refusals.add(f"new connections: {error.strerror}; raise the limit of open files")
                return _WITHOUT_DESCRIPTORS
            self._meet(Stranger(connected, f"{peer[0]}:{peer[1]}"))
        return 0.0

    def _meet(self, stranger: Stranger) -> None:
        """The kernel passes on connections with their first bytes, and a hello is there at once."""
        with self._refusing(stranger):
            known = self.greet(stranger.first())
            if len(self.strangers) >= self._most:
                # At random: a stranger that fills all places cannot choose whose is lost.
                self.strangers.pop(random.choice(list(self.strangers))).cancel()
            self.strangers[stranger] = task = asyncio.ensure_future(self._prove(stranger, known))
            stranger.say(type="challenge", nonce=known.server_nonce)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _prove(self, stranger: Stranger, known: Handshake) -> None:
        admitted = False
        with self._refusing(stranger):
            try:
                known.check(self.token, "client", await asyncio.wait_for(stranger.second(), _SECONDS))
                admitted = True
            except asyncio.CancelledError:
                if self._ended:
                    stranger.say(type="refused", reason="the run has ended; start this process with the next")
                raise
            finally:
                self.strangers.pop(stranger, None)
        if admitted:
            with contextlib.suppress(OSError):  # It has ended.
                await self.admit(known, stranger.socket)

    @contextlib.contextmanager
    def _refusing(self, stranger: Stranger) -> Iterator[None]:
        """Whatever a message does wrong is its sender's fault."""
        try:
            yield
            return
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.CancelledError):
            if not self._ended:
                self.refusals.add(
                    f"a process at {stranger.address}, which does not prove the job token; "
                    "give all processes one WEIGHTCAST_TOKEN"
                )
        except Exception as error:
            malformed = other_release(f"it sent a malformed message: {error!r}")
            reason = str(error if isinstance(error, ProtocolError) else malformed)
            self.refusals.add(f"a process at {stranger.address}: {reason}")
            stranger.say(type="refused", reason=reason)
        stranger.socket.close()

    async def end(self, patience: float) -> None:
        """Members have so many seconds to end by themselves."""
        self._ended = True
        self._listener.close()
        for task in self.strangers.values():
            task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _descriptors() -> int:
    """How many this process may have: as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def _listen(bind: str, anywhere: bool) -> socket.socket:
    try:
        host, port = host_and_port(bind)
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        family, address = found[0], found[4]
        if not anywhere and not ipaddress.ip_address(address[0]).is_loopback:
            raise Permission(
                f"without a job token the rollout queue listens on loopback only, not on {address[0]}; "
                "give all processes one WEIGHTCAST_TOKEN or WEIGHTCAST_TOKEN_FILE"
            )
        listener = socket.create_server(address, family=family, backlog=128)
    except (OSError, ValueError) as error:
        if isinstance(error, Permission):
            raise
        raise Unavailable(
            f"the rollout queue cannot listen on {bind}: {error}; choose another --rollout_queue"
        ) from None
    listener.setblocking(False)
    # A forked child must not keep the port after this process has ended.
    os.register_at_fork(after_in_child=listener.close)
    # Who says nothing is not even accepted; an honest hello comes with the connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, round(_SECONDS))
    return listener
