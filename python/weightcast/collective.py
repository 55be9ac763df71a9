"""Broadcast and all-gather among the processes of a group, on `weightcast.Endpoint`. No torch needed.

with collective.Group(rank, world_size, "10.0.0.1:29800") as group:
    group.broadcast(tensors, root=0)
    group.all_gather(out, mine)

Beside it are the calls of `uccl.collective`, for scripts that were written for it: `init_collective` and what
`CollectiveContext` has (isend, irecv, wait, allgather and more), which torch.distributed brings together.

How both work: docs/collective.md.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import _uccl_collective
from . import _weightcast as _core
from ._collective_call import Call, Flow, parents_of
from ._collective_layouts import Layouts, tensors_of
from ._collective_mesh import Mesh
from ._collective_rendezvous import (
    ROLE,
    Member,
    check_listens_at,
    host_of_this,
    left_until,
    listening_at,
    meet,
)
from ._uccl_collective import CollectiveContext, P2POp, finalize_collective, get_collective, init_collective
from .endpoint import Endpoint
from .errors import Cancelled, Error, InvalidArgument
from .gpu import streams_of
from .memory import memory_of
from .workers import Settings

__all__ = [
    "CollectiveContext", "Group", "P2POp", "finalize_collective", "get_collective", "init_collective",
]  # fmt: skip

_SHAPES = ("star", "chain")


def _read_only(name: str) -> str:
    return f"{name} is read-only, but this call fills it; give one that can be written"


def __getattr__(name: str) -> Any:
    """The other functions of `uccl.collective`: methods of the context that `init_collective` makes."""
    return getattr(_uccl_collective.default, name)


class Group:
    """A fixed set of processes that all make the same calls in the same order.

    rank, world_size: who this process is among them.
    rendezvous: how they find each other: the address of rank 0 ("10.0.0.1:29800", where it will listen), a
        store or a process group of torch.distributed, or a function that takes this rank's bytes and gives
        those of all, by rank.
    name: groups that share a store or an address need different ones.
    host: ranks with the same word share a machine; None: found out.
    token, settings: as of `Endpoint`.
    timeout: seconds that this, and each call without a limit of its own, may take.
    shape: within a host all read from one ("star"), or each from the one before ("chain").

    Arrays are contiguous numpy arrays, torch tensors of the CPU or a GPU, or have `__cuda_array_interface__`;
    all may stand in one list, and empty ones are allowed. They must not change during a call. Their memory is
    registered by the first call with it, and known until the arrays are gone; it is not kept alive. For one
    thread at a time.

    A call with memory of GPUs first waits for what `stream` holds, or the current stream of each of their
    devices: kernels that write the bytes, or still use the memory. What comes later there sees the new bytes.

    A call that fails at one rank fails at all, or the next one of those that were done with it, with an error
    that names the rank: within the setting `lease` if a process died. The group is closed then, and nothing
    touches the arrays any more.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        rendezvous: Any,
        *,
        name: str = "",
        host: str | None = None,
        token: str | None = None,
        settings: Settings | None = None,
        timeout: float = 60.0,
        shape: str = "star",
    ) -> None:
        if not 0 <= rank < world_size:
            raise InvalidArgument(
                f"rank is {rank}, world_size is {world_size}; rank must be an integer in [0, world_size "
                "- 1]: correct one of the two"
            )
        if shape not in _SHAPES:
            raise InvalidArgument(f"shape is '{shape}'; allowed: {', '.join(_SHAPES)}")
        self.rank, self.world_size = rank, world_size
        self._timeout = timeout
        listens = rank == 0 and isinstance(rendezvous, str) and world_size > 1
        self._endpoint = Endpoint(
            token=token,
            role=ROLE,
            rank=rank,
            settings=listening_at(rendezvous, settings) if listens else settings,
        )
        try:
            me = Member(
                rank,
                world_size,
                name,
                host_of_this() if host is None else host,
                self._endpoint.identity.incarnation,
                self._endpoint.addresses,
            )
            if listens:
                check_listens_at(rendezvous, self._endpoint)
            members, connections = meet(self._endpoint, me, rendezvous, time.monotonic() + timeout)
        except BaseException:
            self._endpoint.close()
            raise
        hosts = [one.host for one in members]
        self._parents = functools.cache(lambda root: parents_of(root, hosts, shape))
        self._mesh = Mesh(self._endpoint, connections)
        self._layouts = Layouts(self._endpoint)
        self._early: list[tuple[int, list[Any]]] = []
        self._calls = 0
        self._closed: str | None = None
        self._busy = threading.Lock()
        # Nobody can fail before all are connected: so whoever fails can tell all.
        self._run("meeting", [], list(range(world_size)), False, timeout)

    def broadcast(
        self, tensors: Any, root: int = 0, *, timeout: float | None = None, stream: Any = None
    ) -> None:
        """Fills everybody's tensors with the root's: one, or a list, whose dtypes and sizes are the same.

        Returns when this rank has them all and nobody reads from it any more: they may change.
        """
        if not 0 <= root < self.world_size:
            raise InvalidArgument(
                f"root is {root}; it must be a rank of this group, an integer in [0, {self.world_size - 1}]"
            )
        fills = self.rank != root
        self._run(f"broadcast from rank {root}", tensors_of(tensors), [root], fills, timeout, stream)

    def all_gather(self, out: Any, mine: Any, *, timeout: float | None = None, stream: Any = None) -> None:
        """Fills `out` with everybody's `mine`, by rank: one array of world_size times its bytes, or a list of
        world_size arrays like it. Returns as `broadcast` does; `mine` may be a part of `out`."""
        listed, source = tensors_of(out), memory_of(mine, "mine")
        targets = [memory_of(one, f"tensor {place} of out") for place, one in enumerate(listed)]
        total = source.nbytes * self.world_size
        if sum(one.nbytes for one in targets) != total or (
            len(targets) not in (1, self.world_size) or len({one.nbytes for one in targets}) > 1
        ):
            raise InvalidArgument(
                f"out has {[one.nbytes for one in targets]} bytes; with {source.nbytes} of each rank give "
                f"one array of {total}, or {self.world_size} arrays of {source.nbytes}"
            )
        for place, one in enumerate(targets):
            if not one.writable:
                raise InvalidArgument(_read_only(f"tensor {place} of out"))
        place = targets[self.rank] if len(targets) > 1 else targets[0]
        own = place.address + (self.rank * source.nbytes if len(targets) == 1 else 0)

        def copy_own() -> None:
            if own != source.address and source.nbytes > 0:
                _core.copy_bytes(own, place.device, source.address, source.device, source.nbytes)

        ranks = list(range(self.world_size))
        also = [source.device] if source.device >= 0 else []
        self._run("all_gather", listed, ranks, True, timeout, stream, also, copy_own)

    def close(self) -> None:
        """Graceful shutdown: other ranks' calls that no longer need this rank succeed. Safe to repeat."""
        if self._closed is None:
            self._end("this rank has closed it", ["left"])

    def connection_map(self) -> list[str]:
        """One line for each connection: peer, transport, addresses."""
        return self._endpoint.connection_map()

    # --- One call ----------------------------------------------------------------------------------

    def _run(
        self,
        what: str,
        tensors: list[Any],
        roots: list[int],
        fills: bool,
        timeout: float | None,
        stream: Any = None,
        also: Iterable[int] = (),
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """The roots' bytes lie in the list one after another, as many of each.

        prepare: what this rank does to its memory first, behind the streams of the list's devices and `also`.
        """
        if not self._busy.acquire(blocking=False):
            raise InvalidArgument(
                f"{what}: another thread is inside a call of this group; use one thread at a time"
            )
        try:
            if self._closed is not None:
                raise Cancelled(f"{what}: the group is closed; make a new one on all ranks: {self._closed}")
            deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
            self._mesh.forget_lists(self._layouts.forget(), deadline)
            layout = self._layouts.of(tensors)
            if fills and layout.read_only is not None:
                raise InvalidArgument(_read_only(f"tensor {layout.read_only} of the list"))
            for device, address in streams_of(layout.devices.union(also), stream):
                _core.wait_stream(device, address, left_until(deadline))
            prepare()
            share = layout.nbytes // len(roots)
            flows = [
                Flow(self.rank, root, self._parents(root), place * share, (place + 1) * share)
                for place, root in enumerate(roots)
            ]
            self._calls += 1
            call = Call(self._mesh, self.rank, self._calls, what, layout, flows, deadline)
            self._early = call.run(self._early)
        except Error as error:
            if self._closed is not None:
                raise
            cause = self._mesh.cause_of(error)
            self._fail(cause)
            raise cause from (error if cause is not error else None)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._busy.release()

    def _fail(self, error: BaseException) -> None:
        if self._closed is None:
            code = error.code if isinstance(error, Error) else Cancelled.code
            reason = str(error) if isinstance(error, Error) else repr(error)
            if not self._mesh.was_told:
                reason = f"rank {self.rank}: {reason}"
            self._end(reason, ["failed", code, reason])

    def _end(self, reason: str, last_message: list[Any]) -> None:
        self._closed = reason
        self._mesh.say_leaving(last_message)
        self._endpoint.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._fail(error)
        self.close()
