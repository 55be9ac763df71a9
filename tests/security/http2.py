"""As much of HTTP/2 as an attacker needs: frames by hand, headers as literals without indexing."""

import pathlib
import re
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS = 0, 1, 3, 4
END_STREAM, ACK, END_HEADERS = 1, 1, 4
ATTACH = "/weightcast.wire.pb.Control/Attach"
WATCH = "/weightcast.wire.pb.Control/Watch"
MESSAGES = pathlib.Path(__file__).parents[2] / "src/protocol/worker_messages.h"
PROTOCOL = int(re.search(r"kProtocolVersion = (\d+);", MESSAGES.read_text())[1])


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    assert len(name) < 127 and len(value) < 127
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def request(stream: int, path: str, token: str = "", more: dict[str, str] | None = None) -> bytes:
    """The HEADERS frame of a gRPC call."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
        **({"authorization": f"Bearer {token}"} if token else {}),
        **(more or {}),
    }
    block = b"".join(literal(name, value) for name, value in headers.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def message(body: bytes, compressed: bool = False) -> bytes:
    """A gRPC message."""
    return struct.pack(">BI", compressed, len(body)) + body


def connect(address: str, timeout: float = 2) -> socket.socket:
    """A connection that has begun as every client of HTTP/2 does."""
    host, port = address.rsplit(":", 1)
    one = socket.create_connection((host, int(port)), timeout=timeout)
    one.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return one


def watch(address: str, token: str, timeout: float = 2) -> socket.socket:
    """A connection that asks for views, as `weightcast info --watch` does."""
    return call(address, token, WATCH, bytes([0x08, PROTOCOL]), timeout)


def call(address: str, token: str, path: str, body: bytes, timeout: float = 2) -> socket.socket:
    """A connection with one gRPC call. Who watches has nothing more to say, a worker has."""
    one = connect(address, timeout)
    one.sendall(frame(SETTINGS, ACK, 0) + request(1, path, token))
    one.sendall(frame(DATA, END_STREAM if path == WATCH else 0, 1, message(body)))
    return one
