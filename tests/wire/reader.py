"""Reads the wire of the control plane as docs/ describe it: streams.md (frames), wire.md (envelopes, pieces,
encoding, traces) and messages.md, whose tables it goes by. It shares no code with weightcast."""

import ctypes
import ctypes.util
import math
import pathlib
import re
import struct
from typing import Any

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
MOST_FRAME = (1 << 20) + 64
MOST_MESSAGE = 335_544_320
DATA, CLOSE = 2, 3
WHOLE, PIECE, LAST = 0, 1, 2


class WireError(Exception):
    """Bytes that the documents do not allow."""


class Documents:
    """The tables of docs/messages.md."""

    def __init__(self) -> None:
        text = (DOCS / "messages.md").read_text()
        self.kinds: dict[tuple[str, int], str] = {}  # (sender, kind): message.
        self.structs: dict[str, list[tuple[str, str, str]]] = {}
        self.enums: dict[str, dict[int, str]] = {}
        kinds, members, enums = re.split(r"^## \w+\n", text, flags=re.M)[1:]
        for kind, name, sender in self._rows(kinds):
            self.kinds[sender, int(kind, 16)] = name
        for name, section in re.findall(r"^### `(\w+)`\n([^#]*)", members, flags=re.M):
            self.structs[name] = [tuple(row) for row in self._rows(section)]
        for name, section in re.findall(r"^### `(\w+)`\n([^#]*)", enums, flags=re.M):
            self.enums[name] = {int(value): text for value, text in self._rows(section)}

    @staticmethod
    def _rows(text: str) -> list[list[str]]:
        lines = [line for line in text.splitlines() if line.startswith("|")]
        return [[cell.strip(" `") for cell in line[1:-1].split("|")] for line in lines[2:]]


DOCUMENTS = Documents()


def frames(stream: bytes) -> list[tuple[int, bytes]]:
    """Kind and body of each frame of what TLS has decrypted."""
    found = []
    while stream:
        if len(stream) < 5:
            raise WireError("half a frame")
        size, kind = struct.unpack_from("<IB", stream)
        if size > MOST_FRAME or not 1 <= kind <= 3 or len(stream) < 5 + size:
            raise WireError(f"a frame of kind {kind} and {size} bytes")
        found.append((kind, stream[5 : 5 + size]))
        stream = stream[5 + size :]
    return found


def messages(stream: bytes) -> list[tuple[int, int, int, bytes]]:
    """Number, acknowledged, session and encoding of each message in the data frames."""
    found, pieces = [], []
    for kind, body in frames(stream):
        if kind != DATA:
            continue
        number, acknowledged, session, part = struct.unpack_from("<QQQB", body)
        rest = body[25:]
        if part == WHOLE:
            if pieces:
                raise WireError("a message inside another")
            found.append((number, acknowledged, session, rest))
            continue
        pieces.append(rest)
        if part == LAST:
            found.append((number, acknowledged, session, joined(pieces)))
            pieces = []
        elif part != PIECE:
            raise WireError(f"an envelope of kind {part}")
    return found


def joined(pieces: list[bytes]) -> bytes:
    """What a message was before it was compressed and cut."""
    parts, heads = {}, set()
    for piece in pieces:
        magic, _, index, count, size, whole = struct.unpack_from("<8sQIIQQ", piece)
        if magic != b"WCPIECE\n" or index >= count or count != len(pieces) or size > MOST_MESSAGE:
            raise WireError("a piece of something else")
        heads.add((size, whole))
        parts[index] = piece[40:]
    if len(heads) != 1 or len(parts) != len(pieces):
        raise WireError("pieces of different messages")
    frame = b"".join(parts[index] for index in range(len(pieces)))
    zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    size = heads.pop()[0]
    out = ctypes.create_string_buffer(size)
    if zstd.ZSTD_decompress(out, size, frame, len(frame)) != size:
        raise WireError("the pieces do not decompress to the size that they name")
    return out.raw


class Reader:
    """One encoded message."""

    def __init__(self, encoded: bytes) -> None:
        self._bytes = encoded
        self._at = 0

    def raw(self, size: int) -> bytes:
        taken = self._bytes[self._at : self._at + size]
        if len(taken) < size:
            raise WireError("cut short")
        self._at += size
        return taken

    def number(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if (byte == 0 and shift > 0) or value >= 1 << 64:
            raise WireError("a number in more bytes than it needs")
        return value

    def signed(self) -> int:
        folded = self.number()
        return folded >> 1 if folded % 2 == 0 else -(folded + 1 >> 1)

    def text(self) -> bytes:
        return self.raw(self.number())

    def expect(self, byte: int) -> None:
        if self.raw(1)[0] != byte:
            raise WireError(f"0x{byte:02x} is missing")

    def end(self) -> None:
        if self._at != len(self._bytes):
            raise WireError("bytes behind the last member")

    def member(self, kind: str, limit: str) -> Any:
        if kind.startswith("list of "):
            count = self.number()
            if count > int(limit.split()[2].rstrip(",")):
                raise WireError(f"{count} entries, {limit}")
            each = limit.partition("each ")[2]
            return [self.member(kind.removeprefix("list of "), each) for _ in range(count)]
        if kind in DOCUMENTS.structs:
            return self.struct(kind)
        if kind == "yes or no":
            return [False, True][self.number()]
        if kind == "random number":
            return struct.unpack("<Q", self.raw(8))[0]
        if kind == "duration":
            return self._checked_duration()
        if kind in ("number", "signed number"):
            return self._in_range(self.number() if kind == "number" else self.signed(), limit)
        if kind in ("text", "bytes", "secret bytes"):
            return self._checked_text(limit)
        if kind == "status":
            code = self._known("Code")
            return {"code": code, "message": self.text() if code else b""}
        return self._known(kind)

    def struct(self, name: str) -> dict[str, Any]:
        return {member: self.member(kind, limit) for member, kind, limit in DOCUMENTS.structs[name]}

    def _known(self, enum: str) -> int:
        value = self.number()
        if value not in DOCUMENTS.enums[enum]:
            raise WireError(f"{enum} {value}")
        return value

    def _checked_duration(self) -> float:
        seconds = struct.unpack("<d", self.raw(8))[0]
        if not math.isfinite(seconds) or seconds < 0:
            raise WireError(f"a duration of {seconds}")
        return seconds

    def _checked_text(self, limit: str) -> bytes:
        text = self.text()
        if len(text) > int(limit.split()[2]):
            raise WireError(f"{len(text)} bytes, {limit}")
        if "," in limit and not printable(text):
            raise WireError("control characters")
        return text

    @staticmethod
    def _in_range(value: int, limit: str) -> int:
        if limit:
            least, most = map(int, limit.split(" to "))
            if not least <= value <= most:
                raise WireError(f"{value} is not {limit}")
        return value


def printable(text: bytes) -> bool:
    return all(byte >= 0x20 and byte != 0x7F for byte in text)


def decode(sender: str, encoded: bytes) -> tuple[str, dict[str, Any]]:
    """Name and members of a message."""
    name = DOCUMENTS.kinds.get((sender, encoded[0]))
    if name is None:
        raise WireError(f"kind 0x{encoded[0]:02x} of {sender}")
    reader = Reader(encoded[1:])
    if name == "Hello":
        members = _hello(Reader(reader.text()))
    elif name == "Refused":
        members = _refused(Reader(reader.text()))
    else:
        members = reader.struct(name)
    reader.end()
    return name, members


def _hello(outer: Reader) -> dict[str, Any]:
    """In the form that all versions read: protocol version, model and incarnation stand there twice."""
    outer.expect(0x08)
    version = outer.number()
    outer.expect(0x1A)
    model = outer.text()
    outer.expect(0x31)
    incarnation = struct.unpack("<Q", outer.raw(8))[0]
    outer.expect(0x7A)
    inner = Reader(outer.text())
    outer.end()
    members = inner.struct("Hello")
    inner.end()
    if (members["protocol"], members["model"], members["incarnation"]) != (version, model, incarnation):
        raise WireError("a Hello that differs from its outer form")
    return members


def _refused(outer: Reader) -> dict[str, Any]:
    outer.expect(0x0A)
    inner = Reader(outer.text())
    outer.end()
    inner.expect(0x08)
    reason = {"code": inner.number(), "message": b""}
    try:
        inner.expect(0x12)
        reason["message"] = inner.text()
    except WireError:
        pass  # An empty one is left out.
    inner.end()
    return {"reason": reason}


def brief(kind: str, value: Any) -> str:
    """A value as a trace shows it (wire.md, "Traces"); empty: left out."""
    if kind == "Version":
        number = f"{value['number']}" if value["run"] == 1 else f"{value['run']}:{value['number']}"
        return number if value["number"] >= 0 else ""
    if kind == "WorkerName":
        engine = value["engine"].decode()
        role = DOCUMENTS.enums["Role"][value["role"]]
        words = {"trainer": f"trainer {value['rank']}", "control": f"the control of engine {engine}"}
        return words.get(role, f"engine {engine} rank {value['rank']}")
    if kind == "UpdateId":
        term = value["term"]["number"]
        text = f"update {value['sequence']}.{value['attempt']} (term {term}, epoch {value['epoch']})"
        return text if text != "update 0.0 (term 0, epoch 0)" or value["term"]["id"] else ""
    if kind == "status":
        name = DOCUMENTS.enums["Code"][value["code"]]
        return f"{name}: {value['message'].decode(errors='surrogateescape')}" if value["code"] else ""
    if kind.startswith("list of "):
        return _brief_list(kind.removeprefix("list of "), value)
    if kind in DOCUMENTS.structs:
        members = [(name, brief(k, value[name])) for name, k, _ in DOCUMENTS.structs[kind]]
        inside = ", ".join(f"{name}: {text}" for name, text in members if text)
        return f"{{{inside}}}" if inside else ""
    if kind in DOCUMENTS.enums:
        return DOCUMENTS.enums[kind][value]
    if kind == "secret bytes":
        return "hidden" if value else ""
    if kind in ("text", "bytes"):
        shown = kind == "text" and len(value) <= 256 and printable(value)
        return value.decode(errors="surrogateescape") if shown else f"{len(value)} bytes" if value else ""
    plain = {"random number": "", "yes or no": "true" if value else "", "duration": f"{value:g}"}
    empty = -1 if kind == "signed number" else 0
    return plain.get(kind, f"{value}") if value != empty else ""


def _brief_list(kind: str, values: list[Any]) -> str:
    if kind == "bytes" or not values:
        return f"{len(values)}" if values else ""
    shown = ", ".join([brief(kind, value) for value in values[:8]] + ["..."] * (len(values) > 8))
    return f"{len(values)} [{shown}]"
