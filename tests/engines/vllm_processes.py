"""The tests' side of `vllm_process.py`."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
# Tests of TRL run in an environment without vLLM.
_OF_VLLM = HERE.parents[1] / ".engines" / "vllm" / "bin" / "python"
PYTHON = pathlib.Path(sys.executable) if importlib.util.find_spec("vllm") else _OF_VLLM
START = 900  # Seconds; an idle machine takes 20.
CALL = 300


def environment(folder: pathlib.Path, **more: str) -> dict[str, str]:
    """What vLLM's CPU build wants, and the name by which it looks itself up."""
    version = os.environ.get("ENGINE_VERSION", "0.32.0")
    name = folder / "names" / f"vllm-{version}+cpu.dist-info"
    name.mkdir(parents=True, exist_ok=True)
    (name / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    path = [str(name.parent), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_CI_ENV": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",  # Threads that spin are slow where others want the cores.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "weightcast",
        "VLLM_LOGGING_LEVEL": "WARNING",
        **more,
    }


class RemoteError(Exception):
    """What a call raised in the engine's process."""


class Process:
    """Calls by name: `process.call("generate", prompts, 16)`. Its last lines are in what it raises."""

    def __init__(
        self, folder: pathlib.Path, log: str, /, *, env: dict[str, str] | None = None, **options: Any
    ):
        more = {} if options.get("tp", 1) > 1 else {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{log}.log"
        with self._log.open("w") as out:
            self._process = subprocess.Popen(
                [str(PYTHON), str(HERE / "vllm_process.py"), json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True, bufsize=1,
                env=environment(folder, **more, **(env or {})), start_new_session=True,
            )  # fmt: skip
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> Process:
        self._answer(START)
        return self

    def call(self, name: str, *arguments: Any, timeout: float = CALL) -> Any:
        self.send(name, *arguments)
        return self.result(timeout)

    def send(self, name: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")

    def result(self, timeout: float = CALL) -> Any:
        return self._answer(timeout).get("value")

    def end(self) -> None:
        """Kills the processes of its session, which are its own."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no answer in {timeout} s; {self._tail()}") from None
        if not line:
            raise RemoteError(f"the process has ended; {self._tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(answer["error"])
        return answer

    def _tail(self) -> str:
        return f"{self._log}:\n" + self.log[-3000:]


class Client:
    """vLLM's `VLLMWeightSyncClient` for an engine of these tests."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.seconds: list[float] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._process.call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._process.call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.seconds.append(self._process.call("update_weights", update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._process.call("finish_weight_update", weight_version)
