#!/usr/bin/env python3
"""Random faults against a job of stand-alone commands that a supervisor restarts.

  WC_TEST_BINARY=build/weightcast tests/faults/storm.py --minutes 30 [--seed N]

The job: a pair of controllers behind one name, two trainers that watch a folder, and four engines: one rank
and two ranks, each with landing in_place and with landing shadow. A new checkpoint comes every second. The
faults: SIGKILL, SIGSTOP, the cgroup freezer, a full disk, no free descriptors, steps of the wall clock, a
second controller that takes over. Everything that an engine writes is compared with what was published.

It is a violation if a version is written with other bytes than were published; if a process ends by a
signal that was not sent, or without a line that says why; if 15 s after the last fault some engine has not
got the last version.

Needs root (namespaces, mounts, cgroups). Ends with 0 and one line `storm: ...`, or with 1 and the
violations.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "security"))

import harness  # noqa: E402

from cli import SIZES, Running, elements, pseudo_random, write_checkpoint  # noqa: E402

PORT = 29750
ADDRESSES = ("127.0.0.2", "127.0.0.3")
ENGINES = {
    "one-live": (1, "in_place"),
    "one-spare": (1, "shadow"),
    "two-live": (2, "in_place"),
    "two-spare": (2, "shadow"),
}
# Two of them are cut by tensor parallelism, in dimension 0 and in dimension 1.
WEIGHTS = {
    **{f"model.layers.{i}.self_attn.q_proj.weight": ("BF16", [512, 256]) for i in range(4)},
    **{f"model.layers.{i}.self_attn.o_proj.weight": ("BF16", [256, 512]) for i in range(4)},
    "model.norm.weight": ("F32", [256]),
}
CATCH_UP = 15.0
KEPT = 6
SKIPPED = 77
# Seconds, in either direction.
LONGEST_STEP = 10.0


def run(*command: object) -> None:
    subprocess.run([str(one) for one in command], check=True)


def enter_namespaces() -> None:
    """Begins again inside a mount, network and pid namespace of its own: whatever is left ends with them."""
    if os.environ.get("STORM_INSIDE") == "1":
        run("ip", "link", "set", "lo", "up")
        return
    if os.geteuid() != 0:
        print("storm: skipped: needs root, for namespaces and mounts")
        sys.exit(SKIPPED)
    inside = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", sys.executable, *sys.argv]
    sys.exit(subprocess.run(inside, env={**os.environ, "STORM_INSIDE": "1"}).returncode)


class Outputs:
    """Compares what engines have written, once each, and keeps the disk from filling up."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.newest = dict.fromkeys(ENGINES, 0)
        self.checked = collections.Counter()
        self.wrong: list[str] = []
        self._seen: set[tuple[str, str, int]] = set()

    def look(self) -> None:
        for engine in ENGINES:
            for folder in sorted(self.folder.glob(f"{engine}/[0-9]*"), key=lambda one: number_of(one.name)):
                with contextlib.suppress(FileNotFoundError):
                    self._look_at(engine, folder)
            versions = sorted(self.folder.glob(f"{engine}/[0-9]*"), key=lambda one: number_of(one.name))
            for old in versions[:-3]:
                shutil.rmtree(old, ignore_errors=True)

    def _look_at(self, engine: str, folder: pathlib.Path) -> None:
        key = (engine, folder.name, folder.stat().st_ino)
        if key in self._seen:
            return
        version = number_of(folder.name)
        files = list(folder.glob("*.safetensors"))
        ranks = ENGINES[engine][0]
        if len(files) != ranks:
            self.wrong.append(f"{folder}: {len(files)} files of {ranks} ranks")
        for file in files:
            wrong = difference(file, version)
            if wrong:
                self.wrong.append(f"{file}: {wrong}")
        self._seen.add(key)
        self.checked[engine] += 1
        self.newest[engine] = max(self.newest[engine], version)


def number_of(folder: str) -> int:
    """The number of a version's folder, `80` or, of a later run, `2:80`."""
    return int(folder.split(":")[-1])


def difference(file: pathlib.Path, version: int) -> str:
    """What in a rank's file is not of this version; empty: nothing."""
    whole = file.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    data = memoryview(whole)[8 + length :]
    boxes = json.loads(header.pop("__metadata__", {}).get("weightcast.shards", "{}"))
    at = 0
    for name, (dtype, shape) in WEIGHTS.items():
        size = elements(shape) * SIZES[dtype]
        expected = pseudo_random(version, at + size)[at:]
        at += size
        if name not in header:
            return f"{name} is missing"
        entry = header[name]
        begin, end = entry["data_offsets"]
        box = boxes.get(name, {"shape": shape, "offset": [0] * len(shape)})
        if bytes(data[begin:end]) != cut(expected, SIZES[dtype], shape, box["offset"], entry["shape"]):
            return f"{name} holds other bytes than version {version}"
    return ""


def cut(whole: bytes, width: int, shape: list[int], offset: list[int], size: list[int]) -> bytes:
    """A box of a tensor of at most two dimensions."""
    if len(shape) < 2:
        return whole[offset[0] * width : (offset[0] + size[0]) * width] if shape else whole
    row = shape[1] * width
    first, last = offset[1] * width, (offset[1] + size[1]) * width
    return b"".join(whole[r * row + first : r * row + last] for r in range(offset[0], offset[0] + size[0]))


class Supervised:
    """A command that is started again whenever it ends."""

    def __init__(self, name: str, command: list[object], folder: pathlib.Path, preload: pathlib.Path) -> None:
        self.name = name
        self._command = command
        self._clock = folder / f"clock-{name}"
        self._env = {"CLOCK_SHIFT": str(self._clock), "LD_PRELOAD": str(preload)}
        self.step_clock(0)
        self.killed = False
        self.running: Running | None = None
        self.start()

    def start(self) -> None:
        self.killed = False
        self.running = Running(*self._command, env=self._env)
        os.set_blocking(self.running.process.stdout.fileno(), False)

    def step_clock(self, seconds: float) -> None:
        with open(self._clock, "r+b" if self._clock.exists() else "w+b") as file:
            file.write(struct.pack("d", seconds))

    @property
    def pid(self) -> int:
        return self.running.process.pid

    def drain(self) -> None:
        """So that it does not block on a full pipe."""
        with contextlib.suppress(BlockingIOError, ValueError):
            while os.read(self.running.process.stdout.fileno(), 65536):
                pass

    def kill(self) -> None:
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Storm:
    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.violations: list[str] = []
        self.ends: collections.Counter = collections.Counter()
        self.faults: collections.Counter = collections.Counter()
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.took = 0.0
        self.retired: Supervised | None = None  # A controller after another has taken over.
        self.ended: list[Supervised] = []
        self.version = 0
        self.active = 0
        for name in ("checkpoints", "output"):
            (folder / name).mkdir()
            run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder / name)
        self.outputs = Outputs(folder / "output")
        self.hosts = folder / "hosts"
        self.point_name()
        run("mount", "--bind", self.hosts, "/etc/hosts")
        run("mount", "--bind", "/dev/null", "/etc/resolv.conf")
        self.freezer = self.open_freezer()
        preload = folder / "clock_shift.so"
        run("cc", "-shared", "-fPIC", "-O1", "-o", preload, HERE / "clock_shift.c", "-ldl")
        token = folder / "token"
        token.write_text("a-token-for-the-storm-of-enough-characters\n")
        token.chmod(0o600)
        self.all: dict[str, Supervised] = {}
        self.preload = preload
        self.settings = [
            "--token-file",
            token,
            "--lease=1",
            "--connect-timeout=5",
            "--timeout=10",
            "--commit-timeout=5",
        ]
        self.start_all()

    def supervised(self, name: str, *command: object) -> Supervised:
        return Supervised(name, [*command, *self.settings], self.folder, self.preload)

    def controller_of(self, which: int) -> Supervised:
        listen = f"{ADDRESSES[which]}:{PORT}"
        return self.supervised(f"controller-{which}", "controller", "--listen", listen, "--policy=each")

    def start_all(self) -> None:
        def add(name: str, *command: object) -> None:
            self.all[name] = self.supervised(name, *command)

        self.all["controller"] = self.controller_of(self.active)
        like = self.folder / "like"
        write_checkpoint(like, tensors=WEIGHTS)
        head = ["--controller", f"head:{PORT}"]
        for rank in range(2):
            where = [
                "--rank",
                rank,
                "--world-size",
                2,
                "--checkpoint",
                self.folder / "checkpoints",
                "--watch",
            ]
            add(f"trainer-{rank}", "trainer", *head, *where)
        for engine, (ranks, landing) in ENGINES.items():
            for rank in range(ranks):
                where = ["--engine", engine, "--rank", rank, "--world-size", ranks, "--landing", landing]
                what = ["--like", like, "--output", self.folder / "output"]
                add(f"{engine}-{rank}", "inference", *head, *where, *what)

    def point_name(self) -> None:
        """`head` leads to the controller that is to be followed."""
        text = f"127.0.0.1 localhost\n{ADDRESSES[self.active]} head\n"
        with open(self.hosts, "w") as file:  # In place: it is mounted.
            file.write(text)

    @staticmethod
    def open_freezer() -> pathlib.Path | None:
        root = pathlib.Path("/sys/fs/cgroup/freezer")
        if not root.is_dir():
            return None
        made = root / f"storm-{os.urandom(4).hex()}"
        made.mkdir()
        return made

    # What happens all the time.

    def publish(self) -> None:
        self.version += 1
        folder = self.folder / "checkpoints" / f"step-{self.version}"
        try:
            write_checkpoint(folder, seed=self.version, tensors=WEIGHTS)
        except OSError:  # The disk is full: the next turn tries again.
            shutil.rmtree(folder.parent / f".{folder.name}.making", ignore_errors=True)
            self.version -= 1
        old = self.folder / "checkpoints" / f"step-{self.version - KEPT}"
        shutil.rmtree(old, ignore_errors=True)

    def supervise(self) -> None:
        for name, one in self.all.items():
            one.drain()
            status = one.running.process.poll()
            if status is None:
                continue
            self.note_end(name, one, status)
            one.running.close()
            one.start()

    def note_end(self, name: str, one: Supervised, status: int) -> None:
        if one.killed:
            return
        said = [line for line in one.running.errors().splitlines() if line.startswith("weightcast: ")]
        if status < 0 or not said:
            self.violations.append(f"{name} ended with {status}: {one.running.errors()[-1500:]}")
        else:
            self.ends[f"{name.split('-')[0]}: {said[-1][:160]}"] += 1

    def turn(self) -> None:
        now = time.monotonic()
        due = [entry for entry in self.undo if entry[0] <= now]
        self.undo = [entry for entry in self.undo if entry[0] > now]
        for _, action in due:
            action()
        self.supervise()
        self.outputs.look()

    def later(self, least: float, most: float, action: Callable[[], object]) -> None:
        self.undo.append((time.monotonic() + self.random.uniform(least, most), action))

    # The faults. Each leaves an undo.

    def fault(self) -> None:
        kinds = [
            self.kill,
            self.stop,
            self.freeze,
            self.fill_disk,
            self.take_descriptors,
            self.step_clock,
            self.take_over,
        ]
        weights = [4, 4, 3, 1, 2, 2, 1]
        kind = self.random.choices(kinds, weights)[0]
        if kind() is not False:
            self.faults[kind.__name__] += 1

    def one(self) -> Supervised:
        return self.random.choice(list(self.all.values()))

    def kill(self) -> None:
        self.one().kill()

    def stop(self) -> None:
        hit = self.one()
        pid = hit.pid
        os.kill(pid, signal.SIGSTOP)
        self.later(0.1, 4, lambda: send(pid, signal.SIGCONT))

    def freeze(self) -> bool | None:
        if self.freezer is None:
            return False
        hit = self.one()
        name = self.freezer / f"{hit.name}-{self.random.randrange(1 << 30)}"
        name.mkdir()
        try:
            (name / "cgroup.procs").write_text(str(hit.pid))
        except OSError:
            name.rmdir()
            return False
        (name / "freezer.state").write_text("FROZEN")
        self.later(0.1, 4, lambda: self.thaw(name))
        return None

    def thaw(self, name: pathlib.Path) -> None:
        (name / "freezer.state").write_text("THAWED")
        for pid in (name / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self.freezer / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            name.rmdir()

    def fill_disk(self) -> None:
        filler = self.folder / self.random.choice(["output", "output", "checkpoints"]) / ".filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        self.later(0.5, 4, lambda: filler.unlink(missing_ok=True))

    def take_descriptors(self) -> None:
        hit = self.one()
        pid = hit.pid
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            used = len(os.listdir(f"/proc/{pid}/fd"))
            limit_descriptors(pid, used)
            self.later(0.5, 4, lambda: limit_descriptors(pid, None))

    def step_clock(self) -> None:
        hit = self.one()
        hit.step_clock(self.random.choice([-1, 1]) * math.exp(self.random.uniform(0, math.log(LONGEST_STEP))))
        self.later(1, 8, lambda: hit.step_clock(0))

    def take_over(self) -> None:
        """A second controller starts and the name leads to it. The first goes on for a while, and ends."""
        self.end_retired()
        first = self.all["controller"]
        if self.random.random() < 0.7:
            send(first.pid, signal.SIGSTOP)
        self.active = 1 - self.active
        self.point_name()
        self.retired = first
        self.all["controller"] = self.controller_of(self.active)
        self.later(0.2, 3, lambda: send(first.pid, signal.SIGCONT))
        self.later(3, 4, self.end_retired)

    def end_retired(self) -> None:
        if self.retired is not None:
            self.retired.kill()  # It may be frozen, and so die later.
            self.ended.append(self.retired)
            self.retired = None

    # A whole storm.

    def blow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        next_version, next_fault, next_word = 0.0, time.monotonic() + 3, time.monotonic() + 60
        while time.monotonic() < end:
            now = time.monotonic()
            if now >= next_version:
                self.publish()
                next_version = now + 1
            if now >= next_fault:
                self.fault()
                next_fault = now + self.random.expovariate(1)
            if now >= next_word:
                print(f"storm: {self.summary()}", flush=True)
                next_word = now + 60
            self.turn()
            if self.violations or self.outputs.wrong:
                break
            time.sleep(0.02)

    def settle(self) -> None:
        """The storm is over: undoes what is left, and waits until all engines have the last version.

        A version fails while a process counts as lost, and is not repeated: as a training loop does, the job
        goes on to publish.
        """
        for _, action in self.undo:
            action()
        self.undo = []
        self.turn()
        self.publish()
        begin = time.monotonic()
        next_version = begin + 3
        while self.behind() and time.monotonic() < begin + CATCH_UP:
            if time.monotonic() >= next_version:
                self.publish()
                next_version = time.monotonic() + 3
            self.turn()
            time.sleep(0.02)
        self.took = time.monotonic() - begin
        if self.behind():
            late = ", ".join(f"{engine} has {self.outputs.newest[engine]}" for engine in self.behind())
            after = f"{CATCH_UP:.0f} s after the storm version {self.version}"
            self.violations.append(f"{after} is not everywhere: {late}")

    def behind(self) -> list[str]:
        """The engines that have not written the last version."""
        return [engine for engine, newest in self.outputs.newest.items() if newest < self.version]

    def summary(self) -> str:
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        checked = ", ".join(f"{engine} {count}" for engine, count in self.outputs.checked.items())
        return f"{self.version} versions published; compared: {checked}; faults: {faults}"

    def close(self) -> None:
        for _, action in self.undo:  # Who is frozen does not even die.
            action()
        self.end_retired()
        for one in [*self.all.values(), *self.ended]:
            one.running.kill()


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def limit_descriptors(pid: int, most: int | None) -> None:
    """None: as many as the hard limit allows, which is what every process takes at its start."""
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard if most is None else most, hard))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    options = parser.parse_args()
    enter_namespaces()
    folder = pathlib.Path(harness.tempfile.mkdtemp(prefix="wc-storm-"))
    run("mount", "-t", "tmpfs", "tmpfs", folder)  # Gone with this namespace.
    storm = Storm(folder, options.seed)
    try:
        storm.blow(options.minutes * 60)
        if not storm.violations and not storm.outputs.wrong:
            storm.settle()
        for said, count in storm.ends.most_common():
            print(f"storm: ended {count} times by itself: {said}")
        for wrong in [*storm.outputs.wrong, *storm.violations]:
            print(f"storm: VIOLATION: {wrong}")
        if storm.violations or storm.outputs.wrong:
            for name, one in storm.all.items():
                print(f"--- {name}\n{one.running.errors()[-3000:]}")
            return 1
        print(f"storm: seed {options.seed}: {storm.summary()}; caught up in {storm.took:.1f} s")
        return 0
    finally:
        storm.close()


if __name__ == "__main__":
    sys.exit(main())
