"""The calls of `uccl.collective`, on the engine of `p2p.Endpoint` (docs/collective.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from ._p2p_calls import extent
from .errors import InvalidArgument
from .p2p import Endpoint


class P2POp(NamedTuple):
    """For `batch_isend_irecv`. op: "send" or "recv", or a function send, recv, isend or irecv."""

    op: Any
    tensor: Any
    peer: int


class CollectiveContext:
    """Connections between all ranks of torch.distributed, from `init` to `finalize`.

    local_gpu_idx: as of `p2p.Endpoint`; by default LOCAL_RANK, else the rank. The other options are accepted
    and not needed. A handle is a number; -1 is of an operation with oneself, which has always ended. A tensor
    must not change until `test` or `wait` has told its operation's end, and is kept alive until then; after
    an error until `finalize`. A registered one must exist until `deregister_tensor`.
    """

    ep: Endpoint | None = None
    initialized = False
    P2POp = P2POp

    def __init__(
        self, num_cpus: int = 4, local_gpu_idx: int | None = None, use_copy_engine_for_intra: bool = False
    ) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            raise InvalidArgument("torch.distributed is not initialized; call its init_process_group first")
        self.rank, self.world_size, self.num_cpus = dist.get_rank(), dist.get_world_size(), num_cpus
        index = os.environ.get("LOCAL_RANK", self.rank) if local_gpu_idx is None else local_gpu_idx
        self.local_gpu_idx = int(index)
        self.finalize()

    def init(self) -> None:
        """Connects all ranks, which all call it."""
        import torch.distributed as dist

        ep, found = Endpoint(self.local_gpu_idx), [b""] * self.world_size
        dist.all_gather_object(found, ep.get_metadata(), group=dist.new_group(backend="gloo"))
        peers = [one for one in enumerate(found) if one[0] != self.rank]
        self._connections = {peer: ep._engine.shared(one, ep._timeout) for peer, one in peers}
        self._registered: dict[tuple[int, ...], int] = {}
        self.ep, self.initialized = ep, True

    def finalize(self) -> None:
        """Ends all connections, and operations that are under way. `init` makes new ones."""
        self.ep, self.initialized = None, False
        self._under_way: dict[int, Any] = {}

    @property
    def _engine(self) -> Any:
        if self.ep is None:
            raise InvalidArgument("the collective is not initialized; call init_collective or init first")
        return self.ep._engine

    def _piece(self, tensor: Any) -> tuple[int, int, int]:
        """Of the engine: registration (0: for one call), address, bytes."""
        registered = self._engine and self._registered
        first, size = extent(tensor, "the tensor")
        known = (one for (at, room), one in registered.items() if at <= first <= first + size <= at + room)
        return next(known, 0), first, size

    def check_tensor_registered(self, tensor: Any) -> int | None:
        """The registration that has all bytes of the tensor."""
        return self._piece(tensor)[0] or None

    def register_tensor(self, tensor: Any) -> int:
        """The registration of the tensor. Without one, each operation makes its own."""
        known, *place = self._piece(tensor)
        if not known:
            known = self._registered[tuple(place)] = self._engine.register(*place)
        return known

    def deregister_tensor(self, tensor: Any) -> bool:
        """Whether just this was registered. Ends operations with it."""
        _, *place = self._piece(tensor)
        if known := self._registered.pop(tuple(place), 0):
            self._engine.deregister(known)
        return known != 0

    def send(self, tensor: Any, dst: int) -> None:
        """Returns when the other rank has it."""
        self.wait(self.isend(tensor, dst))

    def recv(self, tensor: Any, src: int) -> None:
        """Returns when it is here."""
        self.wait(self.irecv(tensor, src))

    def isend(self, tensor: Any, dst: int) -> int:
        """A handle. The n-th send to a rank meets its n-th recv from this one."""
        return self._begin("send", tensor, dst)

    def irecv(self, tensor: Any, src: int) -> int:
        """A handle. The tensor may be larger than what is sent."""
        return self._begin("recv", tensor, src)

    def _begin(self, op: Any, tensor: Any, peer: int) -> int:
        name, piece = getattr(op, "__name__", str(op)).removeprefix("i"), self._piece(tensor)
        if name not in ("send", "recv") or not 0 <= peer < self.world_size:
            raise InvalidArgument(f"{name} with rank {peer}: give send or recv, a rank of {self.world_size}")
        if peer == self.rank:
            return -1
        handle = getattr(self._engine, name)(self._connections[peer], [piece])
        self._under_way[handle] = tensor
        return handle

    def test(self, handle: int) -> bool:
        """Whether it has ended; raises its error."""
        return self._told(handle, self._engine.poll)

    def wait(self, handle: int) -> None:
        """Waits for its end; raises its error."""
        self._told(handle, self._engine.wait)

    def _told(self, handle: int, ask: Any) -> bool:
        """What `ask` says of it. After an error the tensor stays: something may still be under way."""
        ended = handle not in self._under_way or ask(handle) is not False
        if ended:
            self._under_way.pop(handle, None)
        return ended

    def wait_all(self, handles: Iterable[int]) -> None:
        """`wait` for each."""
        for handle in handles:
            self.wait(handle)

    def batch_isend_irecv(self, ops: Iterable[tuple[Any, Any, int]]) -> list[int]:
        """Handles. ops: each a `P2POp`, or a tuple like it; those with oneself are left out."""
        return [handle for handle in [self._begin(*one) for one in ops] if handle != -1]

    def allgather(self, send_tensor: Any, recv_tensor: Any) -> None:
        """Fills recv_tensor with the send_tensor of each rank, by rank."""
        self.wait_all(self.iallgather(send_tensor, recv_tensor))

    def iallgather(self, send_tensor: Any, recv_tensor: Any) -> list[int]:
        """Handles of an `allgather`."""
        sent, room, count = self._piece(send_tensor)[2], self._piece(recv_tensor)[2], send_tensor.numel()
        if (kind := send_tensor.dtype) != recv_tensor.dtype or sent * self.world_size > room:
            raise InvalidArgument(f"recv_tensor has {room} bytes; give {self.world_size} x {sent} of {kind}")
        parts = recv_tensor.view(-1)[: self.world_size * count].view(self.world_size, count)
        parts[self.rank].copy_(send_tensor.view(-1))
        sends = [("send", send_tensor, peer) for peer in range(self.world_size)]
        return self.batch_isend_irecv([*sends, *(("recv", part, peer) for peer, part in enumerate(parts))])


default = CollectiveContext.__new__(CollectiveContext)


def init_collective(
    num_cpus: int = 4,
    local_gpu_idx: int | None = None,
    use_copy_engine_for_intra: bool = False,
    disable_uccl_intra: bool = False,
) -> None:
    """Makes the context of the module's functions. Options as of `CollectiveContext`; all ranks call it."""
    CollectiveContext.__init__(default, num_cpus, local_gpu_idx)
    default.init()


def get_collective() -> CollectiveContext:
    """The context that `init_collective` has made."""
    return default._engine and default


finalize_collective = default.finalize
