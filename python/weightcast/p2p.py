"""The calls of the UCCL P2P engine, on weightcast's endpoint: change the import of a script and nothing else.

    from weightcast import p2p

    endpoint = p2p.Endpoint(local_gpu_idx=0)
    ok, conn = endpoint.connect(remote_ip_addr=ip, remote_gpu_bdf=gpu, remote_port=port)
    ok, mr = endpoint.reg(array.ctypes.data, array.nbytes)
    ok = endpoint.send(conn, mr, array.ctypes.data, array.nbytes)

Calls give what they give there: `ok` first, then what was asked for. Why a call gave False stands in
`Endpoint.last_error` and in a warning of the logger "weightcast.p2p". Ctrl-C ends calls that wait.

Without a job token (`WEIGHTCAST_TOKEN` or `WEIGHTCAST_TOKEN_FILE`, the same in all processes) an endpoint
listens on this host alone, for this user's processes. `WEIGHTCAST_CONNECT_TIMEOUT` bounds `connect`; nothing
bounds the wait for a peer that lives. Sizes are bytes, addresses are numbers (`tensor.data_ptr()`,
`array.ctypes.data`). Memory that an operation names must stay as it is until the operation has ended; memory
that is registered must stay until `dereg`. Host memory only so far. For new code there is
`weightcast.Endpoint`, with exceptions and objects in place of numbers.

docs/p2p.md says how it works.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import logging
import numbers
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _weightcast as _core
from ._p2p_registry import Announcement, announced
from .errors import Error, InvalidArgument, Unavailable

__all__ = [
    "Endpoint", "FloatType", "XferDesc", "XferHandle", "get_oob_ip", "kBFloat16", "kFloat8E4M3FN",
    "kFloat8E5M2", "kFloat16", "kFloat32", "kUndefined",
]  # fmt: skip

_FIRST_PORT = 29760
_log = logging.getLogger("weightcast.p2p")


class FloatType(enum.IntEnum):
    """What the elements of registered memory are. Host memory is bytes: nothing depends on it."""

    kUndefined = 0
    kFloat16 = 1
    kBFloat16 = 2
    kFloat32 = 3
    kFloat8E4M3FN = 4
    kFloat8E5M2 = 5


kUndefined = FloatType.kUndefined
kFloat16 = FloatType.kFloat16
kBFloat16 = FloatType.kBFloat16
kFloat32 = FloatType.kFloat32
kFloat8E4M3FN = FloatType.kFloat8E4M3FN
kFloat8E5M2 = FloatType.kFloat8E5M2


class XferDesc(NamedTuple):
    """Registered memory as `transfer` takes it."""

    addr: int
    size: int
    mr_id: int
    meta: bytes
    """As `Endpoint.advertise` gives it."""


class XferHandle(NamedTuple):
    """A transfer under way."""

    tid: int


def get_oob_ip() -> str:
    """The address of this host that other hosts reach best; 127.0.0.1 where there is no other."""
    with contextlib.suppress(OSError):
        import socket

        # No packet is sent: connecting a datagram socket only chooses the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
    return "127.0.0.1"


def _gpu_label(index: int) -> str:
    """The PCI address of the host's index-th NVIDIA GPU, or "cpu"."""
    with contextlib.suppress(OSError):
        found = sorted(path.name for path in pathlib.Path("/proc/driver/nvidia/gpus").iterdir())
        if index < len(found):
            return found[index]
    return "cpu"


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _told(*otherwise: Any) -> Callable[..., Any]:
    """A call that gives `ok` first, and `otherwise` after a False."""

    def decorate(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def guarded(self: Endpoint, *arguments: Any, **named: Any) -> Any:
            try:
                given = call(self, *arguments, **named)
            except (Error, OSError) as error:
                self.last_error = str(error)
                _log.warning("%s: %s", call.__name__, error)
                return (False, *map(copy.copy, otherwise)) if otherwise else False
            if not otherwise:
                return True
            return (True, *given) if len(otherwise) > 1 else (True, given)

        return guarded

    return decorate


def _pieces(
    mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], count: int
) -> list[tuple[int, int, int]]:
    if not len(mrs) == len(ptrs) == len(sizes) == count:
        raise InvalidArgument(
            f"{len(mrs)} memories, {len(ptrs)} addresses and {len(sizes)} sizes for {count} pieces"
        )
    return list(zip(mrs, ptrs, sizes, strict=True))


def _temporary(ptrs: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int, int]]:
    return _pieces([0] * len(ptrs), ptrs, sizes, len(sizes))


class Endpoint:
    """One process' end of all its connections.

    local_gpu_idx: which of the host's GPUs the process works with; its port is 29760 + this if that is free.
    num_cpus: accepted and not needed.
    last_error: why the last call that gave False did.
    """

    def __init__(self, local_gpu_idx: int | None = None, num_cpus: int | None = None) -> None:
        del num_cpus
        index = int(os.environ.get("LOCAL_RANK", "0")) if local_gpu_idx is None else int(local_gpu_idx)
        rank = int(os.environ.get("RANK", index))
        self.last_error = ""
        self._index = index
        self._engine = _core.P2pEngine.create(index, _gpu_label(index), rank, {})
        self._metadata = self._engine.metadata()
        self._announcement = Announcement(self._metadata)
        self._timeout = float(os.environ.get("WEIGHTCAST_CONNECT_TIMEOUT", "10"))

    def __del__(self) -> None:
        if announcement := getattr(self, "_announcement", None):
            announcement.close()

    # --- Connections.

    @_told(0)
    def connect(
        self,
        remote_ip_addr: str,
        remote_gpu_bdf: str | int = 0,
        remote_port: int = -1,
        *,
        remote_gpu_idx: int | None = None,
    ) -> Any:
        """(ok, conn). Tries again while nobody listens there, for as long as the connect timeout."""
        gpu = remote_gpu_bdf if remote_gpu_idx is None else remote_gpu_idx
        by_index = isinstance(gpu, numbers.Integral)
        index = int(gpu) if by_index or gpu.isdecimal() else 0
        port = _FIRST_PORT + index if remote_port < 0 else remote_port
        return self._engine.connect(str(remote_ip_addr), port, by_index, self._timeout)

    @_told("", "", 0)
    def accept(self) -> Any:
        """(ok, ip, gpu, conn): waits for a peer that connects.

        gpu: the peer's own, as a PCI address or "cpu"; its index if it named ours by an index.
        """
        return self._engine.accept()

    @_told(0)
    def connect_local(self, remote_gpu_bdf: str | int) -> Any:
        """(ok, conn): to this user's endpoint on this host that goes by this GPU."""
        by_index = isinstance(remote_gpu_bdf, numbers.Integral)
        return self._engine.connect_to(self._find_local(remote_gpu_bdf), by_index, self._timeout)

    @_told("", 0)
    def accept_local(self) -> Any:
        """(ok, gpu, conn)."""
        _, gpu, conn = self._engine.accept()
        return gpu, conn

    @_told()
    def start_passive_accept(self) -> Any:
        """ok. Peers that use `add_remote_endpoint` need no `accept`, with or without this."""

    @_told(0)
    def add_remote_endpoint(self, metadata: bytes) -> Any:
        """(ok, conn): the connection that both sides get who add each other. Adding again gives the same."""
        return self._engine.shared(bytes(metadata), self._timeout)

    @_told()
    def remove_remote_endpoint(self, conn: int) -> Any:
        """ok. What waits on it ends, here and there."""
        self._engine.close_channel(conn)

    def conn_id_of_rank(self, rank: int) -> int:
        """A connection to the process whose RANK was this, or -1."""
        conn = self._engine.channel_to(rank)
        return -1 if conn is None else conn

    def get_metadata(self) -> bytes:
        """What a peer needs to find this endpoint. Every endpoint's has the same length."""
        return self._metadata

    @staticmethod
    def parse_metadata(metadata: bytes) -> tuple[str, int, str]:
        """(ip, port, gpu). Raises `InvalidArgument` for other bytes."""
        addresses, label, _ = _core.p2p_parse_metadata(bytes(metadata))
        ip, port = _host_port(addresses[0])
        return ip, port, label

    def _find_local(self, gpu: str | int) -> bytes:
        others = [one for one in announced() if one != self._metadata]
        found = []
        for one in others:
            with contextlib.suppress(InvalidArgument):  # Another release's.
                _, label, index = _core.p2p_parse_metadata(one)
                if gpu in (index, label, str(index)):
                    found.append(one)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidArgument(
                f"{len(found)} endpoints on this host call their GPU {gpu!r}; name one by its local_gpu_idx"
            )
        raise Unavailable(f"none of the {len(others)} other endpoints on this host calls its GPU {gpu!r}")

    # --- Memory.

    @_told(0)
    def reg(self, ptr: int, size: int, floatType: FloatType = FloatType.kUndefined) -> Any:  # noqa: N803
        """(ok, mr)."""
        del floatType
        return self._engine.register(ptr, size)

    @_told([])
    def regv(self, ptrs: Sequence[int], sizes: Sequence[int]) -> Any:
        """(ok, [mr]): all or none."""
        made: list[int] = []
        try:
            for _, ptr, size in _temporary(ptrs, sizes):
                made.append(self._engine.register(ptr, size))
        except Error:
            for mr in made:
                self._engine.deregister(mr)
            raise
        return made

    @_told()
    def dereg(self, mr: int) -> Any:
        """ok. Operations that use it end; afterwards nobody touches the memory."""
        self._engine.deregister(mr)

    @_told(b"")
    def advertise(self, conn: int, mr: int, ptr: int, size: int) -> Any:
        """(ok, meta): 64 bytes by which the peer reads and writes this memory."""
        del conn
        return self._engine.advertise(mr, ptr, size)

    @_told([])
    def advertisev(
        self, conn: int, mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], num_iovs: int
    ) -> Any:
        """(ok, [meta])."""
        del conn
        return [self._engine.advertise(*piece) for piece in _pieces(mrs, ptrs, sizes, num_iovs)]

    # --- send and recv: the n-th send of a connection meets the n-th recv of its other end.

    @_told(0)
    def send_async(self, conn: int, mr: int, ptr: int, size: int) -> Any:
        """(ok, tid)."""
        return self._engine.send(conn, [(mr, ptr, size)])

    @_told(0)
    def recv_async(self, conn: int, mr: int, ptr: int, size: int) -> Any:
        """(ok, tid). `size`: exactly as much as is sent."""
        return self._engine.recv(conn, [(mr, ptr, size)])

    @_told(0)
    def sendv_async(
        self, conn: int, mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], num_iovs: int
    ) -> Any:
        """(ok, tid)."""
        return self._engine.send(conn, _pieces(mrs, ptrs, sizes, num_iovs))

    @_told(0)
    def recvv_async(
        self, conn: int, mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], num_iovs: int
    ) -> Any:
        """(ok, tid)."""
        return self._engine.recv(conn, _pieces(mrs, ptrs, sizes, num_iovs))

    def send(self, conn: int, mr: int, ptr: int, size: int) -> bool:
        """ok, once the memory may change."""
        return self._wait(self.send_async(conn, mr, ptr, size))

    def recv(self, conn: int, mr: int, ptr: int, size: int) -> bool:
        """ok, once the bytes are there."""
        return self._wait(self.recv_async(conn, mr, ptr, size))

    def sendv(
        self, conn: int, mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], num_iovs: int
    ) -> bool:
        """ok."""
        return self._wait(self.sendv_async(conn, mrs, ptrs, sizes, num_iovs))

    def recvv(
        self, conn: int, mrs: Sequence[int], ptrs: Sequence[int], sizes: Sequence[int], num_iovs: int
    ) -> bool:
        """ok."""
        return self._wait(self.recvv_async(conn, mrs, ptrs, sizes, num_iovs))

    # --- One-sided, on memory that the peer has advertised.

    @_told(0)
    def read_async(self, conn: int, mr: int, ptr: int, size: int, meta: bytes) -> Any:
        """(ok, tid)."""
        return self._engine.read(conn, [(mr, ptr, size)], [bytes(meta)])

    @_told(0)
    def write_async(self, conn: int, mr: int, ptr: int, size: int, meta: bytes) -> Any:
        """(ok, tid)."""
        return self._engine.write(conn, [(mr, ptr, size)], [bytes(meta)])

    @_told(0)
    def readv_async(
        self,
        conn: int,
        mrs: Sequence[int],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        metas: Sequence[bytes],
        num_iovs: int,
    ) -> Any:
        """(ok, tid)."""
        return self._engine.read(conn, _pieces(mrs, ptrs, sizes, num_iovs), [bytes(meta) for meta in metas])

    @_told(0)
    def writev_async(
        self,
        conn: int,
        mrs: Sequence[int],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        metas: Sequence[bytes],
        num_iovs: int,
    ) -> Any:
        """(ok, tid)."""
        return self._engine.write(conn, _pieces(mrs, ptrs, sizes, num_iovs), [bytes(meta) for meta in metas])

    def read(self, conn: int, mr: int, ptr: int, size: int, meta: bytes) -> bool:
        """ok, once the bytes are here."""
        return self._wait(self.read_async(conn, mr, ptr, size, meta))

    def write(self, conn: int, mr: int, ptr: int, size: int, meta: bytes) -> bool:
        """ok, once the bytes are there."""
        return self._wait(self.write_async(conn, mr, ptr, size, meta))

    def readv(
        self,
        conn: int,
        mrs: Sequence[int],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        metas: Sequence[bytes],
        num_iovs: int,
    ) -> bool:
        """ok."""
        return self._wait(self.readv_async(conn, mrs, ptrs, sizes, metas, num_iovs))

    def writev(
        self,
        conn: int,
        mrs: Sequence[int],
        ptrs: Sequence[int],
        sizes: Sequence[int],
        metas: Sequence[bytes],
        num_iovs: int,
    ) -> bool:
        """ok."""
        return self._wait(self.writev_async(conn, mrs, ptrs, sizes, metas, num_iovs))

    # --- The same without `reg`: the memory is registered for the call. Between hosts as well.

    @_told(0)
    def send_ipc_async(self, conn: int, ptr: int, size: int) -> Any:
        """(ok, tid)."""
        return self._engine.send(conn, _temporary([ptr], [size]))

    @_told(0)
    def recv_ipc_async(self, conn: int, ptr: int, size: int) -> Any:
        """(ok, tid)."""
        return self._engine.recv(conn, _temporary([ptr], [size]))

    def send_ipc(self, conn: int, ptr: int, size: int) -> bool:
        """ok."""
        return self._wait(self.send_ipc_async(conn, ptr, size))

    def recv_ipc(self, conn: int, ptr: int, size: int) -> bool:
        """ok."""
        return self._wait(self.recv_ipc_async(conn, ptr, size))

    @_told(b"")
    def advertise_ipc(self, conn: int, ptr: int, size: int) -> Any:
        """(ok, info). The memory stays registered as long as the endpoint lives."""
        del conn
        return self._engine.advertise(0, ptr, size)

    @_told([])
    def advertisev_ipc(self, conn: int, ptrs: Sequence[int], sizes: Sequence[int]) -> Any:
        """(ok, [info])."""
        del conn
        return [self._engine.advertise(*piece) for piece in _temporary(ptrs, sizes)]

    @_told(0)
    def read_ipc_async(self, conn: int, ptr: int, size: int, info: bytes) -> Any:
        """(ok, tid)."""
        return self._engine.read(conn, _temporary([ptr], [size]), [bytes(info)])

    @_told(0)
    def write_ipc_async(self, conn: int, ptr: int, size: int, info: bytes) -> Any:
        """(ok, tid)."""
        return self._engine.write(conn, _temporary([ptr], [size]), [bytes(info)])

    @_told(0)
    def readv_ipc_async(
        self, conn: int, ptrs: Sequence[int], sizes: Sequence[int], infos: Sequence[bytes]
    ) -> Any:
        """(ok, tid)."""
        return self._engine.read(conn, _temporary(ptrs, sizes), [bytes(info) for info in infos])

    @_told(0)
    def writev_ipc_async(
        self, conn: int, ptrs: Sequence[int], sizes: Sequence[int], infos: Sequence[bytes]
    ) -> Any:
        """(ok, tid)."""
        return self._engine.write(conn, _temporary(ptrs, sizes), [bytes(info) for info in infos])

    def read_ipc(self, conn: int, ptr: int, size: int, info: bytes) -> bool:
        """ok."""
        return self._wait(self.read_ipc_async(conn, ptr, size, info))

    def write_ipc(self, conn: int, ptr: int, size: int, info: bytes) -> bool:
        """ok."""
        return self._wait(self.write_ipc_async(conn, ptr, size, info))

    def readv_ipc(self, conn: int, ptrs: Sequence[int], sizes: Sequence[int], infos: Sequence[bytes]) -> bool:
        """ok."""
        return self._wait(self.readv_ipc_async(conn, ptrs, sizes, infos))

    def writev_ipc(
        self, conn: int, ptrs: Sequence[int], sizes: Sequence[int], infos: Sequence[bytes]
    ) -> bool:
        """ok."""
        return self._wait(self.writev_ipc_async(conn, ptrs, sizes, infos))

    # --- Tensors. These raise weightcast's exceptions: they have no `ok`.

    def register_memory(self, tensors: Sequence[Any]) -> list[XferDesc]:
        """Registers contiguous CPU tensors (torch) or arrays (numpy)."""
        made: list[XferDesc] = []
        try:
            for tensor in tensors:
                ptr, size = _extent(tensor)
                mr = self._engine.register(ptr, size)
                made.append(XferDesc(ptr, size, mr, self._engine.advertise(mr, ptr, size)))
        except Error:
            self.deregister_memory(made)
            raise
        return made

    def deregister_memory(self, descs: Sequence[XferDesc]) -> None:
        """Afterwards nobody touches that memory."""
        for desc in descs:
            self._engine.deregister(desc.mr_id)

    def get_serialized_descs(self, descs: Sequence[XferDesc]) -> bytes:
        """For the peer's `deserialize_descs`."""
        return _core.p2p_join_adverts([desc.meta for desc in descs])

    def deserialize_descs(self, serialized: bytes) -> list[XferDesc]:
        """Raises `InvalidArgument` for bytes that `get_serialized_descs` has not made."""
        blobs = _core.p2p_split_adverts(bytes(serialized))
        return [XferDesc(*_core.p2p_parse_advert(blob), blob) for blob in blobs]

    @_told(0)
    def transfer(
        self, conn: int, op_name: str, local_descs: Sequence[XferDesc], remote_descs: Sequence[XferDesc]
    ) -> Any:
        """(ok, tid). op_name: "read" (into local_descs) or "write"; pairs of equal size."""
        if op_name not in ("read", "write"):
            raise InvalidArgument(f"op_name is {op_name!r}; allowed: read, write")
        for here, there in zip(local_descs, remote_descs, strict=False):
            if here.size != there.size:
                raise InvalidArgument(f"{here.size} bytes here and {there.size} there; a pair has one size")
        begin = self._engine.read if op_name == "read" else self._engine.write
        pieces = [(desc.mr_id, desc.addr, desc.size) for desc in local_descs]
        return begin(conn, pieces, [desc.meta for desc in remote_descs])

    @_told(True)
    def poll_async(self, tid: int | XferHandle) -> Any:
        """(ok, done). (False, True) if it failed, or if its end was told before: then the tid is unknown."""
        return self._engine.poll(tid.tid if isinstance(tid, XferHandle) else tid)

    def _wait(self, begun: tuple[bool, int]) -> bool:
        ok, tid = begun
        return ok and self._ended(tid)

    @_told()
    def _ended(self, tid: int) -> Any:
        self._engine.wait(tid)


def _extent(tensor: Any) -> tuple[int, int]:
    """Where a tensor's bytes lie, and how many."""
    if hasattr(tensor, "data_ptr"):
        if tensor.device.type != "cpu":
            raise InvalidArgument(f"a tensor on {tensor.device}: only host memory can be registered so far")
        if not tensor.is_contiguous():
            raise InvalidArgument("a tensor that is not contiguous; call .contiguous() and keep the result")
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()
    if not tensor.flags.c_contiguous:
        raise InvalidArgument(
            "an array that is not contiguous; use numpy.ascontiguousarray and keep the result"
        )
    return tensor.ctypes.data, tensor.nbytes
