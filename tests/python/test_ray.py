"""examples/ray_loop.py, with an inference actor whose process is killed."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from conftest import ROOT
from processes import Process

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ray", minversion="2.40")

HOLD_AT, ITERATIONS = 6, 12
# Training goes on without the engine up to iteration HOLD_AT, and then waits for what the test does.
REWARD = f"""
import pathlib, time

calls = 0

def reward(prompts, completions):
    global calls
    calls += 1
    while calls == {HOLD_AT} and not pathlib.Path("GO").exists():
        time.sleep(0.05)
    return [len(set(one)) / 10 for one in completions]
"""
Found = TypeVar("Found")


class Run:
    """The example in a process of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.go, self.report, self.log = folder / "go", folder / "report", folder / "log"
        (folder / "gated.py").write_text(REWARD.replace("GO", str(self.go)))
        options = {
            "rl_iterations": ITERATIONS, "rollouts_per_gpu": 2, "samples_per_prompt": 2, "max_gen_length": 4,
            "lease": 2, "reward": "gated:reward", "output": self.report,
        }  # fmt: skip
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        environment = {
            "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1",
            "RAY_AUTH_TOKEN_PATH": str(folder / "auth_token"), "WEIGHTCAST_TOKEN": "of-a-test-for-ray-actors",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # It listens on this host alone.
            "RAY_raylet_start_wait_time_s": "120",
        }  # fmt: skip
        (folder / "auth_token").write_text("ray-token-of-this-test-0123456789abcdef")
        command = [sys.executable, ROOT / "examples" / "ray_loop.py", *flags]
        self.process = Process(*command, env=environment, log=self.log, stderr=subprocess.STDOUT)

    def iterations(self) -> list[dict]:
        file = self.report / "iterations.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def processes(self, engine: str) -> list[int]:
        return [int(one) for one in re.findall(rf"{engine} is process (\d+)", self.log.read_text())]

    def until(self, condition: Callable[[], Found], seconds: float = 120) -> Found:
        return self.process.wait_until(condition, seconds)


@pytest.fixture
def run(tmp_path: pathlib.Path) -> Iterator[Run]:
    started = Run(tmp_path)
    yield started
    started.go.touch()
    if started.process.running():
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.process.stop(signal.SIGINT, 30)  # Ray ends its own processes.
    started.process.close()


@pytest.mark.timeout(600)
def test_a_killed_inference_actor_rejoins(run: Run) -> None:
    run.until(lambda: len(run.iterations()) >= 2)
    (first,) = run.processes("engine-0")
    os.kill(first, signal.SIGKILL)
    run.until(lambda: len(run.iterations()) == HOLD_AT - 1)
    second = run.until(lambda: run.processes("engine-0")[1:])
    assert second != [first]
    time.sleep(1)
    run.go.touch()
    assert run.process.wait(120) == 0, run.log.read_text()
    assert "done; started again: engine-0;" in run.log.read_text()
    receivers = [set(one["transfers"][0]["receivers"]) for one in run.iterations()]
    assert len(receivers) == ITERATIONS
    assert {"engine-1 rank 0"} in receivers and len(receivers[-1]) == 2, receivers
