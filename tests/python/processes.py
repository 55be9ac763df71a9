"""The processes that tests start, and waits that have an end. Python's standard library only."""

import contextlib
import multiprocessing
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value], what: str | Callable[[], str] = "it happens", timeout: float = 30
) -> Value:
    """The first true value of `condition`; fails with `what` where there is none in time."""
    begin = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begin
        if waited > timeout:
            raise AssertionError(f"not within {timeout} s: {what if isinstance(what, str) else what()}")
        time.sleep(min(0.005 + waited / 20, 0.1))  # Exact where it is short, and cheap where it is long.
    return value


def memory_peak(pid: int) -> int:
    """The most bytes of memory that process `pid` has held so far (VmHWM)."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")


class Process:
    """A command that stays until it ends, or is killed: by `close`, or at the end of a `with` block.

    Its standard output is read line by line; `log` names a file that takes it instead. `env` is added to our
    environment, `environment` takes its place; `options` are those of subprocess.Popen.
    """

    def __init__(
        self,
        *command: object,
        env: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
        log: pathlib.Path | None = None,
        **options: Any,
    ) -> None:
        self.log = log
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it exists as long as this object)
        whole = {**os.environ, **(env or {})} if environment is None else environment
        with contextlib.nullcontext(subprocess.PIPE) if log is None else log.open("ab") as out:
            streams = {"stdout": out, "stderr": self._errors, **options}
            self.process = subprocess.Popen([str(word) for word in command], env=whole, **streams)
        self._seen = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def running(self) -> bool:
        return self.process.poll() is None

    def send_signal(self, number: int) -> None:
        self.process.send_signal(number)

    def line(self, timeout: float = 30) -> str:
        """The next line of its standard output."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._seen:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            assert ready, f"no line within {timeout} s; so far {self._seen!r}"
            part = os.read(self.process.stdout.fileno(), 65536)
            assert part, f"it ended: {self.errors()}"
            self._seen += part
        first, self._seen = self._seen.split(b"\n", 1)
        return first.decode()

    def hear(self, text: str, timeout: float = 120) -> None:
        """Until it prints this line; none before it may begin with "error"."""
        deadline = time.monotonic() + timeout
        while (line := self.line(deadline - time.monotonic())) != text:
            assert not line.startswith("error"), f"{line}; {self.errors()}"

    def say(self, text: str) -> None:
        """A line for its standard input, of `stdin=subprocess.PIPE`."""
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def errors(self) -> str:
        """Its standard error so far. The file's position is the child's."""
        file = self._errors.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def said(self) -> str:
        """How it has ended, if it has, and all that it has written to files."""
        written = self.log.read_text() if self.log else ""
        return f"exit code {self.process.poll()}\n{written}{self.errors()}"

    def wait_until(self, condition: Callable[[], Value], timeout: float = 30) -> Value:
        """The first true value of `condition`; fails where this ends before."""

        def found() -> Value:
            running = self.running()  # What it did last counts.
            value = condition()
            assert value or running, self.said()
            return value

        return wait_until(found, self.said, timeout)

    def wait(self, timeout: float = 30) -> int:
        """Its exit code, or minus the signal that ended it."""
        return self.process.wait(timeout)

    def end(self, timeout: float = 30) -> subprocess.CompletedProcess:
        """Waits for its end."""
        out, _ = self.process.communicate(timeout=timeout)
        text = (self._seen + (out or b"")).decode()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, text, self.errors())

    def stop(self, number: int = signal.SIGTERM, timeout: float = 10) -> subprocess.CompletedProcess:
        self.send_signal(number)
        return self.end(timeout)

    def kill(self) -> None:
        if self.running():
            self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        """Kills it; nothing of what it has written can be read any more but what is in `log`."""
        self.kill()
        for file in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):  # What was to be written goes nowhere.
                if file is not None:
                    file.close()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_spawn = multiprocessing.get_context("spawn")


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], results: Any) -> None:
    """Runs in the child; its outcome goes back whole, errors with their type's name."""
    try:
        results.put(("ok", function(*arguments)))
    except BaseException as error:  # the parent decides what is expected
        results.put((type(error).__name__, str(error) + "\n" + traceback.format_exc()))
        sys.exit(1)


class Child:
    """A function running in a process of its own."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._results = _spawn.Queue()
        self.process = _spawn.Process(target=_call, args=(function, arguments, self._results), daemon=True)
        self.process.start()

    def outcome(self, timeout: float = 60) -> tuple[str, Any]:
        """("ok", value) or (exception name, text)."""
        outcome = self._results.get(timeout=timeout)
        self.process.join(timeout)
        return outcome

    def value(self, timeout: float = 60) -> Any:
        kind, value = self.outcome(timeout)
        assert kind == "ok", value
        return value

    def end(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join(10)
