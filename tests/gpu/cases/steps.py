"""Steps of a run, one after the other: each has a time limit, a line in a table, its output in one log."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field
from typing import Any


class Stop(Exception):
    """A step failed, and with it the run."""


@dataclass
class Step:
    stage: str
    name: str
    outcome: str  # "ok", "failed" or "left out"
    seconds: float = 0.0
    note: str = ""
    figures: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Tools:
    """What the steps run."""

    python: str
    weightcast: pathlib.Path
    contract: pathlib.Path
    kernels: pathlib.Path
    probe: pathlib.Path
    site: pathlib.Path  # With the Python package.
    fake: pathlib.Path | None  # The library of the fake driver; None: real GPUs.
    gpus: int


class Steps:
    def __init__(self, out: pathlib.Path, tools: Tools) -> None:
        self.out, self.tools = out, tools
        self.stage = ""
        self.all: list[Step] = []
        out.mkdir(parents=True, exist_ok=True)
        self._log = (out / "log.txt").open("w")

    def environment(self, folder: str, more: dict[str, str]) -> dict[str, str]:
        here = pathlib.Path(__file__).resolve().parent
        paths = [self.tools.site, here, here.parents[2] / "bench"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        if self.tools.fake is not None:
            # Each step has a machine of its own; more devices than memory would be needed cost nothing.
            environment["WEIGHTCAST_CUDA_LIBRARY"] = str(self.tools.fake)
            environment["FAKE_CUDA"] = f"dir={folder},gpus={self.tools.gpus},gib=2"
        return environment | more

    def run(self, name: str, *command: Any, limit: float = 120, **more: str) -> None:
        """A program to its end; lines of its output that are JSON objects are figures."""
        words = [str(word) for word in command]
        began = time.monotonic()
        self._log.write(f"\n===== {self.stage}: {name}\n$ {' '.join(words)}\n")
        with tempfile.TemporaryDirectory() as folder:
            status, text = self._program(words, self.environment(folder, more), limit)
            left = self._left(folder) if self.tools.fake is not None and status == 0 else []
        self._log.write(text)
        self._log.flush()
        step = Step(self.stage, name, "ok", round(time.monotonic() - began, 1), figures=_figures(text))
        if status != 0 or left:
            last = (text.strip().splitlines() or ["it printed nothing"])[-1]
            step.outcome = "failed"
            step.note = f"{left} is left of the fake machine" if left else f"status {status}: {last}"
        self._take(step)

    @staticmethod
    def _left(folder: str) -> list[str]:
        """What the fake machine leaves; it ends a moment after its last process."""
        deadline = time.monotonic() + 5
        while (left := os.listdir(folder)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    @staticmethod
    def _program(words: list[str], environment: dict[str, str], limit: float) -> tuple[int, str]:
        """Its status and output. At the limit it ends with all its children: they share its session."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            program = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                status = program.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
                status = 124
            output.seek(0)
            return status, output.read() + ("" if status != 124 else f"\nended after {limit:.0f} s\n")

    def leave_out(self, name: str, why: str) -> None:
        self._take(Step(self.stage, name, "left out", note=why))

    def expect(self, name: str, holds: bool, note: str) -> None:
        self._take(Step(self.stage, name, "ok" if holds else "failed", note=note))

    def _take(self, step: Step) -> None:
        self.all.append(step)
        print(f"{step.stage} {step.name}: {step.outcome} {step.seconds} s {step.note}", flush=True)
        for one in step.figures:
            print("   ", json.dumps(one), flush=True)
        # After each step, so that a run that is cut off has left what it had.
        (self.out / "results.json").write_text(json.dumps([asdict(one) for one in self.all], indent=1))
        if step.outcome == "failed":
            raise Stop(f"{step.stage} {step.name}: {step.note}")

    def table(self) -> str:
        lines = ["| stage | step | outcome | s | note |", "|---|---|---|---|---|"]
        for one in self.all:
            cells = [one.stage, one.name, one.outcome, f"{one.seconds:.1f}", one.note.replace("|", "/")[:200]]
            lines.append("| " + " | ".join(cells) + " |")
        rows = [figure for one in self.all for figure in one.figures]
        if rows:
            lines += ["", "| figure | predicted | measured | unit | note |", "|---|---|---|---|---|"]
            keys = ("experiment", "predicted", "measured", "unit", "note")
            lines += ["| " + " | ".join(str(row.get(key, "")) for key in keys) + " |" for row in rows]
        return "\n".join(lines) + "\n"


def _figures(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        if not line.startswith('{"experiment"'):
            continue
        found.append(json.loads(line))
    return found
