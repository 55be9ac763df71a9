"""Runs the binary for tests: one-shot commands, processes that stay, and small checkpoints for them."""

import json
import os
import pathlib
import struct
import subprocess
from collections.abc import Iterable
from typing import Any

from processes import Process

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


class Running(Process):
    """A command of the binary that stays."""

    def __init__(self, *arguments: object, prefix: Iterable[str] = (), env: dict[str, str] | None = None):
        super().__init__(*prefix, BINARY, *arguments, env=env)


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
