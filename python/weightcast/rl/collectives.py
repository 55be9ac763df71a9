"""Ways to move weights from trainers to engines, to be measured beside weightcast's: of torch.distributed,
`weightcast.collective`, and a plain copy.

Trainers and engines are ranks of one default process group; every rank makes the same ways in the same order,
once, since that makes their process groups. For each new version trainers call `send` and engines `receive`,
with a module or a dict of tensors: of the same names, shapes and dtypes on both sides. Tensors are in host
memory, or each rank's on its own GPU. Errors are torch.distributed's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .. import collective

Weights = torch.nn.Module | Mapping[str, torch.Tensor]

_BUCKET = 64 << 20


@dataclass(frozen=True)
class Roles:
    """Which ranks of the default process group train, which are engines. hosts: of all ranks, by rank.

    backend: of the process groups that move tensors.
    """

    trainers: list[int]
    engines: list[int]
    hosts: list[str]
    backend: str = "gloo"

    def group(self, ranks: list[int]) -> Any:
        return dist.new_group(sorted(set(ranks)), backend=self.backend)

    @property
    def root(self) -> int:
        """The trainer that sends; the others have the same weights, or a part that it gathers."""
        return self.trainers[0]

    def hosted(self) -> list[list[int]]:
        """The engines of each host."""
        found: dict[str, list[int]] = {}
        for rank in self.engines:
            found.setdefault(self.hosts[rank], []).append(rank)
        return list(found.values())


class Way:
    """One way; a subclass says how. Not for several threads at once.

    progress: called while it moves, with the bytes moved so far and all bytes.
    """

    name: str
    every_trainer_sends = False  # Otherwise the root alone.

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self.progress: Callable[[int, int], None] = lambda moved, whole: None
        self._moved = self._whole = 0

    def send(self, weights: Weights) -> int:
        """On every trainer. Returns, when the weights may change, their bytes, counted once."""
        sends = self.every_trainer_sends or dist.get_rank() == self._roles.root
        return self._move(self._send if sends else lambda tensors: None, weights)

    def receive(self, weights: Weights) -> int:
        """On every engine. Returns when the weights are there."""
        return self._move(self._receive, weights)

    def close(self) -> None:
        """On every rank."""

    def _send(self, tensors: list[torch.Tensor]) -> None:
        """Where a broadcast is the same call on both sides."""
        self._receive(tensors)

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        raise NotImplementedError

    def _move(self, move: Any, weights: Weights) -> int:
        tensors = tensors_of(weights)
        self._moved, self._whole = 0, sum(one.nbytes for one in tensors)
        with torch.no_grad():
            move(tensors)
        for device in {one.device for one in tensors if one.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # Until here it may only be under way.
        return self._whole

    def _broadcast(self, tensor: torch.Tensor, source: int, group: Any) -> None:
        dist.broadcast(tensor.detach(), source, group)
        self._count(tensor.nbytes)

    def _count(self, nbytes: int) -> None:
        self._moved += nbytes
        self.progress(self._moved, self._whole)


class TensorByTensor(Way):
    """A broadcast for each tensor."""

    name = "tensor by tensor"

    def __init__(self, roles: Roles) -> None:
        super().__init__(roles)
        self._group = roles.group([roles.root, *roles.engines])

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._broadcast(tensor, self._roles.root, self._group)


class Packed(TensorByTensor):
    """Tensors are copied into flat buckets, which are broadcast and unpacked; one alone goes as it is."""

    name = "packed"

    def _send(self, tensors: list[torch.Tensor]) -> None:
        for bucket in buckets_of(tensors):
            self._broadcast(_packed(bucket), self._roles.root, self._group)

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        for bucket in buckets_of(tensors):
            flat = _room_for(bucket)
            self._broadcast(flat, self._roles.root, self._group)
            _unpack(flat, bucket)


class AllRoots(Way):
    """Every trainer broadcasts a share, and all is under way at once: tensors as they are, since packing them
    costs more than it saves in host memory; on GPUs buckets as `Packed`."""

    name = "all roots"
    every_trainer_sends = True

    def __init__(self, roles: Roles) -> None:
        super().__init__(roles)
        self._groups = [roles.group([root, *roles.engines]) for root in roles.trainers]

    def _send(self, tensors: list[torch.Tensor]) -> None:
        mine = self._roles.trainers.index(dist.get_rank())
        self._finish(
            [self._begin(_packed(bucket), root) for bucket, root in self._dealt(tensors) if root == mine]
        )

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        dealt = self._dealt(tensors)
        under_way = [self._begin(_room_for(bucket), root) for bucket, root in dealt]
        for (flat, _), (bucket, _) in zip(self._finish(under_way), dealt, strict=True):
            _unpack(flat, bucket)

    def _begin(self, flat: torch.Tensor, root: int) -> tuple[torch.Tensor, Any]:
        return flat, dist.broadcast(flat, self._roles.trainers[root], self._groups[root], async_op=True)

    def _finish(self, under_way: list[tuple[torch.Tensor, Any]]) -> list[tuple[torch.Tensor, Any]]:
        for flat, work in under_way:
            work.wait()
            self._count(flat.nbytes)
        return under_way

    def _dealt(self, tensors: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], int]]:
        """Each bucket with its trainer: the one that has the fewest bytes so far."""
        given = [0] * len(self._groups)
        found = []
        for bucket in buckets_of(tensors, _BUCKET if tensors[0].is_cuda else 0):
            root = given.index(min(given))
            given[root] += sum(one.nbytes for one in bucket)
            found.append((bucket, root))
        return found


class Hierarchical(Way):
    """A broadcast for each tensor to one engine of each host, then one within the host."""

    name = "hierarchical"

    def __init__(self, roles: Roles) -> None:
        super().__init__(roles)
        self._outer = roles.group([roles.root, *(ranks[0] for ranks in roles.hosted())])
        self._inner = [(ranks[0], ranks, roles.group(ranks)) for ranks in roles.hosted()]

    def _send(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._broadcast(tensor, self._roles.root, self._outer)

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        rank = dist.get_rank()
        first, ranks, group = next(one for one in self._inner if rank in one[1])
        for tensor in tensors:
            if rank == first:
                self._broadcast(tensor, self._roles.root, self._outer)
            if len(ranks) > 1:
                self._broadcast(tensor, first, group)


class Gathered(TensorByTensor):
    """FSDP2: trainers gather each parameter whole (`full_tensor`), and the first broadcasts it."""

    name = "fsdp2 gather"
    every_trainer_sends = True  # All take part in gathering.

    def _send(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
            if dist.get_rank() == self._roles.root:
                self._broadcast(whole, self._roles.root, self._group)


class PlainCopy(TensorByTensor):
    """On one host: the root copies into shared memory, and engines copy out of it."""

    name = "plain copy"

    def __init__(self, roles: Roles) -> None:
        super().__init__(roles)
        self._shared: torch.Tensor | None = None

    def _send(self, tensors: list[torch.Tensor]) -> None:
        for tensor, part in self._parts(tensors):
            part.copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
            self._count(tensor.nbytes)
        dist.barrier(self._group)  # Everything is there,
        dist.barrier(self._group)  # and taken.

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        parts = self._parts(tensors)
        dist.barrier(self._group)
        for tensor, part in parts:
            tensor.detach().view(-1).view(torch.uint8).copy_(part)
            self._count(tensor.nbytes)
        dist.barrier(self._group)

    def _parts(self, tensors: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor with its bytes in the shared memory, which is made with the first."""
        sizes = [one.nbytes for one in tensors]
        if self._shared is None:
            self._shared = self._share(sum(sizes))
        return list(zip(tensors, self._shared.split(sizes), strict=True))

    def _share(self, nbytes: int) -> torch.Tensor:
        """Without a name as soon as all have it, so that nothing is left of a process that dies."""
        sends = dist.get_rank() == self._roles.root
        name = [tempfile.mkstemp(prefix="weightcast-rl-", dir="/dev/shm")[1] if sends else ""]
        dist.broadcast_object_list(name, self._roles.root, self._group)
        shared = torch.from_file(name[0], shared=True, size=nbytes, dtype=torch.uint8)
        dist.barrier(self._group)
        if sends:
            os.unlink(name[0])
        return shared


class Collective(Way):
    """`weightcast.collective`: one broadcast of the list of all tensors."""

    name = "weightcast.collective"

    def __init__(self, roles: Roles, *, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(roles)
        members = [roles.root, *roles.engines]
        met = dist.new_group(sorted(members), backend="gloo")
        self._group: collective.Group | None = None
        if dist.get_rank() in members:
            self._group = collective.Group(
                members.index(dist.get_rank()),
                len(members),
                met,
                host=roles.hosts[dist.get_rank()],
                settings=settings,
            )

    def _receive(self, tensors: list[torch.Tensor]) -> None:
        assert self._group is not None
        self._group.broadcast(tensors)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


WAYS: dict[str, type[Way]] = {
    way.name: way for way in (TensorByTensor, Packed, AllRoots, Hierarchical, Gathered, PlainCopy, Collective)
}


def tensors_of(weights: Weights) -> list[torch.Tensor]:
    """Each once, in the order of their names in the module or dict; tied ones are one."""
    named = weights.state_dict(keep_vars=True) if isinstance(weights, torch.nn.Module) else weights
    return list({id(tensor): tensor for tensor in named.values()}.values())


def buckets_of(tensors: Iterable[torch.Tensor], most: int = _BUCKET) -> Iterator[list[torch.Tensor]]:
    """Neighbours of one dtype, together at most `most` bytes, unless one alone is larger."""
    bucket: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if bucket and (tensor.dtype != bucket[0].dtype or held + size > most):
            yield bucket
            bucket, held = [], 0
        bucket.append(tensor)
        held += size
    if bucket:
        yield bucket


def _packed(bucket: list[torch.Tensor]) -> torch.Tensor:
    """One alone is sent, and received, in its own memory."""
    return torch.cat([one.detach().reshape(-1) for one in bucket]) if len(bucket) > 1 else bucket[0].detach()


def _room_for(bucket: list[torch.Tensor]) -> torch.Tensor:
    if len(bucket) == 1:
        return bucket[0].detach()
    return bucket[0].new_empty(sum(one.numel() for one in bucket), requires_grad=False)


def _unpack(flat: torch.Tensor, bucket: list[torch.Tensor]) -> None:
    if len(bucket) > 1:
        for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
            one.copy_(part.view_as(one))
