"""Ports for servers that take seconds to start and only then listen."""

from __future__ import annotations

import contextlib
import pathlib
import random
import socket


def free_port(address: str = "127.0.0.1") -> int:
    """Below those that the system gives to connections, one of which might take it meanwhile."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(max(1024, first // 2), first)
        with contextlib.suppress(OSError):
            socket.create_server((address, port)).close()
            return port
