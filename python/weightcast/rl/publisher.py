"""A trainer's side of moving weights to the engines, each way measured."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .. import Corrupt, Error, TimedOut, Trainer, Unavailable, Update
from .collectives import Way
from .report import Transfer, moved
from .sharding import cast_tensors, hashes_of, in_dtype, local_tensors, plain

INTERVAL = 5.0  # Seconds between two lines about a long transfer.
_NAMED = 4  # Engines in such a line.
_LOST_FOR_GOOD = 3  # Times in succession, as an engine's connection may come back.


class Publisher:
    """All trainers call the same methods in the same order. This one moves nothing: engines keep what they
    have."""

    def publish(self, version: int) -> None:
        """Offers the module's present tensors."""

    def wait_sources(self, timeout: float) -> None:
        """Returns when the tensors may change."""

    def wait(self, timeout: float) -> list[Transfer]:
        """Returns when the last published version is committed everywhere; what it took, once."""
        return []

    def check(self) -> None:
        """Raises Unavailable when engines can get the last version from nobody any more; for trainer 0."""

    def close(self) -> None:
        """Graceful shutdown."""


class WeightcastPublisher(Publisher):
    """Weightcast. show: called at intervals while a transfer takes long, with a line for the user."""

    def __init__(
        self, trainer: Trainer, module: nn.Module, show: Callable[[str], None] = lambda line: None
    ) -> None:
        self._trainer, self._show = trainer, show
        self._update: Update | None = None
        self._version, self._lost = -1, 0
        trainer.register(plain(module))

    def publish(self, version: int) -> None:
        self._update = self._trainer.publish(version)
        self._version, self._lost = version, 0

    def wait_sources(self, timeout: float) -> None:
        if self._update is not None:
            self._patiently(self._update.wait_sources, timeout)

    def wait(self, timeout: float) -> list[Transfer]:
        if self._update is None:
            return []
        update, self._update = self._update, None
        stats = self._patiently(update.wait, timeout)
        receivers = {
            one.name.removeprefix("engine "): moved(one.bytes, one.seconds) for one in stats.receivers
        }
        return [Transfer("weightcast", stats.seconds, stats.bytes, receivers)]

    def _patiently(self, wait: Callable[[float], Any], timeout: float) -> Any:
        start = time.monotonic()
        while True:
            left = start + timeout - time.monotonic()
            try:
                return wait(min(left, INTERVAL))
            except TimedOut:
                if left <= INTERVAL:
                    raise
            after = f"{time.monotonic() - start:.0f} s, at most {timeout:g} (--timeout)"
            self._show(f"version {self._version} after {after}: {self._progress()}")

    def _progress(self) -> str:
        try:
            engines = [one for one in self._trainer.engines() if one.incarnation]
        except Error as error:
            return f"the engines' states are unknown ({error})"
        without = [one for one in engines if one.version.number != self._version]
        states = "".join(f"; {one.name} is {one.state}" for one in without[:_NAMED])
        more = f"; {len(without) - _NAMED} more are not" if len(without) > _NAMED else ""
        return f"{len(engines) - len(without)} of {len(engines)} engines have it{states}{more}"

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
                f"no running engine has version {self._version} (see the logs of those that ended), and new "
                "ones cannot get it; start the run again (--resume continues from its last checkpoint)"
            )

    def close(self) -> None:
        self._trainer.close()


@dataclasses.dataclass
class WaysPublisher(Publisher):
    """Several ways, all timed by one clock: trainer 0's, from when every engine waits until the last one has
    everything. Engines follow the first way.

    first: weightcast, before the others; None: only they are measured. ready: called before and after each
    way by all trainers, and by engines likewise. dtype: the engines'. show: as `WeightcastPublisher` has it.
    """

    ways: Sequence[Way]
    module: nn.Module
    ready: Callable[[], None]
    engines: int
    dtype: torch.dtype = torch.float32
    first: WeightcastPublisher | None = None
    show: Callable[[str], None] = lambda line: None
    due: int | None = None  # The version that is to be moved.

    def publish(self, version: int) -> None:
        """There is nothing under way before `wait`, which moves it."""
        self.due = version

    def wait(self, timeout: float) -> list[Transfer]:
        if self.due is None:
            return []
        version, self.due = self.due, None
        found = [] if self.first is None else [self._timed(self._weightcast, version, timeout)]
        return [*found, *(self._timed(self._move, way, version) for way in self.ways)]

    def _timed(self, move: Callable[..., Transfer], *arguments: Any) -> Transfer:
        self.ready()
        start = time.monotonic()
        transfer = move(*arguments)
        self.ready()
        return dataclasses.replace(transfer, seconds=time.monotonic() - start)

    def _weightcast(self, version: int, timeout: float) -> Transfer:
        assert self.first is not None
        self.first.publish(version)
        (transfer,) = self.first.wait(timeout)
        return transfer

    def _move(self, way: Way, version: int) -> Transfer:
        said = time.monotonic()

        def progress(done: int, whole: int) -> None:
            nonlocal said
            if time.monotonic() - said >= INTERVAL:
                said = time.monotonic()
                self.show(f"version {version} by {way.name}: {done / 1e6:.1f} of {whole / 1e6:.1f} MB")

        way.progress = progress
        sent = way.send(cast_tensors(self.module, self.dtype))
        return Transfer(way.name, 0.0, sent * self.engines)

    def close(self) -> None:
        for way in self.ways:
            way.close()
        if self.first is not None:
            self.first.close()


@dataclasses.dataclass
class Changes:
    """Counts this trainer's tensors that changed since the last publication, and compares replicas.

    dtype: the engines', to which tensors are cast before. replicas: the trainers, if all have the whole
    module; None: each has its part, so there is nothing to compare.
    """

    module: nn.Module
    dtype: torch.dtype = torch.float32
    replicas: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}
        self.tensors = len(local_tensors(self.module))

    def count(self) -> int:
        """How many have other bytes than when it was last asked.

        With replicas all trainers call it. Raises Corrupt on all of them where a tensor is not equal.
        """
        now = {name: hashes_of(in_dtype(one, self.dtype)) for name, one in local_tensors(self.module).items()}
        if self.replicas is not None and self.replicas.size() > 1:
            self._compare(now)
        before, self._before = self._before, now
        return sum(before.get(name) != value for name, value in now.items())

    def _compare(self, mine: dict[str, tuple[int, int]]) -> None:
        """Each trainer sends a part of the weights: engines would get a mixture."""
        own = torch.tensor(list(mine.values()), dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(self.replicas))]
        dist.all_gather(every, own, self.replicas)
        for number, name in enumerate(mine):
            found = [tuple(one[number].tolist()) for one in every]
            usual = max(found, key=found.count)
            others = [str(rank) for rank, one in enumerate(found) if one != usual]
            if others:
                raise Corrupt(
                    f"the trainers' replicas have diverged: {name} of trainer {', '.join(others)} differs "
                    f"from that of trainer {found.index(usual)}; look for what changes weights beside the "
                    "optimizer, or for faulty memory, and continue from the last checkpoint (--resume)"
                )
