"""Runs the binary for tests: one-shot commands, processes that stay, and small checkpoints for them."""

import json
import os
import pathlib
import select
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = pathlib.Path(os.environ.get("WC_TEST_BINARY", ROOT / "build" / "weightcast"))
# Short time limits, so that a test of a failure takes seconds.
FAST = ["--lease=1", "--connect-timeout=5", "--timeout=20", "--commit-timeout=10"]
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I64": 8}


def run(*arguments: object, timeout: float = 60, prefix: Iterable[str] = (), **options: Any):
    """A command to its end."""
    command = [*prefix, str(BINARY), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def only_json(result: subprocess.CompletedProcess) -> dict:
    """The one object on standard output, and nothing else there."""
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.stdout
    return json.loads(lines[0])


def fails(result: subprocess.CompletedProcess, *words: str) -> str:
    """A non-zero exit, nothing on standard output, and a last line that says what was wrong."""
    assert result.returncode != 0, result.stdout
    errors = [line for line in result.stderr.splitlines() if line.startswith("weightcast: ")]
    assert len(errors) == 1, result.stderr
    for word in words:
        assert word in errors[0], errors[0]
    return errors[0]


class Running:
    """A command that stays; its standard output is read line by line."""

    def __init__(self, *arguments: object, prefix: Iterable[str] = (), env: dict[str, str] | None = None):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as this object)
        self.process = subprocess.Popen(
            [*prefix, str(BINARY), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(env or {})},
        )
        self._seen = b""

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

    def end(self, timeout: float = 30) -> subprocess.CompletedProcess:
        """Waits for its end."""
        out, _ = self.process.communicate(timeout=timeout)
        text = (self._seen + out).decode()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, text, self.errors())

    def errors(self) -> str:
        """Its standard error so far. The file's position is the child's."""
        file = self._errors.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode()

    def stop(self, number: int = signal.SIGTERM, timeout: float = 10) -> subprocess.CompletedProcess:
        self.process.send_signal(number)
        return self.end(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


def elements(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def pseudo_random(seed: int, size: int) -> bytes:
    """A linear congruence, bytewise; it repeats after 64 KiB. Other seeds: other bytes, modulo 256."""
    block = bytes((seed * 31 + i * 7 + (i >> 8)) & 0xFF for i in range(1 << 16))
    return (block * (size // len(block) + 1))[:size]


def write_safetensors(
    path: pathlib.Path, tensors: dict[str, tuple[str, list[int]]], seed: int = 0, metadata: dict | None = None
) -> bytes:
    """A file of pseudo-random bytes that depend on `seed`; returns all of it."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = elements(shape) * SIZES.get(dtype, 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + pseudo_random(seed, at)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole)
    return whole


TINY = {
    "wte.weight": ("F32", [1000, 64]),
    "h.0.attn.weight": ("BF16", [64, 192]),
    "h.0.attn.bias": ("F32", [192]),
    "h.0.mlp.weight": ("BF16", [257, 64]),
    "ln_f.scale": ("F32", []),
}


def write_checkpoint(folder: pathlib.Path, seed: int = 0, tensors: dict | None = None) -> bytes:
    """FOLDER/model.safetensors, made under a hidden name and renamed into place."""
    making = folder.parent / f".{folder.name}.making"
    whole = write_safetensors(making / "model.safetensors", tensors or TINY, seed, {"format": "pt"})
    making.rename(folder)
    return whole
