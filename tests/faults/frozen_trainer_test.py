"""A trainer that is frozen in the middle of a write over shared memory.

The shared word by which a writer says that it is busy (docs/wire.md, shm) tells when. Frozen by SIGSTOP, and
by the freezer of control groups where that can be written to.
"""

import contextlib
import os
import pathlib
import re
import signal
import time
import unittest
from collections.abc import Callable, Iterator

from harness import Job, JobTest, main, wait_until

# 16 MB, so that an update takes long enough to be caught in a write.
LARGE = {f"layer.{i}.weight": ("BF16", [2048, 2048]) for i in range(2)}
# src/transport/shm/layout.h: struct Inbox has 33,600 bytes, `busy` at 704.
INBOX = 36864
BUSY = 704
CATCH = 15.0


def busy_words(pid: int) -> list[int]:
    """Where the busy words of this process' links lie in its memory."""
    words = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        if "memfd:weightcast-link" in line and end - begin == INBOX:
            words.append(begin + BUSY)
    return words


class Stop:
    """SIGSTOP and SIGCONT."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        tasks = pathlib.Path(f"/proc/{self._pid}/task")
        wait_until(
            lambda: all(re.search(r"\) [TtZ]", (t / "stat").read_text()) for t in tasks.iterdir()), "it stops"
        )

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.thaw()


class Freezer:
    """The freezer of control groups, version 2 or 1. Raises OSError where it cannot be used."""

    def __init__(self, pid: int) -> None:
        for root, control, self._on, self._off in (
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ):
            self._group = pathlib.Path(root) / f"weightcast-test-{os.getpid()}"
            self._control = self._group / control
            with contextlib.suppress(OSError):
                self._group.mkdir()
                if self._control.exists():
                    break
                self._group.rmdir()
        else:
            raise OSError("no freezer of control groups that can be written to")
        self._home = self._group.parent / "cgroup.procs"
        self._pid = pid
        (self._group / "cgroup.procs").write_text(str(pid))

    def _frozen(self) -> bool:
        events = self._group / "cgroup.events"
        if self._on == "1":
            return "frozen 1" in events.read_text()
        return self._control.read_text().strip() == self._on

    def freeze(self) -> None:
        self._control.write_text(self._on)
        wait_until(self._frozen, "it freezes")

    def thaw(self) -> None:
        self._control.write_text(self._off)

    def close(self) -> None:
        self.thaw()
        with contextlib.suppress(OSError):
            self._home.write_text(str(self._pid))
        wait_until(lambda: not (self._group / "cgroup.procs").read_text(), "the group is empty")
        self._group.rmdir()


def catch_in_write(job: Job, engine: str, freezer: Stop | Freezer) -> None:
    """Publishes until the frozen trainer is in the middle of a write to this engine."""
    target = job.processes[f"engine-{engine}-0"].process.pid
    end = time.monotonic() + CATCH
    with open(f"/proc/{target}/mem", "rb", buffering=0) as memory:

        def busy() -> bool:
            return any(
                int.from_bytes(os.pread(memory.fileno(), 8, word), "little") % 2 == 1 for word in words
            )

        while time.monotonic() < end:
            version = job.write()
            words = busy_words(target)
            look = time.monotonic() + 0.2
            while not job.serves(engine, version) and time.monotonic() < end:
                while time.monotonic() < look:
                    if not busy():
                        continue
                    freezer.freeze()
                    if busy():
                        return
                    freezer.thaw()
                look = time.monotonic() + 0.2
    raise AssertionError(f"the trainer was not caught in a write within {CATCH} s")


class FrozenTrainer(JobTest):
    @contextlib.contextmanager
    def frozen(self, landing: str, kind: Callable) -> Iterator[tuple[Job, Stop | Freezer]]:
        """Two engines that serve a version, and their trainer frozen in a write to engine a."""
        with self.job(weights=LARGE) as job:
            job.start_controller("--min-engines", 2, "--policy", "each")
            trainer = job.start_trainer()
            for engine in "ab":
                job.start_engine(engine, 0, 1, "--landing", landing, "--log-level=info")
            job.publish()
            try:
                freezer = kind(trainer.process.pid)
            except OSError as error:
                self.skipTest(str(error))
            with contextlib.closing(freezer):
                catch_in_write(job, "a", freezer)
                yield job, freezer

    def log_of(self, job: Job, engine: str) -> str:
        return job.processes[f"engine-{engine}-0"].errors()

    def replace_trainer(self, job: Job) -> None:
        """Another process takes the rank of the one that is frozen."""
        job.processes["frozen"] = job.processes["trainer-0"]
        job.start_trainer()

    def check_goes_on(self, job: Job) -> None:
        job.check_alive()
        job.publish()
        job.check_alive()

    def check_shadow(self, kind: Callable) -> None:
        with self.frozen("shadow", kind) as (job, freezer):
            pid = job.processes["trainer-0"].process.pid
            wait_until(lambda: "set aside" in self.log_of(job, "a"), "engine a sets its buffer aside")
            self.assertRegex(self.log_of(job, "a"), rf"trainer 0 \(.*pid {pid}.*\) is stopped in the middle")
            self.replace_trainer(job)
            self.check_goes_on(job)  # Engine a too, while the writer is frozen still.
            freezer.thaw()
            wait_until(lambda: "is free again" in self.log_of(job, "a"), "the buffer is given back")
            self.check_goes_on_without_frozen(job)

    def check_goes_on_without_frozen(self, job: Job) -> None:
        """The one that was frozen may have ended: another holds its rank."""
        job.processes.pop("frozen").close()
        self.check_goes_on(job)

    def test_with_a_spare_buffer_the_engine_takes_another_one(self) -> None:
        self.check_shadow(Stop)

    def test_the_same_by_the_freezer(self) -> None:
        self.check_shadow(Freezer)

    def test_with_a_spare_buffer_all_goes_on_when_it_is_thawed(self) -> None:
        with self.frozen("shadow", Stop) as (job, freezer):
            wait_until(lambda: "set aside" in self.log_of(job, "a"), "engine a sets its buffer aside")
            freezer.thaw()
            job.wait_served(job.version)
            self.check_goes_on(job)

    def test_in_place_the_engine_waits_and_says_for_whom(self) -> None:
        with self.frozen("in_place", Stop) as (job, freezer):
            pid = job.processes["trainer-0"].process.pid
            said = rf"trainer 0 \(.*pid {pid}.*\) is stopped in the middle of a write into the live tensors"
            wait_until(lambda: re.search(said, self.log_of(job, "a")), "engine a says who holds its memory")
            self.replace_trainer(job)
            job.wait_served(job.version, engines=["b"])
            time.sleep(3)  # Longer than two leases, after which the engine gave up before.
            job.check_alive()
            self.assertEqual(len(re.findall("is stopped in the middle", self.log_of(job, "a"))), 1)
            freezer.thaw()
            job.wait_served(job.version)
            self.check_goes_on_without_frozen(job)

    def test_in_place_the_engine_goes_on_when_the_writer_is_killed(self) -> None:
        with self.frozen("in_place", Stop) as (job, _):
            wait_until(lambda: "is stopped in the middle" in self.log_of(job, "a"), "engine a waits")
            self.replace_trainer(job)
            job.wait_served(job.version, engines=["b"])
            self.check_goes_on_without_frozen(job)
            job.wait_served(job.version)

    def test_an_engine_that_is_held_ends_when_it_is_asked_to(self) -> None:
        with self.frozen("in_place", Stop) as (job, _):
            wait_until(lambda: "is stopped in the middle" in self.log_of(job, "a"), "engine a waits")
            ended = job.processes["engine-a-0"].stop(timeout=15)
            self.assertIn(ended.returncode, (0, 128 + signal.SIGTERM), ended.stderr)
            last = ended.stderr.splitlines()[-1]
            self.assertRegex(last, "still waited for other processes|stopped or unreachable,? may still")


if __name__ == "__main__":
    unittest.TestCase.longMessage = True
    main()
