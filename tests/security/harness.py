"""Small jobs of stand-alone commands, and floods against them, for tests/security and tests/faults.

Python's standard library only: ctest runs these tests with the system's interpreter. A job is a controller,
trainers that watch a folder and engines that write what they serve; all are processes of the binary in
WC_TEST_BINARY.
"""

import contextlib
import encodings.idna  # noqa: F401  (an attacker's connect wants it, and may not read it any more)
import multiprocessing
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("WC_TEST_BINARY", str(ROOT / "build" / "debug" / "weightcast"))
sys.path.insert(0, str(ROOT / "tests" / "python"))

from cli import Running, write_checkpoint  # noqa: E402
from processes import memory_peak, wait_until  # noqa: E402

# Time limits of seconds, so that a test of a failure takes seconds.
QUICK = ["--lease=1", "--connect-timeout=5", "--timeout=20", "--commit-timeout=10"]
NOBODY = 65534
MIB = 1 << 20
# 4 MB: large enough to see where an update stands still, small enough for a debug build.
WEIGHTS = {f"layer.{i}.weight": ("BF16", [512, 512]) for i in range(8)}


class Job:
    """One controller, `trainers` trainers and engines, all on loopback. Ends all of them in `close`."""

    def __init__(
        self, trainers: int = 1, settings: list[str] | None = None, weights: dict | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="wc-job-")
        self.folder = pathlib.Path(self._folder.name)
        self.settings = QUICK if settings is None else settings
        self.weights = weights or WEIGHTS
        self.checkpoints = self.folder / "checkpoints"
        self.output = self.folder / "output"
        self.checkpoints.mkdir()
        self.processes: dict[str, Running] = {}
        self.world_size = trainers
        self.version = 0
        self.engines: dict[str, int] = {}
        self.address = "127.0.0.1:0"

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, *arguments: object, prefix: list[str] | None = None, **options) -> Running:
        """Starts a command under `name`; `prefix` goes before it, such as `prlimit --nofile=64`."""
        self.processes[name] = Running(*arguments, *self.settings, prefix=prefix or [], **options)
        return self.processes[name]

    def start_controller(self, *more: object, listen: str = "", **options) -> Running:
        """On a free port of loopback, or again at the address that it had."""
        running = self.start("controller", "controller", "--listen", listen or self.address, *more, **options)
        line = running.line()
        assert line.startswith("listening at "), line
        self.address = line.removeprefix("listening at ")
        return running

    def start_trainer(self, rank: int = 0, *more: object, **options) -> Running:
        where = ["--controller", self.address, "--rank", rank, "--world-size", self.world_size]
        what = ["--checkpoint", self.checkpoints, "--watch", *more]
        return self.start(f"trainer-{rank}", "trainer", *where, *what, **options)

    def start_engine(
        self, engine: str = "a", rank: int = 0, ranks: int = 1, *more: object, **options
    ) -> Running:
        """`--like` is a checkpoint of the same tensors, which nobody publishes."""
        like = self.folder / "like"
        if not like.exists():
            write_checkpoint(like, seed=0, tensors=self.weights)
        self.engines[engine] = ranks
        where = ["--controller", self.address, "--engine", engine, "--rank", rank, "--world-size", ranks]
        what = ["--like", like, "--output", self.output, *more]
        return self.start(f"engine-{engine}-{rank}", "inference", *where, *what, **options)

    def start_all(self, engines: int = 1, landing: str = "in_place") -> "Job":
        """A controller, all trainers and `engines` engines of one rank; returns when version 1 is served."""
        self.start_controller("--min-engines", engines)
        for rank in range(self.world_size):
            self.start_trainer(rank)
        for number in range(engines):
            self.start_engine("abcdefgh"[number], 0, 1, "--landing", landing)
        self.publish()
        return self

    def write(self) -> int:
        """A new checkpoint, renamed into place; returns its version."""
        self.version += 1
        folder = self.checkpoints / f"step-{self.version}"
        write_checkpoint(folder, seed=self.version, tensors=self.weights)
        return self.version

    def serves(self, engine: str, version: int) -> bool:
        """Whether an engine of one rank has written this version, which it does after it serves it."""
        path = self._written(engine, version)
        published = self.checkpoints / f"step-{version}" / "model.safetensors"
        return path is not None and path.read_bytes() == published.read_bytes()

    def _written(self, engine: str, version: int) -> pathlib.Path | None:
        # A folder's name is <version> in the trainers' first run, <run>:<version> in later ones.
        found = [self.output / engine / str(version), *self.output.glob(f"{engine}/*:{version}")]
        return next((one / "model.safetensors" for one in found if one.exists()), None)

    def wait_served(self, version: int, timeout: float = 30, engines: list[str] | None = None) -> None:
        """Until every engine (of one rank) has written the version, each byte as published."""
        for engine in engines or self.engines:
            wait_until(
                lambda e=engine: self._written(e, version), f"version {version} at engine {engine}", timeout
            )
            assert self.serves(engine, version), f"engine {engine} holds other bytes than version {version}"

    def publish(self, timeout: float = 30) -> float:
        """A new version, until every engine has written it; returns how many seconds that took."""
        version = self.write()
        begin = time.monotonic()
        self.wait_served(version, timeout)
        return time.monotonic() - begin

    def lines(self) -> int:
        """How many lines all processes have logged so far."""
        return sum(len(one.errors().splitlines()) for one in self.processes.values())

    def check_alive(self) -> None:
        for name, one in self.processes.items():
            assert one.process.poll() is None, f"{name} has ended: {one.errors()[-2000:]}"

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{one.errors()[-4000:]}" for name, one in self.processes.items())

    def close(self) -> None:
        for one in self.processes.values():
            one.close()
        self._folder.cleanup()


class Attacker:
    """Runs `attack(stop, tried, *arguments)` in another process: nice 19, and another user if we are root.

    `attack` returns soon after `stop()` is true and calls `tried()` for each attempt. Import what it needs
    at the top of the module: the other user may not read the interpreter's folders.
    """

    def __init__(
        self, attack: Callable, *arguments: object, seconds: float = 5, same_user: bool = False
    ) -> None:
        fork = multiprocessing.get_context("fork")
        self._attempts = fork.Value("L", 0)
        self._stop = fork.Event()
        self._process = fork.Process(
            target=self._run, args=(attack, arguments, seconds, same_user), daemon=True
        )

    def _run(self, attack: Callable, arguments: tuple, seconds: float, same_user: bool) -> None:
        os.nice(19)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        if os.geteuid() == 0 and not same_user:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        end = time.monotonic() + seconds

        def tried() -> None:
            self._attempts.value += 1

        attack(lambda: self._stop.is_set() or time.monotonic() > end, tried, *arguments)

    @property
    def attempts(self) -> int:
        return self._attempts.value

    def __enter__(self) -> "Attacker":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(10)


class JobTest(unittest.TestCase):
    """What every flood is held to."""

    @contextlib.contextmanager
    def job(self, *arguments, **options) -> Iterator[Job]:
        with Job(*arguments, **options) as job:
            try:
                yield job
            except BaseException:
                print(job.logs(), file=sys.stderr)
                raise

    def check_flood(
        self, job: Job, attack: Callable, *arguments: object, attempts: int = 50, seconds: float = 4
    ):
        """An honest update under the flood takes at most max(3x its quiet time, 0.5 s); the controller's
        peak of memory rises by at most 64 MiB; at most one line a second is logged; all works afterwards.

        `job` is started and has served a version. `attempts`: how many the attacker must have made by then.
        """
        quiet = [job.publish() for _ in range(3)]
        controller = job.processes["controller"].process.pid
        peak = memory_peak(controller)
        before = job.lines()
        job.publish()
        of_an_update = job.lines() - before
        before, begin = job.lines(), time.monotonic()
        with Attacker(attack, *arguments, seconds=seconds + 30) as attacker:
            wait_until(lambda: attacker.attempts >= attempts, f"{attempts} attempts of the attacker")
            under = job.publish()
            updates = 1
            while time.monotonic() - begin < seconds:
                job.publish()
                updates += 1
            tried = attacker.attempts
        took = time.monotonic() - begin
        logged = job.lines() - before - of_an_update * updates
        rise = memory_peak(controller) - peak
        limit = max(3 * statistics.median(quiet), 0.5)
        print(
            f"{self.id()}: {tried} attempts in {took:.1f} s; update {under:.3f} s, quiet "
            f"{statistics.median(quiet):.3f} s; {logged} lines more; controller {rise / MIB:+.1f} MiB",
            file=sys.stderr,
        )
        self.assertLessEqual(under, limit, "the honest update took too long")
        self.assertLessEqual(rise, 64 * MIB, "the controller took too much memory")
        # One line at once, then one a second.
        self.assertLessEqual(logged, 1 + took, job.logs())
        job.check_alive()
        job.publish()


def main() -> None:
    unittest.main(verbosity=2, warnings="ignore")
