"""A TCP relay in front of an engine's port, which can stop in the middle of the bytes."""

from __future__ import annotations

import contextlib
import socket
import threading

from ports import free_port

PUBLIC, OWN = "127.0.0.2", "127.0.0.1"


PORTS = 4  # An engine listens on more than one.


def _listeners() -> list[socket.socket]:
    """On consecutive ports that are free at both addresses."""
    while True:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            found, first = [], free_port(PUBLIC)
            for port in range(first, first + PORTS):
                found.append(stack.enter_context(socket.create_server((PUBLIC, port))))
            for port in range(first, first + PORTS):
                socket.create_server((OWN, port)).close()
            stack.pop_all()
            return found


class Relay:
    """Passes on what comes to its ports at PUBLIC, to the same ports at OWN."""

    def __init__(self) -> None:
        self._limit = 0  # 0: none.
        self._passed = 0
        self.stopped = threading.Event()
        self._open: list[socket.socket] = []
        self._listeners = _listeners()
        self._ports = [one.getsockname()[1] for one in self._listeners]
        for one in self._listeners:
            threading.Thread(target=self._accept, args=(one,), daemon=True).start()

    @property
    def settings(self) -> dict[str, str]:
        """Of the engine, whose peers then come through here."""
        return {
            "transport": "tcp",
            "bind": OWN,
            "advertise": PUBLIC,
            "port_range": f"{self._ports[0]}-{self._ports[-1]}",
        }

    def stop_after(self, count: int) -> None:
        """Passes on `count` more bytes to the engine, then no more, and sets `stopped`."""
        self._passed, self._limit = 0, count

    def go_on(self) -> None:
        """Connections that are made from now on are whole again."""
        self._limit = 0
        self.stopped.clear()

    def close(self) -> None:
        for one in (*self._listeners, *self._open):
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                outer, _ = listener.accept()
                inner = socket.create_connection((OWN, listener.getsockname()[1]))
                self._open += [outer, inner]
                threading.Thread(target=self._pass, args=(outer, inner, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(inner, outer, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if counted and self._limit:
                    self._passed += len(data)
                    if self._passed > self._limit:
                        self.stopped.set()
                        return  # The connection stays open, and nothing more comes.
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
