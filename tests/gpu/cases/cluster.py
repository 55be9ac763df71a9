"""Trainers and engines with weights on GPUs, each a process of its own, and orders to them."""

import multiprocessing
import os
import secrets
import time
from multiprocessing.connection import Connection
from typing import Any

import worker
from gpu import Shape

SPAWN = multiprocessing.get_context("spawn")  # A child of fork could not use the driver.
PATIENCE = 300.0


class Failed(Exception):
    """What a worker answered in place of a result."""


class Process:
    def __init__(self, role: worker.Role) -> None:
        self.role = role
        self.name = f"{role.kind} {role.rank}"
        self._pipe: Connection
        self._pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=worker.main, args=(theirs, role), daemon=True)
        self.process.start()
        theirs.close()

    def order(self, name: str, *arguments: Any) -> None:
        self._pipe.send((name, arguments))

    def answer(self, patience: float = PATIENCE) -> Any:
        try:
            if not self._pipe.poll(patience):
                raise Failed(f"{self.name}: no answer for {patience:.0f} s")
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            raise Failed(f"{self.name} has ended with status {self.process.exitcode}") from None
        if kind != "ok":
            raise Failed(f"{self.name}: {value}")
        return value

    def call(self, name: str, *arguments: Any) -> Any:
        self.order(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)


class Cluster:
    """`trainers` and `engines`: the device of each. A context: at its end all processes have ended."""

    def __init__(
        self, shapes: list[Shape], trainers: list[int], engines: list[int], *, landing: str = "in_place",
        dtypes: tuple[str, str] = ("bfloat16", "bfloat16"), settings: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        import weightcast as wc

        os.environ.setdefault("WEIGHTCAST_TOKEN", secrets.token_hex(16))  # Of the workers, too.
        self._settings = settings or {}
        everyone = {"min_engines": str(len(engines)), **self._settings}
        self._controller = wc.Controller("127.0.0.1:0", settings=everyone)
        self._shapes, self._landing, self._dtypes = shapes, landing, dtypes
        self._devices = {"trainer": trainers, "engine": engines}
        self.trainers = [self._start("trainer", rank, trainers) for rank in range(len(trainers))]
        self.engines = [self._start("engine", rank, engines) for rank in range(len(engines))]
        try:
            for one in self.all():
                one.answer()
        except Failed:
            self.kill()
            raise

    def _start(self, kind: str, rank: int, devices: list[int]) -> Process:
        return Process(
            worker.Role(
                kind, rank, len(devices), devices[rank], self._controller.address, self._shapes,
                dtype=self._dtypes[kind == "engine"], landing=self._landing,
                cast=self._dtypes[0] != self._dtypes[1], settings=self._settings,
            )
        )  # fmt: skip

    def all(self) -> list[Process]:
        return self.trainers + self.engines

    def restart(self, old: Process) -> Process:
        """A process in the place of one that was killed."""
        group = self.trainers if old.role.kind == "trainer" else self.engines
        new = self._start(old.role.kind, old.role.rank, self._devices[old.role.kind])
        group[group.index(old)] = new
        new.answer()
        return new

    def write(self, version: int) -> None:
        for one in self.trainers:
            one.order("write", version, True)
        for one in self.trainers:
            one.answer()

    def update(
        self, version: int, publish: str = "publish", check: bool = True, announced: float = 0
    ) -> float:
        """Seconds from the first trainer's publish to the last engine's receipt.

        announced: so many seconds before the trainers announce the version.
        """
        for one in self.engines:
            one.call("begin")
        for one in self.engines:
            one.order("take", version)
        if announced:
            for one in self.trainers:
                one.call("announce", version)
            time.sleep(announced)
        for one in self.trainers:
            one.order(publish, version)
        began = min(one.answer()[0] for one in self.trainers)
        ended = 0.0
        for one in self.engines:
            got, at = one.answer()
            if got != version:
                raise Failed(f"{one.name} serves version {got} in place of {version}")
            ended = max(ended, at)
        if check:
            self.check(version)
        return ended - began

    def data_part(self) -> float:
        """Seconds of the last update from the first *start* to the last *ready*; the controller's clock."""
        explained = self.trainers[0].call("explain")
        parts = [part for rank in explained["ranks"] for part in rank["parts"]]
        return max(one["ready"] for one in parts) - min(one["started"] for one in parts)

    def check(self, version: int) -> None:
        for one in self.engines:
            one.order("check", version)
        for one in self.engines:
            one.answer()

    def kill(self) -> None:
        for one in self.all():
            one.kill()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                for one in self.engines + self.trainers:
                    one.call("close")
                for one in self.all():
                    one.process.join(60)
                    if one.process.exitcode != 0:
                        raise Failed(f"{one.name} has ended with status {one.process.exitcode}")
        finally:
            self.kill()
            self._controller.stop()
