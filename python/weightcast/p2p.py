"""The Python API of the UCCL P2P engine, on weightcast's endpoint: a script changes only its import.

    from weightcast import p2p

    endpoint = p2p.Endpoint(local_gpu_idx=0)
    ok, conn_id = endpoint.connect(remote_ip_addr=ip, remote_gpu_bdf=gpu, remote_port=port)
    ok, mr_id = endpoint.reg(array.ctypes.data, array.nbytes)
    ok = endpoint.send(conn_id, mr_id, array.ctypes.data, array.nbytes)

Calls have the names, parameters and results of that engine's release 0.1.1 and of its main branch: `ok`
first, then what was asked for. `Endpoint.last_error` says why a call returned False, and so does a warning of
the logger "weightcast.p2p". Misuse raises RuntimeError where that engine raises it: lists of different
lengths, a `meta` that is not 64 bytes, a `transfer` on a connection that was removed. Ctrl-C ends calls that
wait.

Without a job token (`WEIGHTCAST_TOKEN` or `WEIGHTCAST_TOKEN_FILE`, the same in all processes) an endpoint
listens on this host alone, for this user's processes. `WEIGHTCAST_CONNECT_TIMEOUT` bounds `connect`; no
setting bounds the wait for a peer that is alive. Sizes are bytes, addresses are numbers (`tensor.data_ptr()`,
`array.ctypes.data`). Memory that an operation names must stay as it is until the operation has ended; memory
that is registered must stay until `dereg`. An address may be of host memory or of a GPU's: the driver says
which. For new code there is `weightcast.Endpoint`, with exceptions and objects in place of numbers.

docs/p2p.md says what is compatible, what differs, and how it works.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import numbers
import os
import pathlib
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from . import _weightcast as _core
from ._p2p_calls import Misuse, blocking, extent, metas, pieces, temporary, told, with_or_without_conn
from ._p2p_registry import Announcement, announced
from .errors import Error, InvalidArgument, Unavailable

__all__ = [
    "Endpoint", "FloatType", "XferDesc", "XferHandle", "get_oob_ip", "kBFloat16", "kFloat8E4M3FN",
    "kFloat8E5M2", "kFloat16", "kFloat32", "kUndefined",
]  # fmt: skip

_FIRST_PORT = 29760
_NO_CONN = 2**64 - 1
_BETWEEN_LOOKS = 0.02

_Ints: TypeAlias = Sequence[int]
_Blobs: TypeAlias = Sequence[bytes]


class FloatType(enum.IntEnum):
    """What the elements of registered memory are. Nothing depends on it: memory is bytes."""

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


@dataclasses.dataclass
class XferDesc:
    """Registered memory as `transfer` takes it.

    lkeys, rkeys: always empty; keys of network cards stay inside the endpoint.
    meta: as `Endpoint.advertise` returns it.
    """

    addr: int = 0
    size: int = 0
    mr_id: int = 0
    lkeys: list[int] = dataclasses.field(default_factory=list)
    rkeys: list[int] = dataclasses.field(default_factory=list)
    meta: bytes = b""


_Descs: TypeAlias = Sequence[XferDesc]


class XferHandle(NamedTuple):
    """Only the name, for scripts that import it: `transfer` returns a number."""

    conn_id: int
    op_name: str
    transfer_id: int


def get_oob_ip() -> str:
    """The address of this host that other hosts reach best; 127.0.0.1 where there is no other."""
    with contextlib.suppress(OSError):
        import socket

        # No packet is sent: connecting a datagram socket only chooses the route.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
    return "127.0.0.1"


_GPUS = pathlib.Path("/proc/driver/nvidia/gpus")


def _visible_gpus() -> list[str]:
    """PCI addresses of the host's NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves, in its order."""
    with contextlib.suppress(OSError):
        found = sorted(path.name for path in _GPUS.iterdir())
        if (wanted := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
            return found
        names = {str(index): gpu for index, gpu in enumerate(found)}
        for gpu in found:
            if uuid := re.search(r"GPU UUID:\s*(\S+)", (_GPUS / gpu / "information").read_text()):
                names[uuid[1]] = gpu
        # As CUDA does: an entry that names no GPU hides all that follow.
        entries = map(str.strip, wanted.split(","))
        return [names[entry] for entry in itertools.takewhile(names.__contains__, entries)]
    return []


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Endpoint:
    """One process' end of all its connections.

    local_gpu_idx: which of the host's GPUs the process works with; its port is 29760 + this if that is free.
    num_cpus: accepted and not needed.
    last_error: why the last call that returned False did.
    """

    def __init__(self, local_gpu_idx: int | None = None, num_cpus: int | None = None) -> None:
        del num_cpus
        index = int(os.environ.get("LOCAL_RANK", "0")) if local_gpu_idx is None else int(local_gpu_idx)
        rank = int(os.environ.get("RANK", index))
        self.last_error = ""
        self._index = index
        gpus = _visible_gpus()
        label = gpus[index] if index < len(gpus) else "cpu"
        self._engine = _core.P2pEngine.create(index, label, rank, {})
        self._metadata = self._engine.metadata()
        self._announcement = Announcement(self._metadata)
        self._timeout = float(os.environ.get("WEIGHTCAST_CONNECT_TIMEOUT", "10"))

    def __del__(self) -> None:
        if announcement := getattr(self, "_announcement", None):
            announcement.close()

    # --- Connections.

    @told(0)
    def connect(
        self,
        remote_ip_addr: str,
        remote_gpu_bdf: str | int = 0,
        remote_port: int = -1,
        *,
        remote_gpu_idx: str | int | None = None,
    ) -> Any:
        """(ok, conn_id). Tries again while nobody listens there, for as long as the connect timeout.

        remote_gpu_bdf, remote_gpu_idx: the peer's GPU, as either release calls it. Only an index counts, and
        only without a port: the port is then 29760 + the index.
        """
        gpu = remote_gpu_bdf if remote_gpu_idx is None else remote_gpu_idx
        index = int(gpu) if str(gpu).isdecimal() else 0
        port = _FIRST_PORT + index if remote_port < 0 else remote_port
        return self._engine.connect(str(remote_ip_addr), port, False, self._timeout)

    @told("", 0, 0)
    def accept(self) -> Any:
        """(ok, ip, gpu_idx, conn_id): waits for a peer that connects. gpu_idx: the peer's local_gpu_idx."""
        ip, index, _, conn_id = self._engine.accept()
        return ip, index, conn_id

    @told(0)
    def connect_local(self, remote_gpu_bdf: str | int = 0, *, remote_gpu_idx: str | int | None = None) -> Any:
        """(ok, conn_id): to this user's endpoint on this host that goes by this GPU.

        Either is a PCI address, "cpu" or an index, as a number or as text. Waits for the endpoint to be made,
        for as long as the connect timeout.
        """
        gpu = remote_gpu_bdf if remote_gpu_idx is None else remote_gpu_idx
        deadline = time.monotonic() + self._timeout
        while (found := self._find_local(gpu)) is None:
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"in {self._timeout:g} s no other endpoint of this user on this host had GPU {gpu!r}; "
                    "start the process that makes it, or give the GPU that it was made with"
                )
            time.sleep(_BETWEEN_LOOKS)
        return self._engine.connect_to(found, isinstance(gpu, numbers.Integral), self._timeout)

    @told("", 0)
    def accept_local(self) -> Any:
        """(ok, gpu, conn_id). gpu: the peer's PCI address or "cpu"; its index if it asked for an index."""
        _, _, gpu, conn_id = self._engine.accept()
        return gpu, conn_id

    @told()
    def start_passive_accept(self) -> Any:
        """ok. Peers that use `add_remote_endpoint` need no `accept`, with or without this."""

    @told(0)
    def add_remote_endpoint(self, metadata_bytes: bytes) -> Any:
        """(ok, conn_id): one connection for both sides that add each other, however often."""
        return self._engine.shared(bytes(metadata_bytes), self._timeout)

    @told()
    def remove_remote_endpoint(self, conn_id: int) -> Any:
        """ok. Operations that wait on it end, on both sides."""
        self._engine.close_channel(conn_id)

    def conn_id_of_rank(self, rank: int) -> int:
        """A connection to the process whose RANK was this, or 2**64 - 1."""
        conn_id = self._engine.channel_to(rank)
        return _NO_CONN if conn_id is None else conn_id

    def get_metadata(self) -> bytes:
        """What a peer needs to find this endpoint. Every endpoint's has the same length."""
        return self._metadata

    @staticmethod
    def parse_metadata(metadata: bytes) -> tuple[str, int, str]:
        """(ip, port, gpu). Raises `InvalidArgument`, a RuntimeError, for other bytes."""
        addresses, label, _ = _core.p2p_parse_metadata(bytes(metadata))
        ip, port = _host_port(addresses[0])
        return ip, port, label

    def _check_conn(self, conn_id: int) -> None:
        if not self._engine.has_channel(conn_id):
            raise InvalidArgument(
                f"there is no connection {conn_id}, or it was removed; use what connect or accept returned"
            )

    def _find_local(self, gpu: str | int) -> bytes | None:
        found = []
        for one in announced():
            with contextlib.suppress(InvalidArgument):  # Another release's.
                _, label, index = _core.p2p_parse_metadata(one)
                if one != self._metadata and gpu in (index, label, str(index)):
                    found.append(one)
        if len(found) > 1:
            raise InvalidArgument(
                f"{len(found)} endpoints on this host have the GPU {gpu!r}; give each its own local_gpu_idx, "
                "and name one by it"
            )
        return found[0] if found else None

    # --- Memory.

    @told(0)
    def reg(self, ptr: int, size: int, floatType: FloatType = FloatType.kUndefined) -> Any:  # noqa: N803
        """(ok, mr_id)."""
        del floatType
        return self._engine.register(ptr, size)

    @told([])
    def regv(self, ptrs: _Ints, sizes: _Ints) -> Any:
        """(ok, [mr_id]): all or none."""
        made: list[int] = []
        try:
            for _, ptr, size in temporary(ptrs, sizes):
                made.append(self._engine.register(ptr, size))
        except Error:
            for mr_id in made:
                self._engine.deregister(mr_id)
            raise
        return made

    @told()
    def dereg(self, mr_id: int) -> Any:
        """ok. Operations that use it end; afterwards no transfer touches the memory."""
        self._engine.deregister(mr_id)

    @told(b"")
    @with_or_without_conn
    def advertise(self, mr_id: int, ptr: int, size: int) -> Any:
        """(ok, meta): 64 bytes by which peers read and write this memory.

        advertise(mr_id, ptr, size), or advertise(conn_id, mr_id, ptr, size) as release 0.1.1 has it.
        """
        return self._engine.advertise(mr_id, ptr, size)

    @told([])
    @with_or_without_conn
    def advertisev(self, mr_id_v: _Ints, ptr_v: _Ints, size_v: _Ints, num_iovs: int) -> Any:
        """(ok, [meta]). With a connection in front, as release 0.1.1 has it, or without."""
        return [self._engine.advertise(*piece) for piece in pieces(mr_id_v, ptr_v, size_v, num_iovs)]

    # --- send and recv: the n-th send of a connection meets the n-th recv of its other end.

    @told(0)
    def send_async(self, conn_id: int, mr_id: int, ptr: int, size: int) -> Any:
        """(ok, transfer_id). The memory may change once it has ended."""
        return self._engine.send(conn_id, [(mr_id, ptr, size)])

    @told(0)
    def recv_async(self, conn_id: int, mr_id: int, ptr: int, size: int) -> Any:
        """(ok, transfer_id). `size`: at least as much as is sent, whose bytes come to the front.

        A size beyond the end of the registered memory means up to its end.
        """
        return self._engine.recv(conn_id, [(mr_id, ptr, size)])

    @told(0)
    def sendv_async(
        self, conn_id: int, mr_id_v: _Ints, data_ptr_v: _Ints, size_v: _Ints, num_iovs: int
    ) -> Any:
        """(ok, transfer_id). Meets one recvv; with as many pieces each goes to the front of its own."""
        return self._engine.send(conn_id, pieces(mr_id_v, data_ptr_v, size_v, num_iovs))

    @told(0)
    def recvv_async(
        self, conn_id: int, mr_id_v: _Ints, data_ptr_v: _Ints, size_v: _Ints, num_iovs: int
    ) -> Any:
        """(ok, transfer_id)."""
        return self._engine.recv(conn_id, pieces(mr_id_v, data_ptr_v, size_v, num_iovs))

    send = blocking(send_async)
    recv = blocking(recv_async)
    sendv = blocking(sendv_async)
    recvv = blocking(recvv_async)

    # --- One-sided, on memory that the peer has advertised.

    @told(0)
    def read_async(self, conn_id: int, mr_id: int, ptr: int, size: int, meta: bytes) -> Any:
        """(ok, transfer_id). The bytes are here once it has ended."""
        return self._engine.read(conn_id, [(mr_id, ptr, size)], metas([meta], 1))

    @told(0)
    def write_async(self, conn_id: int, mr_id: int, ptr: int, size: int, meta: bytes) -> Any:
        """(ok, transfer_id). The bytes are there once it has ended."""
        return self._engine.write(conn_id, [(mr_id, ptr, size)], metas([meta], 1))

    @told(0)
    def readv_async(
        self, conn_id: int, mr_id_v: _Ints, ptr_v: _Ints, size_v: _Ints, meta_blob_v: _Blobs, num_iovs: int
    ) -> Any:
        """(ok, transfer_id)."""
        here = pieces(mr_id_v, ptr_v, size_v, num_iovs)
        return self._engine.read(conn_id, here, metas(meta_blob_v, num_iovs))

    @told(0)
    def writev_async(
        self, conn_id: int, mr_id_v: _Ints, ptr_v: _Ints, size_v: _Ints, meta_blob_v: _Blobs, num_iovs: int
    ) -> Any:
        """(ok, transfer_id)."""
        here = pieces(mr_id_v, ptr_v, size_v, num_iovs)
        return self._engine.write(conn_id, here, metas(meta_blob_v, num_iovs))

    read = blocking(read_async)
    write = blocking(write_async)
    readv = blocking(readv_async)
    writev = blocking(writev_async)

    # --- The same without `reg`: the memory is registered for the call. Between hosts as well.

    @told(0)
    def send_ipc_async(self, conn_id: int, ptr: int, size: int) -> Any:
        """(ok, transfer_id)."""
        return self._engine.send(conn_id, temporary([ptr], [size]))

    @told(0)
    def recv_ipc_async(self, conn_id: int, ptr: int, size: int) -> Any:
        """(ok, transfer_id)."""
        return self._engine.recv(conn_id, temporary([ptr], [size]))

    @told(b"")
    def advertise_ipc(self, conn_id: int, ptr: int, size: int) -> Any:
        """(ok, info). The memory stays registered as long as the endpoint exists."""
        del conn_id
        return self._engine.advertise(0, ptr, size)

    @told([])
    def advertisev_ipc(self, conn_id: int, ptr_v: _Ints, size_v: _Ints) -> Any:
        """(ok, [info])."""
        del conn_id
        return [self._engine.advertise(*piece) for piece in temporary(ptr_v, size_v)]

    @told(0)
    def read_ipc_async(self, conn_id: int, ptr: int, size: int, info: bytes) -> Any:
        """(ok, transfer_id)."""
        return self._engine.read(conn_id, temporary([ptr], [size]), metas([info], 1))

    @told(0)
    def write_ipc_async(self, conn_id: int, ptr: int, size: int, info: bytes) -> Any:
        """(ok, transfer_id)."""
        return self._engine.write(conn_id, temporary([ptr], [size]), metas([info], 1))

    @told(0)
    def readv_ipc_async(self, conn_id: int, ptr_v: _Ints, size_v: _Ints, info_v: _Blobs) -> Any:
        """(ok, transfer_id)."""
        return self._engine.read(conn_id, temporary(ptr_v, size_v), metas(info_v, len(size_v)))

    @told(0)
    def writev_ipc_async(self, conn_id: int, ptr_v: _Ints, size_v: _Ints, info_v: _Blobs) -> Any:
        """(ok, transfer_id)."""
        return self._engine.write(conn_id, temporary(ptr_v, size_v), metas(info_v, len(size_v)))

    send_ipc = blocking(send_ipc_async)
    recv_ipc = blocking(recv_ipc_async)
    read_ipc = blocking(read_ipc_async)
    write_ipc = blocking(write_ipc_async)
    readv_ipc = blocking(readv_ipc_async)
    writev_ipc = blocking(writev_ipc_async)

    # --- Tensors. What has no `ok` raises weightcast's exceptions, which are RuntimeErrors.

    def register_memory(self, tensor_list: Sequence[Any]) -> list[XferDesc]:
        """Registers contiguous tensors (torch, of the CPU or a GPU), numpy's arrays, and objects with
        `__cuda_array_interface__`."""
        made: list[XferDesc] = []
        try:
            for place, tensor in enumerate(tensor_list):
                ptr, size = extent(tensor, f"tensor {place} of the list")
                mr_id = self._engine.register(ptr, size)
                made.append(XferDesc(ptr, size, mr_id, meta=self._engine.advertise(mr_id, ptr, size)))
        except Error:
            self.deregister_memory(made)
            raise
        return made

    def deregister_memory(self, desc_list: _Descs) -> None:
        """Afterwards no transfer touches that memory."""
        for desc in desc_list:
            self._engine.deregister(desc.mr_id)

    def get_serialized_descs(self, desc_list: _Descs) -> bytes:
        """For the peer's `deserialize_descs`."""
        return _core.p2p_join_adverts([desc.meta for desc in desc_list])

    def deserialize_descs(self, serialized_bytes: bytes) -> list[XferDesc]:
        """Raises `InvalidArgument` for bytes that `get_serialized_descs` has not made."""
        descs = []
        for blob in _core.p2p_split_adverts(bytes(serialized_bytes)):
            addr, size, mr_id = _core.p2p_parse_advert(blob)
            descs.append(XferDesc(addr, size, mr_id, meta=blob))
        return descs

    @told(0)
    def transfer(self, conn_id: int, op_name: str, local_desc_list: _Descs, remote_desc_list: _Descs) -> Any:
        """(ok, transfer_id). op_name: "read" (into local_desc_list) or "write".

        Each pair moves as many bytes as the local one has. Raises for a connection that was removed.
        """
        if len(local_desc_list) != len(remote_desc_list):
            raise Misuse(
                f"{len(local_desc_list)} local, {len(remote_desc_list)} remote descriptors; give equally many"
            )
        if op_name not in ("read", "write"):
            raise Misuse(f"Invalid op_name: {op_name!r}; allowed: read, write")
        if not self._engine.has_channel(conn_id):
            raise Misuse(
                f"Invalid conn_id: there is no connection {conn_id}, or it was removed; use a number that "
                "connect, accept or add_remote_endpoint returned"
            )
        begin = self._engine.read if op_name == "read" else self._engine.write
        here = [(desc.mr_id, desc.addr, desc.size) for desc in local_desc_list]
        return begin(conn_id, here, [desc.meta for desc in remote_desc_list])

    # --- Ends.

    @told(True)
    def poll_async(self, transfer_id: int) -> Any:
        """(ok, done): checks once and drives progress; docs/p2p.md says how long that takes.

        (False, True) if it failed, or if an earlier call returned its end: the transfer_id is then unknown.
        """
        return self._engine.poll(transfer_id)

    @told()
    def _ended(self, transfer_id: int) -> Any:
        self._engine.wait(transfer_id)
