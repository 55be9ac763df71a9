"""`vllm serve` with weightcast in its front end, and what the tests ask it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from documented import command
from ports import free_port
from vllm_models import VOCABULARY
from vllm_processes import PYTHON, START, environment


def write_tokenizer(folder: pathlib.Path) -> None:
    """Token 17 is the word w17."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="w2", bos_token="w0", eos_token="w1"
    ).save_pretrained(folder)


class Server:
    def __init__(
        self,
        folder: pathlib.Path,
        model: pathlib.Path,
        controller: str,
        engine: str,
        log: str = "",
        options: list[str] | None = None,
        leads: bool = True,
        **more: str,
    ) -> None:
        """options: more of the command line. leads: its front end, each update. more: of its environment."""
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.log = folder / f"{log or engine}.log"
        documented, line = command("vLLM", "vllm serve", int(leads), MODEL=str(model))
        if leads:
            documented |= {"WEIGHTCAST_CONTROLLER": controller, "WEIGHTCAST_ENGINE": engine}
        env = environment(folder)
        del env["VLLM_PLUGINS"]  # Documented where it is needed.
        env |= {**documented, **more}
        arguments = [
            "--port", str(port), "--host", "127.0.0.1", "--dtype", "bfloat16", "--enforce-eager",
            "--served-model-name", "m", "--max-model-len", "256", "--max-num-seqs", "8",
            "--no-enable-prefix-caching",
        ]  # fmt: skip
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [str(PYTHON.parent / line[0]), *line[1:], *arguments, *(options or [])],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                cwd=folder,
            )

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def text(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as response:
            return response.read().decode()

    def up(self) -> Server:
        """Waits until it answers."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
            try:
                self.get("/health")
                return self
            except OSError:
                time.sleep(0.2)
        raise TimeoutError(self.log.read_text(errors="replace")[-4000:])

    def ready(self) -> tuple[int, Any]:
        return self.get("/weightcast/ready")

    def admitted(self) -> int:
        """Waits until requests may be sent; the version."""
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            status, answer = self.ready()
            if status == 200:
                return answer["version"]
            time.sleep(0.05)
        raise TimeoutError(f"{answer}; {self.log.read_text(errors='replace')[-4000:]}")

    def stream(self, prompt: list[int], tokens: int, heard: Any = None) -> list[int]:
        """The tokens, as they come; `heard` is called at each."""
        body = {
            "model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        found: list[int] = []
        with urllib.request.urlopen(request, timeout=300) as response:
            for line in response:
                text = line.decode().removeprefix("data: ").strip()
                if text and text != "[DONE]":
                    found += json.loads(text)["choices"][0]["token_ids"] or []
                    if heard is not None:
                        heard(len(found))
        return found

    def end(self) -> None:
        """Kills the processes of its session, which are its own."""
        import os

        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait(30)


class Flight:
    """Requests that are streaming meanwhile."""

    def __init__(self, server: Server, prompts: list[list[int]], tokens: int) -> None:
        self._server, self._tokens = server, tokens
        self.results: dict[int, Any] = {}
        self.progress: dict[int, int] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(number, prompt), daemon=True)
            for number, prompt in enumerate(prompts)
        ]
        for thread in self._threads:
            thread.start()

    def reached(self, tokens: int, timeout: float = 60) -> bool:
        """Whether all have got so many; waits for it."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if len(self.progress) == len(self._threads) and min(self.progress.values()) >= tokens:
                return True
            time.sleep(0.005)
        return False

    def end(self) -> dict[int, Any]:
        for thread in self._threads:
            thread.join(300)
        return self.results

    def _run(self, number: int, prompt: list[int]) -> None:
        try:
            self.results[number] = self._server.stream(
                prompt, self._tokens, lambda count: self.progress.__setitem__(number, count)
            )
        except Exception as error:
            self.results[number] = error
