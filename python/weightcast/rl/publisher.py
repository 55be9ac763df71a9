"""A trainer's side of moving weights to the engines, each way measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from ..workers import Trainer, Update
from .collectives import Way
from .report import Transfer
from .sharding import local_tensors, plain


class Publisher(Protocol):
    """All trainers call the same methods in the same order."""

    def publish(self, version: int, announce: Callable[[], None]) -> None:
        """Offers the module's present tensors; `announce` tells engines that wait for orders."""

    def wait_sources(self, timeout: float) -> None:
        """Returns when the tensors may change."""

    def wait(self, timeout: float) -> list[Transfer]:
        """Returns when the last published version is committed everywhere; what it took, once."""

    def close(self) -> None:
        """Leaves politely."""


class NoPublisher:
    """The engines keep what they have."""

    def publish(self, version: int, announce: Callable[[], None]) -> None:
        pass

    def wait_sources(self, timeout: float) -> None:
        pass

    def wait(self, timeout: float) -> list[Transfer]:
        return []

    def close(self) -> None:
        pass


class CastPublisher:
    """Weightcast."""

    def __init__(self, trainer: Trainer, module: nn.Module) -> None:
        self._trainer, self._module = trainer, module
        self._changes = Changes(module)
        self._update: Update | None = None
        self._changed = 0
        trainer.register(plain(module))

    def publish(self, version: int, announce: Callable[[], None]) -> None:
        self._changed = self._changes.count()
        self._update = self._trainer.publish(version)
        announce()

    def wait_sources(self, timeout: float) -> None:
        if self._update is not None:
            self._update.wait_sources(timeout)

    def wait(self, timeout: float) -> list[Transfer]:
        if self._update is None:
            return []
        update, self._update = self._update, None
        stats = update.wait(timeout)
        return [Transfer.of_update("weightcast", stats, self._changed, self._changes.tensors)]

    def close(self) -> None:
        self._trainer.close()


class WaysPublisher:
    """Ways of torch.distributed: engines follow the first, unless another publisher has been there first.

    ready: called before and after each way by trainer 0, and by engines likewise, so that a way's time is
    until its last engine has everything.
    """

    def __init__(
        self, ways: Sequence[Way], module: nn.Module, ready: Callable[[], None], engines: int
    ) -> None:
        self._ways, self._module, self._ready, self._engines = ways, module, ready, engines
        self._changes = Changes(module)
        self._due = False

    def publish(self, version: int, announce: Callable[[], None]) -> None:
        self._due = True
        announce()

    def wait_sources(self, timeout: float) -> None:
        """There is nothing under way: `wait` is what moves."""

    def wait(self, timeout: float) -> list[Transfer]:
        if not self._due:
            return []
        self._due = False
        changed = self._changes.count()
        return [self._move(way, changed) for way in self._ways]

    def _move(self, way: Way, changed: int) -> Transfer:
        self._ready()
        start = time.monotonic()
        moved = way.send(plain(self._module))
        self._ready()
        seconds = time.monotonic() - start
        return Transfer(way.name, seconds, moved.nbytes * self._engines, {}, changed, self._changes.tensors)

    def close(self) -> None:
        for way in self._ways:
            way.close()


class BothPublisher:
    """One publisher that engines follow, and then others that are measured beside it."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self._publishers = publishers

    def publish(self, version: int, announce: Callable[[], None]) -> None:
        for one in self._publishers:
            one.publish(version, announce)

    def wait_sources(self, timeout: float) -> None:
        for one in self._publishers:
            one.wait_sources(timeout)

    def wait(self, timeout: float) -> list[Transfer]:
        return [transfer for one in self._publishers for transfer in one.wait(timeout)]

    def close(self) -> None:
        for one in self._publishers:
            one.close()


class Changes:
    """How many of a module's tensors have other bytes than when it was last asked; of this trainer's part."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._hashes: dict[str, Any] = {}
        self.tensors = len(local_tensors(module))

    def count(self) -> int:
        hashes = {
            name: torch.hash_tensor(one).view(torch.int64).item()
            for name, one in local_tensors(self._module).items()
        }
        before, self._hashes = self._hashes, hashes
        return sum(before.get(name) != value for name, value in hashes.items())
