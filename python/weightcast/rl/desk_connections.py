"""The desk's listener and connections: what one without a proof of the job token may cost.

Those that have not proven it are *unproven*. Together they have a tenth of the thread's time and a bounded
number of connections, each for two seconds: a flood of them delays no heartbeat and uses up no descriptors.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import random
import resource
import selectors
import socket
import time
import weakref
from collections.abc import Iterator

from .. import Permission, ProtocolError, Unavailable
from .desk_link import Link, host_and_port

_log = logging.getLogger("weightcast.rl")
MOST_UNPROVEN_BYTES = 2048  # In a message.
_MOST_UNPROVEN = 64  # Connections, or an eighth of the descriptors where that is less.
_UNPROVEN_SECONDS = 2.0
_ACCEPTED_AT_ONCE = 16
_REST = 9  # Seconds of the thread for others, for each that the unproven have used.
_WITHOUT_DESCRIPTORS = 0.5  # Seconds until the next try to accept.


class Refusals:
    """Counts whom the desk refuses, and says so at most once a second."""

    def __init__(self) -> None:
        self.count = 0
        self._said, self._said_at, self._last = 0, -1.0, ""

    def add(self, what: str) -> None:
        self.count += 1
        self._last = "".join(one if one.isprintable() else "?" for one in what[:500])
        self.say()

    def say(self) -> None:
        """To be called again and again, so that the last ones are said too."""
        now, new = time.monotonic(), self.count - self._said
        if new and now - self._said_at >= 1:
            more = f" ({new} times, {self.count} in all)" if new > 1 else ""
            _log.warning("the task server refuses %s%s", self._last, more)
            self._said, self._said_at = self.count, now


class Connections:
    """Of one thread, except `wake`. Messages come from `turn`.

    bind: "host:port"; no host: every interface. anywhere: whether it may be another than loopback.
    """

    def __init__(self, bind: str, *, anywhere: bool) -> None:
        self.refusals = Refusals()
        self._most_unproven = _descriptors() // 8
        self._members: dict[Link, bool] = {}  # Whether `turn` waits until they take more.
        self._unproven: dict[Link, float] = {}  # Since when, the oldest first.
        self._rest_until = 0.0
        self._listener = _listen(bind, anywhere)
        self.port: int = self._listener.getsockname()[1]
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        # The listener and the unproven. It is itself in `_selector`, except while they have to rest.
        self._of_unproven = selectors.DefaultSelector()
        self._of_unproven.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._of_unproven, selectors.EVENT_READ)
        self._resting = False

    def wake(self) -> None:
        """`turn` comes back soon. From any thread."""
        os.eventfd_write(self._wake, 1)

    def turn(self, timeout: float) -> Iterator[tuple[Link, bytes | None]]:
        """Waits until something comes; then each message with its link, and None for a link that has ended.

        Members first. While it is iterated, links may be admitted and closed.
        """
        unproven = False
        for key, events in self._selector.select(self._patience(timeout)):
            if key.fileobj is self._of_unproven:
                unproven = True
            elif key.fileobj == self._wake:
                os.eventfd_read(self._wake)
            elif key.fileobj in self._members:
                yield from self._serve(key.fileobj, events)
        if unproven:
            begin = time.thread_time()
            yield from self._serve_unproven()
            self._rest((time.thread_time() - begin) * _REST)
        yield from self._drop_the_slow()
        self.refusals.say()

    def _patience(self, timeout: float) -> float:
        rest = self._rest_until - time.monotonic()
        if self._resting and rest <= 0:
            self._resting = False
            self._selector.register(self._of_unproven, selectors.EVENT_READ)
        if self._unproven:
            timeout = min(timeout, _UNPROVEN_SECONDS / 4)
        return max(0.0, min(timeout, rest) if self._resting else timeout)

    def _rest(self, seconds: float) -> None:
        self._rest_until = max(self._rest_until, time.monotonic() + seconds)
        if not self._resting:
            self._resting = True
            self._selector.unregister(self._of_unproven)

    def _serve(self, link: Link, events: int) -> Iterator[tuple[Link, bytes | None]]:
        try:
            if events & selectors.EVENT_WRITE:
                link.flush()
                self._watch(link)
            messages = link.receive() if events & selectors.EVENT_READ else []
        except Unavailable:
            self.close(link)
            yield link, None
            return
        except ProtocolError as error:
            self.refusals.add(f"a connection: {error}")
            self.close(link)
            yield link, None
            return
        for message in messages:
            if link in self._members or link in self._unproven:
                yield link, message

    def _serve_unproven(self) -> Iterator[tuple[Link, bytes | None]]:
        for key, events in self._of_unproven.select(0):
            if key.fileobj is self._listener:
                yield from self._accept()
            elif key.fileobj in self._unproven:
                yield from self._serve(key.fileobj, events)

    def _accept(self) -> Iterator[tuple[Link, bytes | None]]:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connected, _ = self._listener.accept()
                link = Link(connected, MOST_UNPROVEN_BYTES)
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                self.refusals.add(f"new connections for a moment: {error.strerror}")
                self._rest(_WITHOUT_DESCRIPTORS)
                return
            if len(self._unproven) >= min(_MOST_UNPROVEN, self._most_unproven):
                # At random: whoever fills all places cannot choose who loses his.
                yield from self._end(random.choice(list(self._unproven)))
            self._unproven[link] = time.monotonic()
            self._of_unproven.register(link, selectors.EVENT_READ)

    def _drop_the_slow(self) -> Iterator[tuple[Link, bytes | None]]:
        now = time.monotonic()
        for link in [one for one, since in self._unproven.items() if now - since > _UNPROVEN_SECONDS]:
            yield from self._end(link)

    def _end(self, link: Link) -> Iterator[tuple[Link, bytes | None]]:
        self.refusals.add("a connection that does not prove the job token")
        self.close(link)
        yield link, None

    def admit(self, link: Link, most: int) -> None:
        """It has proven the job token; most: bytes of a message from now on."""
        del self._unproven[link]
        self._of_unproven.unregister(link)
        link.most = most
        self._members[link] = False
        self._selector.register(link, selectors.EVENT_READ)

    def send(self, link: Link, message: bytes) -> None:
        """It may have ended: `turn` says so."""
        try:
            link.send(message)
        except Unavailable as error:
            _log.debug("the task server cannot answer: %s", error)
            link.cut()
        if link in self._members:
            self._watch(link)

    def _watch(self, link: Link) -> None:
        """`turn` waits until it takes more, if something is left."""
        if self._members[link] != bool(link.unsent):
            self._members[link] = bool(link.unsent)
            write = selectors.EVENT_WRITE if link.unsent else 0
            self._selector.modify(link, selectors.EVENT_READ | write)

    def close(self, link: Link) -> None:
        """Once more does no harm."""
        if self._unproven.pop(link, None) is not None:
            self._of_unproven.unregister(link)
        elif self._members.pop(link, None) is not None:
            self._selector.unregister(link)
        link.close()

    def end(self, patience: float) -> None:
        """Closes everything. What was sent goes out before, for as long as `patience` seconds."""
        deadline = time.monotonic() + patience
        self._selector.unregister(self._wake)
        if not self._resting:
            self._selector.unregister(self._of_unproven)
        self._of_unproven.unregister(self._listener)
        self._listener.close()
        for link in (*self._members, *self._unproven):
            if not link.unsent:
                link.say_no_more()
        while self._members and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                if key.fileobj in self._members:
                    self._finish(key.fileobj)
        for link in (*self._members, *self._unproven):
            self.close(link)
        self._of_unproven.close()
        self._selector.close()
        os.close(self._wake)

    def _finish(self, link: Link) -> None:
        """Sends the rest, and reads on: who closes with unread bytes takes back what it has sent."""
        with contextlib.suppress(ProtocolError):
            try:
                link.flush()
                if not link.unsent:
                    link.say_no_more()
                    self._watch(link)
                link.receive()
            except Unavailable:
                self.close(link)


def _descriptors() -> int:
    """How many this process may have: as many as it may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


_listeners: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _let_go() -> None:
    """A forked child must not keep the port after this process has ended."""
    for listener in list(_listeners):
        listener.close()


os.register_at_fork(after_in_child=_let_go)


def _listen(bind: str, anywhere: bool) -> socket.socket:
    try:
        host, port = host_and_port(bind)
        found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
        family, address = found[0], found[4]
        if not anywhere and not ipaddress.ip_address(address[0]).is_loopback:
            raise Permission(
                f"without a job token the task server listens on loopback only, not on {address[0]}; "
                "give all processes one WEIGHTCAST_TOKEN or WEIGHTCAST_TOKEN_FILE"
            )
        listener = socket.create_server(address, family=family, backlog=128)
    except (OSError, ValueError) as error:
        if isinstance(error, Permission):
            raise
        raise Unavailable(
            f"the task server cannot listen on {bind}: {error}; choose another --desk"
        ) from None
    listener.setblocking(False)
    _listeners.add(listener)
    # Who says nothing is not even accepted; an honest hello comes with the connection.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, round(_UNPROVEN_SECONDS))
    return listener
