"""Slowness of a disk: trainers that send from checkpoints, one of which is read at a limited rate.

The block layer limits it, by a control group of the trainer's process; so the checkpoint has to lie on a
block device (--disk), and must not lie in the page cache any more. Needs root.
"""

import contextlib
import os
import pathlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator

from explain_tally import BETWEEN, USUAL, Tally
from scene import Scene

from cli import Running, write_checkpoint

SHAPE = (4, 512, 1024)  # 8 MiB, which each engine gets from one trainer.
BYTES = SHAPE[0] * SHAPE[1] * SHAPE[2] * 4
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class ReadLimit:
    """A control group whose processes read from one disk at a limited rate."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._device = _disk_of(folder)
        self._second = (CGROUPS / "cgroup.controllers").exists()  # The second version of control groups.
        self._root = CGROUPS if self._second else CGROUPS / "blkio"
        if self._second:
            (self._root / "cgroup.subtree_control").write_text("+io")
        self._group = self._root / f"weightcast-explain-{os.getpid()}"
        self._group.mkdir()

    @contextlib.contextmanager
    def on(self, process: int, bytes_per_second: int) -> Iterator[None]:
        before = self._group_of(process)
        name, key = ("io.max", "rbps=") if self._second else ("blkio.throttle.read_bps_device", "")
        (self._group / name).write_text(f"{self._device} {key}{bytes_per_second}")
        (self._group / "cgroup.procs").write_text(str(process))
        try:
            yield
        finally:
            (before / "cgroup.procs").write_text(str(process))

    def _group_of(self, process: int) -> pathlib.Path:
        for line in pathlib.Path(f"/proc/{process}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == ("" if self._second else "blkio"):
                return self._root / path.lstrip("/")
        raise SystemExit("no control group here limits disks (blkio); run the other kinds with --only")

    def close(self) -> None:
        self._group.rmdir()


def _disk_of(folder: pathlib.Path) -> str:
    """MAJOR:MINOR of the whole disk."""
    number = folder.stat().st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        raise SystemExit(f"{folder} is not on a block device: give another folder with --disk")
    whole = device.resolve()
    if (whole / "partition").exists():
        whole = whole.parent
    return (whole / "dev").read_text().strip()


class CheckpointScene(Scene):
    """Its trainers are `weightcast trainer`, each with a copy of each checkpoint."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._checkpoints = folder
        self.trainers: dict[str, Running] = {}
        super().__init__(shape=SHAPE)
        self.number = 1

    def _start(self, name: str, *arguments: object) -> None:
        if not name.startswith("trainer"):
            super()._start(name, *arguments)
            return
        _, address, rank, world_size = arguments[:4]
        self._folder_of(name).mkdir()
        self._write(name, 1).rename(self._folder_of(name) / "step-1")
        options = ["--rank", rank, "--world-size", world_size, "--checkpoint", self._folder_of(name)]
        command = ["trainer", "--controller", address, *options, "--watch"]
        self.trainers[name] = Running(*command, env=self._env)

    def _folder_of(self, trainer: str) -> pathlib.Path:
        return self._checkpoints / trainer.replace(" ", "-")

    def _write(self, trainer: str, number: int) -> pathlib.Path:
        """Under a hidden name, and to the disk."""
        tensors = {f"layer.{i}": ("F32", list(SHAPE[1:])) for i in range(SHAPE[0])}
        making = self._folder_of(trainer) / f".{number}"
        write_checkpoint(making, number, tensors)
        _with_descriptor(making / "model.safetensors", os.fsync)
        return making

    def publish(self, cold: str = "") -> None:
        """cold: the trainer whose checkpoint has to come from the disk."""
        self.number += 1
        made = {name: self._write(name, self.number) for name in self.trainers}
        if cold:
            _with_descriptor(made[cold] / "model.safetensors", _forget)
        for name, making in made.items():
            making.rename(self._folder_of(name) / f"step-{self.number}")

    def end(self) -> dict:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for update in self.explain("--update", self.number):
                if all(source["spans"] for source in update["sources"]):
                    return update
            time.sleep(0.02)
        said = {name: trainer.errors() for name, trainer in self.trainers.items()}
        raise AssertionError(f"no update to version {self.number} in 60 s; correct what trainers say: {said}")

    def update(self, late: dict[str, int] | None = None) -> dict:
        assert not late, "a trainer that watches a folder is not late on request"
        self.publish()
        return self.end()

    def close(self) -> None:
        for trainer in self.trainers.values():
            trainer.kill()
        super().close()


def _with_descriptor(path: pathlib.Path, work: Callable[[int], None]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        work(descriptor)
    finally:
        os.close(descriptor)


def _forget(descriptor: int) -> None:
    """No byte of it stays in the page cache."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def run_on_disks(chance: random.Random, runs: int, tally: Tally, disk: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        limit = ReadLimit(pathlib.Path(folder))
        scene = None
        try:
            scene = CheckpointScene(pathlib.Path(folder))
            scene.end()
            for _ in range(USUAL):
                tally.left_alone(scene.update())
            for _ in range(runs):
                victim, milliseconds = chance.choice(["trainer 0", "trainer 1"]), chance.randint(500, 1500)
                process = scene.trainers[victim].process.pid
                with limit.on(process, BYTES * 1000 // milliseconds):
                    scene.publish(cold=victim)
                    update = scene.end()
                tally.planted([("slow_disk", victim, milliseconds)], update)
                for _ in range(BETWEEN):
                    tally.left_alone(scene.update())
        finally:
            if scene is not None:
                scene.close()
            limit.close()
