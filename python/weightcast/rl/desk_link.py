"""A TCP connection with messages on it: four bytes of length, big-endian, then that many of a message."""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import time

from .. import ProtocolError, Unavailable
from .desk_messages import MOST_BYTES

_LENGTH = struct.Struct(">I")
_MOST_AT_ONCE = 1 << 18  # Bytes, so that no other link waits long.
_MOST_UNSENT = 2 * MOST_BYTES


class Link:
    """Of one thread at a time. Only `wait` waits. After Unavailable or ProtocolError it is to be closed.

    most: bytes of a message that may come. heard: when bytes came last, by time.monotonic.
    """

    def __init__(self, connected: socket.socket, most: int = MOST_BYTES) -> None:
        self.most, self.heard = most, time.monotonic()
        self._socket = connected
        self._in = bytearray()
        self._out: collections.deque[memoryview] = collections.deque()
        self._unsent = 0
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> int:
        """Bytes that wait for `flush`."""
        return self._unsent

    def receive(self) -> list[bytes]:
        """The messages that are whole now. Raises Unavailable when the connection has ended."""
        try:
            data = self._socket.recv(min(_MOST_AT_ONCE, _LENGTH.size + self.most))
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise Unavailable(
                f"the connection has broken: {error.strerror}; does the other process run?"
            ) from None
        if not data:
            raise Unavailable("the other process has closed the connection; its log says why")
        self.heard = time.monotonic()
        self._in += data
        found = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> bytes | None:
        if len(self._in) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
        if end > _LENGTH.size + self.most:
            raise ProtocolError(
                f"a message has {end - _LENGTH.size} bytes; at most {self.most} are allowed; "
                "use one release of weightcast in all processes"
            )
        if len(self._in) < end:
            return None
        with memoryview(self._in) as view:
            message = bytes(view[_LENGTH.size : end])
        del self._in[:end]
        return message

    def send(self, message: bytes) -> None:
        """What the connection does not take at once waits for `flush`."""
        if self._unsent > _MOST_UNSENT:
            raise Unavailable("the other process does not read; is it stopped or busy?")
        self._out.append(memoryview(_LENGTH.pack(len(message)) + message))
        self._unsent += _LENGTH.size + len(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                self._unsent -= sent
                self._out[0] = self._out[0][sent:]
                if not self._out[0]:
                    self._out.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise Unavailable(
                f"the connection has broken: {error.strerror}; does the other process run?"
            ) from None

    def wait(self, timeout: float, *, to_send: bool = False) -> bool:
        """Whether something has come, or something more can be sent, within `timeout` seconds."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT if to_send else select.POLLIN)
        return bool(poller.poll(max(0.0, timeout) * 1000))

    def say_no_more(self) -> None:
        """The other side finds the end of the connection behind all that was sent."""
        self._shut_down(socket.SHUT_WR)

    def cut(self) -> None:
        """Both sides find that the connection has ended."""
        self._shut_down(socket.SHUT_RDWR)

    def _shut_down(self, how: int) -> None:
        with contextlib.suppress(OSError):  # It has ended.
            self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


def host_and_port(address: str) -> tuple[str, int]:
    """Of "host:port"; an IPv6 host stands in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
