#!/usr/bin/env python3
"""Times transfers and whole updates between GPUs beside what the hardware allows and beside NCCL and NIXL.

weightcast and the plain copy take turns; NCCL runs behind them. A figure is the median over the rounds, of
each round the maximum over its ranks. What is timed of weightcast and NCCL is checked on the device after
each round, every element. On one GPU the floor is a copy within it, and NCCL is left out: it wants a GPU for
each rank.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "gpu" / "cases"))

from cluster import Cluster  # noqa: E402
from gpu import Shape, on_fake  # noqa: E402
from models import bytes_of, qwen  # noqa: E402

Timed = Callable[[], float]  # One round; seconds.
ANNOUNCED = 0.02


class Updates:
    """weightcast: whole updates of a model, from publish to the last engine's receipt."""

    def __init__(self, shapes: list[Shape], trainers: list[int], engines: list[int]) -> None:
        self._cluster = Cluster(shapes, trainers, engines)
        self._version = 0
        self.data: list[float] = []  # Of each round that was not announced: its data part.

    def round(self, announced: float = 0) -> float:
        self._version += 1
        self._cluster.write(self._version)
        took = self._cluster.update(self._version, announced=announced)
        if not announced:
            self.data.append(self._cluster.data_part())
        return took

    def announced(self) -> float:
        """The same, announced as long before as an optimizer's last kernels take."""
        return self.round(ANNOUNCED)

    def close(self) -> None:
        self._cluster.__exit__(None)


def torch_copy(size: int, source: int, target: int) -> Timed:
    """A plain copy of as many bytes by torch: cudaMemcpyAsync, between GPUs cudaMemcpyPeerAsync."""
    import torch

    a = torch.full((size,), 3, dtype=torch.uint8, device=f"cuda:{source}")
    b = torch.zeros_like(a, device=f"cuda:{target}")

    def copy() -> float:
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        began = time.perf_counter()
        b.copy_(a)
        torch.cuda.synchronize(source)
        torch.cuda.synchronize(target)
        return time.perf_counter() - began

    return copy


def nccl_rank(rank: int, groups: list[list[int]], port: int, sizes: list[int], rounds: int, out: Any) -> None:
    """In each group the first rank broadcasts the tensors to the others, one by one; all groups at once."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    world = sum(len(group) for group in groups)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=device)
    made = [dist.new_group(group) for group in groups]
    ((group, source),) = [(made[at], one[0]) for at, one in enumerate(groups) if rank in one]
    tensors = [torch.full((size,), rank, dtype=torch.uint8, device=device) for size in sizes]
    found = []
    for turn in range(rounds + 2):  # Two to warm up.
        for one in tensors:
            one.fill_(turn if rank == source else 255)
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for one in tensors:
            dist.broadcast(one, source, group=group)
        torch.cuda.synchronize()
        took = torch.tensor([time.perf_counter() - began], device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        if not all(bool((one == turn).all()) for one in tensors):
            raise AssertionError(f"NCCL: rank {rank} has wrong bytes in round {turn}; try NCCL_P2P_DISABLE=1")
        found.append(float(took))
    if rank == 0:
        out.put(found[2:])
    dist.destroy_process_group()


def nccl(sizes: list[int], groups: list[list[int]], rounds: int) -> list[float]:
    import socket

    import torch.multiprocessing as mp

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    out = mp.get_context("spawn").SimpleQueue()
    count = sum(len(group) for group in groups)
    mp.spawn(nccl_rank, (groups, port, sizes, rounds, out), nprocs=count, join=True)
    return out.get()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, size: int, seconds: list[float], predicted: str = "") -> None:
        median = statistics.median(seconds)
        note = f"{size / median / 1e9:.1f} GB/s; {1e3 * min(seconds):.2f}-{1e3 * max(seconds):.2f} ms"
        row = {
            "experiment": what, "predicted": predicted, "measured": round(1e3 * median, 3), "unit": "ms",
            "note": f"{note}, {len(seconds)} rounds",
        }  # fmt: skip
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def left_out(self, what: str, why: str) -> None:
        print(f"left out: {what}: {why}", flush=True)

    def splits(self) -> list[tuple[list[int], list[int]]]:
        """The GPUs of trainers and of engines; one GPU is both. From three on, one to the others, too."""
        devices = list(range(self.options.gpus))
        half = max(1, len(devices) // 2)
        found = [(devices[:half], devices[half:] or devices[:1])]
        return found + ([(devices[:1], devices[1:])] if len(devices) > 2 else [])

    def model(self, name: str, trainers: list[int], engines: list[int]) -> None:
        shapes = qwen(name)
        one = bytes_of(shapes)
        updates = Updates(shapes, trainers, engines)
        ours = f"weightcast {name}, {len(trainers)} to {len(engines)}"
        contenders: dict[str, tuple[int, Timed]] = {
            ours: (one * len(engines), updates.round),
            f"{ours}, announced": (one * len(engines), updates.announced),
        }
        if not on_fake():
            target = engines[0]
            place = "within one GPU" if target == trainers[0] else "to another GPU"
            contenders[f"floor {name}: one copy {place}"] = (one, torch_copy(one, trainers[0], target))
        seconds: dict[str, list[float]] = {what: [] for what in contenders}
        for turn in range(self.options.rounds + 1):
            for what in list(contenders) if turn % 2 == 0 else reversed(contenders):
                took = contenders[what][1]()
                if turn > 0:
                    seconds[what].append(took)
        updates.close()
        for what, (size, _) in contenders.items():
            self.add(what, size, seconds[what])
        self.add(f"{ours}: first Start to last Ready", one * len(engines), updates.data[1:])

    def peers(self, name: str, sources: list[int], targets: list[int]) -> None:
        sizes = [bytes_of([shape]) for shape in qwen(name)]
        if on_fake():
            self.left_out("NCCL", "the fake driver has no torch")
        elif self.options.gpus < 2:
            self.left_out("NCCL", "it wants a GPU for each rank, and there is one")
        else:
            groups = [[source, *targets[at :: len(sources)]] for at, source in enumerate(sources)]
            found = nccl(sizes, groups, self.options.rounds)
            what = f"NCCL {name}, {len(sources)} to {len(targets)}: broadcast tensor by tensor"
            self.add(what, sum(sizes) * len(targets), found)
            self.m2n(name, sizes, sources, targets)
        self.nixl(name, sizes, sources, targets)

    def m2n(self, name: str, sizes: list[int], sources: list[int], targets: list[int]) -> None:
        try:
            importlib.import_module("nccl.m2n")
        except ImportError as error:
            self.left_out("NCCL M2N", f"nccl-extensions cannot be imported: {error}")
            return
        counts = [f"--sources={len(sources)}", f"--targets={len(targets)}"]
        found = self.peer("nccl_m2n.py", f"--tensors={','.join(map(str, sizes))}", *counts)
        self.add(f"NCCL M2N {name}, {len(sources)} to {len(targets)}", sum(sizes) * len(targets), found)

    def nixl(self, name: str, sizes: list[int], sources: list[int], targets: list[int]) -> None:
        if on_fake() or importlib.util.find_spec("nixl_cu13") is None:
            self.left_out("NIXL", "nixl-cu13 is not installed, or there is no GPU")
            return
        words = [
            f"--{what}={','.join(map(str, devices))}"
            for what, devices in (("tensors", sizes), ("sources", sources), ("targets", targets))
        ]
        found = self.peer("nixl_gpu.py", *words)
        self.add(f"NIXL {name}, {len(sources)} to {len(targets)}", sum(sizes) * len(targets), found)

    def peer(self, program: str, *words: str) -> list[float]:
        """Seconds of each round of a program of bench/peers."""
        path = ROOT / "bench" / "peers" / program
        command = [sys.executable, str(path), *words, "--rounds", str(self.options.rounds)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=200)
        return json.loads(done.stdout)["seconds"]

    def binary(self) -> None:
        """`weightcast bench update`, which has no Python in it."""
        model = "gpt2" if self.options.small else "qwen2.5-0.5b"
        counts = ["--trainers", 1, "--inference", 1, "--versions", 3 if self.options.small else 9]
        command = [self.options.binary, "bench", "update", "--memory", "cuda", "--model", model, *counts]
        words = [str(word) for word in [*command, "--transports", "shm", "--json"]]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        (result,) = json.loads(done.stdout)["results"]
        self.add(f"weightcast bench update {model}, 1 to 1", result["bytes"], [result["median_seconds"]])

    def p2p(self) -> None:
        """`weightcast bench p2p`: one transfer at a time, its bytes compared."""
        sizes = "64K,3x64K" if self.options.small else "64K,1M,16M,256M,1G,200x64K"
        command = [self.options.binary, "bench", "p2p", "--memory", "cuda", "--transports", "shm"]
        words = [str(word) for word in [*command, "--sizes", sizes, "--json"]]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
        for one in json.loads(done.stdout)["results"]:
            way = " to ".join(map(str, one["devices"]))
            pieces = f"{one['iovs']} x {one['bytes'] // one['iovs']} bytes"
            self.add(
                f"weightcast bench p2p {one['op']}, {pieces}, device {way}",
                one["bytes"],
                [one["p50_us"] / 1e6],
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "weightcast")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9, help="of each contender; one more to warm up")
    parser.add_argument("--small", action="store_true", help="small models, for the fake driver")
    options = parser.parse_args()
    if options.small:
        options.rounds = 2
    bench = Bench(options)
    for name in ("small",) if options.small else ("0.5b", "7b"):
        for trainers, engines in bench.splits():
            bench.model(name, trainers, engines)
            bench.peers(name, trainers, engines)
    bench.p2p()
    if not options.small:
        bench.binary()
    print("| who | ms | note |\n|---|---|---|")
    for row in bench.rows:
        print("|", " | ".join([row["experiment"], str(row["measured"]), row["note"]]), "|", flush=True)


if __name__ == "__main__":
    main()
