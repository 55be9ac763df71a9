"""Measures an engine for Python between two processes, as `weightcast bench p2p` measures its own.

Runs inside the engine's environment, which has numpy and nothing of ours: the source process starts the
target as a process of its own. Before each timed round the source writes new bytes, after it the
target reads them once; small transfers share a round, each with a place of its own; one untimed transfer
wakes both sides.
"""

import argparse
import json
import os
import pickle
import select
import statistics
import struct
import subprocess
import sys
import time
from typing import Any, Protocol

import numpy as np

ROUND_BYTES = 1 << 20
MOST_SLOTS = 1024
WAKE_BYTES = 4096  # At the end of the memory.
FEWEST_BYTES = 8 << 20  # From 4 MiB on numpy asks for huge pages, where it may.
HUGE_PAGE = 2 << 20


class Engine(Protocol):
    def __init__(self, memory: np.ndarray) -> None: ...
    def hello(self) -> Any: ...
    def meet(self, hello: Any) -> None: ...
    def prepare(self, pieces: list[tuple[int, int]]) -> Any:
        """A write of pieces (offset, length), to the same offsets of the peer's memory."""

    def write(self, prepared: Any) -> None:
        """Returns when the bytes have arrived."""

    def progress(self) -> None:
        """At the target, again and again."""


def parse_size(text: str) -> tuple[int, int]:
    """ "200x64K" → (pieces, bytes of each)."""
    pieces, _, size = text.rpartition("x")
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
    return int(pieces or 1), int(size.rstrip("KMG")) * unit


class Round:
    """The places of one round's transfers: as in weightcast's benchmark."""

    def __init__(self, size: str) -> None:
        self.iovs, self.piece = parse_size(size)
        self.bytes = self.iovs * self.piece
        span = self.piece if self.iovs == 1 else 2 * self.bytes
        self.stride = (span + 63) // 64 * 64
        self.slots = min(max(ROUND_BYTES // self.stride, 1), MOST_SLOTS)

    def pieces(self, slot: int) -> list[tuple[int, int]]:
        base = slot * self.stride
        return [(base + 2 * i * self.piece, self.piece) for i in range(self.iovs)]

    def words(self, memory: np.ndarray) -> np.ndarray:
        """All words that travel, as a view."""
        step = self.stride if self.iovs == 1 else 2 * self.piece
        count = self.slots if self.iovs == 1 else self.iovs
        whole = memory[: count * step].view(np.uint64).reshape(count, step // 8)
        return whole[:, : self.piece // 8]


def memory_for(sizes: list[str]) -> np.ndarray:
    most = max(FEWEST_BYTES, *(one.slots * one.stride for one in map(Round, sizes)))
    memory = np.empty(most + WAKE_BYTES + HUGE_PAGE, dtype=np.uint8)
    begin = -memory.ctypes.data % HUGE_PAGE  # Or the first bytes lie in small pages.
    memory = memory[begin : begin + most + WAKE_BYTES]
    memory[:] = 0
    return memory


def send(out: Any, message: Any) -> None:
    data = pickle.dumps(message)
    out.write(struct.pack("<I", len(data)) + data)
    out.flush()


def receive(source: Any) -> Any:
    (size,) = struct.unpack("<I", source.read(4))
    return pickle.loads(source.read(size))


def run_target(engine_type: type[Engine], sizes: list[str], core: int) -> None:
    os.sched_setaffinity(0, {core})
    # What the engine prints must not come between the messages.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = os.fdopen(0, "rb", buffering=0)
    memory = memory_for(sizes)
    engine = engine_type(memory)
    send(out, engine.hello())
    engine.meet(receive(source))
    send(out, "met")
    while True:
        while not select.select([source], [], [], 0)[0]:
            engine.progress()
        order = receive(source)
        if order is None:
            return
        # Reads every byte once.
        send(out, int(Round(order).words(memory).sum(dtype=np.uint64)))


def measure(engine: Engine, memory: np.ndarray, size: str, seconds: float, ask: Any) -> dict[str, Any]:
    this = Round(size)
    words = this.words(memory)
    transfers = [engine.prepare(this.pieces(slot)) for slot in range(this.slots)]
    wake = engine.prepare([(len(memory) - WAKE_BYTES, 8)])
    large = this.bytes >= 64 << 20
    warm_up, fewest = (1, 5) if large else (3, 10)
    times: list[float] = []
    number = 0
    start = time.perf_counter()
    while True:
        if number == warm_up:
            times, start = [], time.perf_counter()
        number += 1
        words[:] = number
        engine.write(wake)
        last = time.perf_counter()
        for transfer in transfers:
            engine.write(transfer)
            now = time.perf_counter()
            times.append(now - last)
            last = now
        if ask(size) != number * words.size:
            sys.exit(f"bytes differ after a write of {size}")
        enough = len(times) >= fewest and number > warm_up
        if enough and time.perf_counter() - start >= seconds:
            break
    p50 = statistics.median(times)
    return {"size": size, "gb_per_s": this.bytes / p50 / 1e9, "p50_us": p50 * 1e6}


def main(engine_type: type[Engine]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--target", action="store_true")
    arguments = parser.parse_args()
    sizes = arguments.sizes.split(",")
    cores = [int(core) for core in arguments.cores.split(",")]
    if arguments.target:
        run_target(engine_type, sizes, cores[1])
        return
    os.sched_setaffinity(0, {cores[0]})
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    command = [sys.executable, *sys.argv, "--target"]
    # The target may be given another network device.
    environment = {**os.environ, **json.loads(os.environ.get("PAIR_TARGET_ENVIRONMENT", "{}"))}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:

        def ask(order: Any) -> Any:
            send(target.stdin, order)
            return receive(target.stdout)

        try:
            memory = memory_for(sizes)
            engine = engine_type(memory)
            engine.meet(receive(target.stdout))
            ask(engine.hello())
            found = [measure(engine, memory, size, arguments.seconds, ask) for size in sizes]
            json.dump({"results": found}, results)
            results.flush()
        finally:
            # A graceful end of such engines may hang.
            target.kill()
    os._exit(0)
