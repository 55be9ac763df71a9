"""A small job whose updates can be made slow, each in one known way, from outside or by lateness on request.

For explain_test.py. Python's standard library only.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("WC_TEST_BINARY", str(ROOT / "build" / "debug" / "weightcast"))
WORKER = os.environ.get(
    "WC_EXPLAIN_WORKER", str(ROOT / "build" / "debug" / "tests" / "explain" / "explain_worker")
)
sys.path.insert(0, str(ROOT / "tests" / "python"))

from cli import Running, only_json, run  # noqa: E402
from processes import Process  # noqa: E402

SHAPE = (4, 1024, 1024)  # Tensors, rows, columns: 16 MB of float32.


def talking(*arguments: object, prefix: Iterable[str] = (), env: dict[str, str] | None = None) -> Process:
    """A worker that is told what to do."""
    return Process(*prefix, WORKER, *arguments, env=env, stdin=subprocess.PIPE)


class Scene:
    """A controller, `trainers` trainers and `engines` engines of one rank, which update at `update`."""

    def __init__(
        self,
        trainers: int = 2,
        engines: int = 2,
        dtype: str = "F32",
        shape: tuple[int, int, int] = SHAPE,
        inside: dict[str, list[str]] | None = None,
        listen: str = "127.0.0.1:0",
        settings: dict[str, str] | None = None,
    ) -> None:
        """`inside`: what to put before the command of a process, by its name ("trainer 0", "engine e1")."""
        self._folder = tempfile.TemporaryDirectory()
        token = pathlib.Path(self._folder.name) / "token"
        token.write_text("test-token-of-sufficient-length\n")
        token.chmod(0o600)
        self._env = {"WEIGHTCAST_TOKEN_FILE": str(token), **(settings or {})}
        self._inside = inside or {}
        self.number = 0
        self.workers: dict[str, Process] = {}
        self.controller = Running(
            *["controller", "--listen", listen, "--min-engines", engines],
            prefix=self._inside.get("controller", []),
            env=self._env,
        )
        try:
            self.address = re.search(r"\S+:\d+", self.controller.line()).group().rstrip(".,;")
            for i in range(trainers):
                self._start(f"trainer {i}", "trainer", self.address, i, trainers, *shape)
            for i in range(engines):
                self._start(f"engine e{i}", "engine", self.address, f"e{i}", dtype, *shape)
            for worker in self.workers.values():
                worker.hear("registered")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *arguments: object) -> None:
        self.workers[name] = talking(*arguments, prefix=self._inside.get(name, []), env=self._env)

    def of(self, role: str) -> list[Process]:
        return [worker for name, worker in self.workers.items() if name.startswith(role)]

    def pid(self, name: str) -> int:
        return (self.controller if name == "controller" else self.workers[name]).pid

    def begin(self, late: dict[str, int] | None = None) -> None:
        """`late`: milliseconds by which a trainer publishes later, or an engine comes later to the update."""
        late = late or {}
        self.number += 1
        for name, worker in self.workers.items():
            if name in late and name.startswith("engine"):
                worker.say(f"late {late[name]}")
                worker.hear("late")
        for name, worker in self.workers.items():
            if name.startswith("trainer"):
                worker.say(f"publish {self.number} {late.get(name, 0)}")

    def end(self) -> dict:
        """What the controller says of the update that was begun."""
        for trainer in self.of("trainer"):
            trainer.hear(f"done {self.number}")
        deadline = time.monotonic() + 30
        while True:
            for update in self.explain("--update", self.number):
                # The trainers' spans come with their last sending, perhaps just behind the end.
                if all(source["spans"] for source in update["sources"]) or time.monotonic() > deadline:
                    return update
            assert time.monotonic() < deadline, f"the controller does not tell of version {self.number}"

    def update(self, late: dict[str, int] | None = None) -> dict:
        self.begin(late)
        return self.end()

    def explain(self, *arguments: object) -> list[dict]:
        result = run(
            *["explain", "--controller", self.address, "--json", *arguments],
            prefix=self._inside.get("controller", []),
            env={**os.environ, **self._env},
        )
        return [] if "remembers no update" in result.stderr else only_json(result)["updates"]

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        os.kill(self.pid(name), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid(name), signal.SIGCONT)

    @contextlib.contextmanager
    def starved(self, name: str, thread: str) -> Iterator[None]:
        """The threads of this name get what is left of one core whose rest a busy process takes."""
        core = min(os.sched_getaffinity(0))
        hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(hog.pid, {core})
        tasks = [
            int(task.name)
            for task in pathlib.Path(f"/proc/{self.pid(name)}/task").iterdir()
            if (task / "comm").read_text().strip() == thread
        ]
        before = {task: os.sched_getaffinity(task) for task in tasks}
        assert tasks, f"{name} has no thread {thread}"
        try:
            for task in tasks:
                os.sched_setaffinity(task, {core})
                os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
            yield
        finally:
            for task in tasks:
                os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))
                os.sched_setaffinity(task, before[task])
            hog.kill()
            hog.wait(10)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.controller.close()
        self._folder.cleanup()
