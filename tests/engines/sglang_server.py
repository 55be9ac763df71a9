"""A SGLang server on the CPU, and what the tests ask it."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from ports import free_port

START = 1200  # Seconds; an idle machine takes 35.


def environment(tp: int, **more: str) -> dict[str, str]:
    # SGLang would give each rank a NUMA node, of which this machine may have one only.
    cores = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank) for rank in range(tp))} if tp > 1 else {}
    return {
        **os.environ,
        **cores,
        "OMP_NUM_THREADS": "1",  # Threads that spin are slow where others want the cores.
        "TORCHDYNAMO_DISABLE": "1",  # It would compile for minutes what runs for milliseconds.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **more,
    }


class HTTPError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class Server:
    """more: of the environment, such as WEIGHTCAST_CONTROLLER."""

    def __init__(self, log: pathlib.Path, model: pathlib.Path, *, tp: int = 1, **more: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = log
        options = [
            "--model-path", str(model), "--host", "127.0.0.1", "--port", str(port), "--tp-size", str(tp),
            "--device", "cpu", "--dtype", "bfloat16", "--attention-backend", "torch_native",
            "--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-cuda-graph",
            "--disable-overlap-schedule", "--skip-tokenizer-init", "--skip-server-warmup",
            "--max-total-tokens", "4096", "--log-level", "info",
        ]  # fmt: skip
        with log.open("w") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *options],
                stdout=out, stderr=subprocess.STDOUT, env=environment(tp, **more), start_new_session=True,
                cwd=log.parent,
            )  # fmt: skip

    def ready(self) -> Server:
        """Waits until it answers."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.tail()
            try:
                self.get("/model_info")
                return self
            except (OSError, HTTPError):
                time.sleep(0.2)
        raise TimeoutError(self.tail())

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        return self._ask(urllib.request.Request(self.url + path, json.dumps(body).encode(), headers))

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Tokens, their log-probabilities, by how much each was ahead, and the versions that made them."""
        answer = self.post("/generate", {
            "input_ids": prompt, "return_logprob": True, "top_logprobs_num": 2,
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        })  # fmt: skip
        meta = answer["meta_info"]
        return {
            "tokens": answer["output_ids"],
            "logprobs": [step[0] for step in meta["output_token_logprobs"]],
            "margin": min(two[0][0] - two[1][0] for two in meta["output_top_logprobs"]),
            "versions": [span["version"] for span in meta["weight_versions"]],
        }

    def tokens(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """One prompt at a time: the arithmetic of a batch may differ."""
        return [self.generate(prompt, count)["tokens"] for prompt in prompts]

    def end(self) -> None:
        """Kills the processes of its session, which are its own."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait(30)

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=900) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise HTTPError(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


class Flight:
    """Requests that are running meanwhile."""

    def __init__(self, server: Server, prompts: list[list[int]], tokens: int) -> None:
        self._server = server
        self._threads = concurrent.futures.ThreadPoolExecutor(len(prompts))
        self._answers = [self._threads.submit(server.generate, prompt, tokens) for prompt in prompts]

    def running(self) -> int:
        load = self._server.get("/v1/loads")["loads"]
        return sum(one["num_running_reqs"] for one in load)

    def started(self, timeout: float = 600) -> bool:
        """Whether all have got a token at least; waits for it."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.running() == len(self._answers):
                return True
            time.sleep(0.1)
        return False

    def end(self) -> list[dict[str, Any]]:
        self._threads.shutdown(wait=True)
        return [one.result() for one in self._answers]
