"""A trainer's side of moving weights to the engines, each way measured."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import nn

from .. import Corrupt, Error, Trainer, Unavailable, Update
from .collectives import Way
from .report import Transfer
from .sharding import cast_tensors, hashes_of, in_dtype, local_tensors, plain

_LOST_FOR_GOOD = 3  # Times in succession, as an engine's connection may come back.


class Publisher(Protocol):
    """All trainers call the same methods in the same order."""

    def publish(self, version: int) -> None:
        """Offers the module's present tensors."""

    def wait_sources(self, timeout: float) -> None:
        """Returns when the tensors may change."""

    def wait(self, timeout: float) -> list[Transfer]:
        """Returns when the last published version is committed everywhere; what it took, once."""

    def check(self) -> None:
        """Raises Unavailable when engines can get the last version from nobody any more; for trainer 0."""

    def close(self) -> None:
        """Graceful shutdown."""


class CastPublisher:
    """Weightcast."""

    def __init__(self, trainer: Trainer, module: nn.Module) -> None:
        self._trainer = trainer
        self._update: Update | None = None
        self._version, self._lost = -1, 0
        trainer.register(plain(module))

    def publish(self, version: int) -> None:
        self._update = self._trainer.publish(version)
        self._version, self._lost = version, 0

    def wait_sources(self, timeout: float) -> None:
        if self._update is not None:
            self._update.wait_sources(timeout)

    def wait(self, timeout: float) -> list[Transfer]:
        if self._update is None:
            return []
        update, self._update = self._update, None
        return [Transfer.of_update("weightcast", update.wait(timeout))]

    def check(self) -> None:
        """Who comes late gets the version from an engine that serves it: docs/protocol.md, "Repair"."""
        try:
            if self._update is not None:
                self._update.wait(0)
            engines = self._trainer.engines()
        except Error:
            return  # It is on its way, or the controller is away.
        if any(one.incarnation and one.version.number == self._version for one in engines):
            self._lost = 0
            return
        self._lost += 1
        if self._lost == _LOST_FOR_GOOD:
            raise Unavailable(
                f"no running engine has version {self._version}, and other engines have no other source; "
                "start the run again (--resume continues from its last checkpoint)"
            )

    def close(self) -> None:
        self._trainer.close()


class WaysPublisher:
    """Ways of torch.distributed: engines follow the first, unless another publisher has been there first.

    ready: called before and after each way by trainer 0, and by engines likewise, so that a way's time is
    until its last engine has everything. dtype: the engines'.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        module: nn.Module,
        ready: Callable[[], None],
        engines: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._ways, self._module, self._ready, self._engines = ways, module, ready, engines
        self._dtype = dtype
        self._due = False

    def publish(self, version: int) -> None:
        self._due = True

    def wait_sources(self, timeout: float) -> None:
        """There is nothing under way: `wait` is what moves."""

    def wait(self, timeout: float) -> list[Transfer]:
        if not self._due:
            return []
        self._due = False
        return [self._move(way) for way in self._ways]

    def check(self) -> None:
        """Engines live as long as the trainers."""

    def _move(self, way: Way) -> Transfer:
        self._ready()
        start = time.monotonic()
        moved = way.send(cast_tensors(self._module, self._dtype))
        self._ready()
        seconds = time.monotonic() - start
        return Transfer(way.name, seconds, moved.nbytes * self._engines)

    def close(self) -> None:
        for way in self._ways:
            way.close()


class Publishers:
    """One publisher that engines follow, and then others that are measured beside it. Without any, engines
    keep what they have. changes: of the module, asked before each publication.
    """

    def __init__(self, publishers: Sequence[Publisher], changes: Changes) -> None:
        self._publishers, self._changes = publishers, changes
        self._changed = 0

    def publish(self, version: int) -> None:
        if self._publishers:
            self._changed = self._changes.count()
        for one in self._publishers:
            one.publish(version)

    def wait_sources(self, timeout: float) -> None:
        for one in self._publishers:
            one.wait_sources(timeout)

    def wait(self, timeout: float) -> list[Transfer]:
        found = [transfer for one in self._publishers for transfer in one.wait(timeout)]
        changed, tensors = self._changed, self._changes.tensors
        return [dataclasses.replace(one, tensors_changed=changed, tensors=tensors) for one in found]

    def check(self) -> None:
        for one in self._publishers:
            one.check()

    def close(self) -> None:
        for one in self._publishers:
            one.close()


class Changes:
    """Counts this trainer's tensors that changed since the last publication, and compares replicas.

    dtype: the engines', to which tensors are cast before. replicas: the trainers, if all have the whole
    module; None: each has its part, so there is nothing to compare.
    """

    def __init__(
        self,
        module: nn.Module,
        dtype: torch.dtype = torch.float32,
        replicas: dist.ProcessGroup | None = None,
    ) -> None:
        self._module, self._dtype, self._replicas = module, dtype, replicas
        self._before: dict[str, tuple[int, int]] = {}
        self.tensors = len(local_tensors(module))

    def count(self) -> int:
        """How many have other bytes than when it was last asked.

        With replicas all trainers call it. Raises Corrupt on all of them where a tensor is not equal.
        """
        now = {
            name: hashes_of(in_dtype(one, self._dtype)) for name, one in local_tensors(self._module).items()
        }
        if self._replicas is not None and self._replicas.size() > 1:
            self._compare(now)
        before, self._before = self._before, now
        return sum(before.get(name) != value for name, value in now.items())

    def _compare(self, mine: dict[str, tuple[int, int]]) -> None:
        """Each trainer sends a part of the weights: engines would get a mixture."""
        own = torch.tensor(list(mine.values()), dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(self._replicas))]
        dist.all_gather(every, own, self._replicas)
        for number, name in enumerate(mine):
            found = [tuple(one[number].tolist()) for one in every]
            usual = max(found, key=found.count)
            others = [str(rank) for rank, one in enumerate(found) if one != usual]
            if others:
                raise Corrupt(
                    f"the trainers' replicas have diverged: {name} of trainer {', '.join(others)} is another "
                    f"than that of trainer {found.index(usual)}; look for what changes weights beside the "
                    "optimizer, or for faulty memory, and continue from the last checkpoint (--resume)"
                )
