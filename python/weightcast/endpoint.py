"""Endpoint: the data plane alone. Registered memory, one-sided writes and reads, notices in order with them.

Calls that wait release the GIL and obey Ctrl-C. Times are in seconds; where nothing else is said, None means
without a limit. Everything may be used from any thread, and from several event loops at once; after fork()
only in the parent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from . import _weightcast as _core
from ._threads import asynchronous, on_thread
from .awaiting import next_of, until_ended
from .errors import InvalidArgument, TimedOut
from .memory import allocate, memory_of
from .workers import Settings, _settings

Local = _core.RegionSlice
Remote = _core.RemoteSlice
Pairs = Iterable[tuple[Local, Remote]]
_ACCEPT = 0


class Transfer:
    """A write or read on its way. `wait()` for it, or `await` it; both raise what made it fail.

    The memory on both sides is in use until it has ended; after a cancellation, a time-out or an error until
    it is *fenced*: do not use the bytes again before. Neither has to be kept alive: memory of this process
    stays until nobody can touch it, also if the regions and this object are dropped.
    """

    __slots__ = ("_core",)

    def __init__(self, core: _core.CoreTransfer) -> None:
        self._core = core

    @property
    def ended(self) -> bool:
        """Whether its outcome is known."""
        return self._core.ended

    @property
    def fenced(self) -> bool:
        """Whether nothing of it can land any more."""
        return self._core.fenced

    @property
    def nbytes(self) -> int:
        return self._core.nbytes

    def wait(self, timeout: float | None = None) -> None:
        """Returns when all bytes are in place. `TimedOut`, with `ended` still false: it goes on."""
        self._core.wait(timeout)

    def wait_fenced(self, timeout: float | None = None) -> None:
        """Returns when the memory may be used again, however the transfer ended."""
        self._core.wait_fenced(timeout)

    def cancel(self) -> None:
        """Ends it as `Cancelled` unless it has ended. Returns at once; see `wait_fenced`."""
        self._core.cancel()

    def __await__(self) -> Generator[Any, None, None]:
        """As `wait`. Cancelling the task that awaits it cancels the transfer."""
        if not self._core.ended:
            yield from until_ended(self._core).__await__()
        self._core.wait(None)

    def __repr__(self) -> str:
        state = "fenced" if self.fenced else "ended" if self.ended else "under way"
        return f"<Transfer of {self.nbytes} bytes, {state}>"


class Connection:
    """A proven connection to one peer. It ends with `close`, with either endpoint, or with the peer."""

    __slots__ = ("_core", "_endpoint")

    def __init__(self, core: _core.CoreConnection, endpoint: _core.CoreEndpoint) -> None:
        self._core = core
        self._endpoint = endpoint

    @property
    def peer(self) -> _core.Identity:
        return self._core.peer

    @property
    def address(self) -> str:
        """Where the peer listens, "10.0.0.1:4711"."""
        return self._core.address

    @property
    def transport(self) -> str:
        """ "shm", "tcp" or "verbs"."""
        return self._core.transport

    @property
    def usable(self) -> bool:
        return self._core.usable

    def check(self) -> None:
        """Raises why it has ended, if it has."""
        self._core.check()

    def describe(self) -> str:
        """One line: transport, peer, addresses."""
        return self._core.describe()

    def import_region(self, descriptor: bytes) -> _core.RemoteRegion:
        """Makes a region of this peer usable here: what its `Region.descriptor` says."""
        return self._core.import_region(bytes(descriptor))

    def write(
        self,
        local: Local | Pairs,
        remote: Remote | None = None,
        *,
        pieces: Any = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Begins to write local bytes into the peer's memory.

        Two slices of the same length, or a list of such pairs, or two slices and `pieces`: an array with a
        row (offset in `local`, offset in `remote`, bytes) for each, the quickest for thousands.

        timeout: when it ends as `TimedOut`; None: the setting `timeout`.
        stream: memory of a GPU is read when what this stream holds now is over; None: its device's current
            stream; False: at once. The call does not wait for it.
        """
        return self._post(False, local, remote, pieces, timeout, stream)

    def read(
        self,
        local: Local | Pairs,
        remote: Remote | None = None,
        *,
        pieces: Any = None,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Transfer:
        """Begins to read the peer's bytes into local memory. Arguments as of `write`.

        Into memory of a GPU: first waits here for what `stream` holds, kernels that still use the memory.
        """
        return self._post(True, local, remote, pieces, timeout, stream)

    def notify(self, message: bytes, timeout: float | None = None) -> None:
        """Sends the peer a message of at most 32 KiB, for its `take_notice`.

        Messages arrive once and in their order, and after the bytes of every transfer of this connection
        that was seen to have ended well before. Waits only while the peer takes none of those before.
        """
        self._core.notify(_message(message), timeout)

    async def notify_async(self, message: bytes, timeout: float | None = None) -> None:
        try:
            self._core.notify(_message(message), 0)
        except TimedOut:
            await on_thread(self.notify, message, timeout)

    def take_notice(self, timeout: float | None = None) -> bytes:
        """The peer's oldest message that nobody has taken. When the connection has ended and nothing that
        came before is left, raises the reason of its end."""
        return self._core.take_notice(timeout)

    async def take_notice_async(self, timeout: float | None = None) -> bytes:
        peer = self._core.peer
        complaint = (
            f"no notice has come from {peer} ({self.address}) within {timeout} s; "
            "check that it runs and calls notify, then wait again"
        )
        return await next_of(self._endpoint, peer.incarnation, self._core.try_take_notice, timeout, complaint)

    def close(self) -> None:
        """Ends it. Transfers end as `Cancelled`, notices that are on their way may be lost."""
        self._core.close()

    def _post(
        self, read: bool, local: Any, remote: Remote | None, pieces: Any, timeout: float | None, stream: Any
    ) -> Transfer:
        if pieces is None:
            return Transfer(self._core.post(read, local, remote, stream, timeout))
        table = np.ascontiguousarray(pieces)
        if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iu":
            raise InvalidArgument(
                f"pieces has shape {table.shape} and dtype {table.dtype}; give integers, a row (offset "
                "in local, offset in remote, bytes) for each piece"
            )
        return Transfer(self._core.post_table(read, local, remote, table.astype(np.uint64), stream, timeout))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Connection) and self._core.same(other._core)

    def __hash__(self) -> int:
        return hash(self._core.peer)

    def __repr__(self) -> str:
        return f"<Connection: {self.describe()}{'' if self.usable else ', ended'}>"


class Endpoint:
    """All connections of one process.

    token: the text of the job's token or a role's: peers must have it, or one made from it, wherever they
        take it from. None: that in WEIGHTCAST_TOKEN, the file of the setting `token_file`, or the user's own
        file on this machine. "" needs the setting `bind` at a loopback address.
    job: peers of other jobs are refused; "": the setting `job`.
    role, rank: who this process is to others, "peer 0" in their messages.
    settings: docs/settings.md, for instance {"transport": "tcp", "lease": 2}.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        job: str = "",
        role: str = "peer",
        rank: int = 0,
        settings: Settings | None = None,
    ) -> None:
        self._core = _core.CoreEndpoint.create(token, job, role, rank, _settings(settings))

    @property
    def identity(self) -> _core.Identity:
        return self._core.identity

    @property
    def addresses(self) -> list[str]:
        """Where it listens, "host:port" each, best first: what peers give to `connect`."""
        return self._core.addresses

    def register(self, memory: Any, *, access: str | None = None) -> _core.Region:
        """Opens memory to transfers: a contiguous numpy array, torch tensor (CPU or CUDA), or object with the
        buffer protocol or `__cuda_array_interface__`. The region keeps it alive; it must stay as large and
        where it is.

        access: what peers may do: "readwrite", "read", or "local" for nothing; None: "readwrite", or "read"
            where the memory is read-only. Bytes are in place when the writer says so, not before.
        """
        found = memory_of(memory, "memory")
        wanted = access if access is not None else "readwrite" if found.writable else "read"
        if wanted == "readwrite" and not found.writable:
            raise InvalidArgument("the memory is read-only, so peers cannot write to it; use access='read'")
        return self._core.register(
            found.address, found.nbytes, found.array, found.writable, wanted, found.device
        )

    def allocate(
        self, shape: int | tuple[int, ...], dtype: Any = np.uint8, *, access: str | None = None
    ) -> _core.Region:
        """Registers a new zeroed array (`region.array`) that other processes of this host can map: the
        fastest memory there is between them."""
        return self.register(allocate(shape, dtype), access=access)

    def connect(
        self,
        addresses: str | Sequence[str],
        *,
        role: str = "",
        rank: int = 0,
        incarnation: int = 0,
        timeout: float | None = None,
    ) -> Connection:
        """Connects to the process that listens at one of these addresses and proves to have the token.

        role, rank: the peer must be this one; "": anyone of the job. incarnation: and no other since.
        timeout: None: the setting `connect_timeout`. Returns the connection that there is already, if any.
        """
        wanted = [addresses] if isinstance(addresses, str) else list(addresses)
        return self._connection(self._core.connect(wanted, role, rank, incarnation, timeout))

    connect_async = asynchronous(connect)

    def accept(self, timeout: float | None = None) -> Connection:
        """The oldest connection that a peer has opened and nobody has accepted yet."""
        return self._connection(self._core.accept(timeout))

    async def accept_async(self, timeout: float | None = None) -> Connection:
        complaint = (
            f"no peer has connected within {timeout} s; let one connect to this endpoint, and accept again"
        )
        return self._connection(await next_of(self._core, _ACCEPT, self._core.try_accept, timeout, complaint))

    def connection_map(self) -> list[str]:
        """One line for each connection: peer, transport, addresses."""
        return self._core.connection_map()

    def close(self) -> None:
        """Ends all connections, regions and calls that wait. Returns when no peer can touch the memory any
        more; with a stopped peer, after the lease. Safe to call twice."""
        self._core.close()

    def _connection(self, core: _core.CoreConnection) -> Connection:
        return Connection(core, self._core)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        # On a thread of its own: calls that only this ends may hold all of the loop's.
        own = concurrent.futures.ThreadPoolExecutor(1, "wc-close")
        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(own, self.close))
        finally:
            own.shutdown(wait=False)


def _message(message: bytes) -> bytes:
    return message if isinstance(message, bytes) else bytes(memoryview(message))
