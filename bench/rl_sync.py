#!/usr/bin/env python3
"""Times new weights on their way from trainers to engines: weightcast beside other ways.

GPT-2's 148 tensors (124M values, fp32: 498 MB), in one process for each trainer and engine, all on this
host. Each round goes from the last trainer that publishes to the last engine that has committed (weightcast),
or from the last trainer that begins to send to the last engine that has all (the others). Ways take turns,
forwards and backwards; trainers change every byte before a round and engines compare every byte after it.
OMP_NUM_THREADS is 1, as torchrun sets it, and nothing is pinned. Nothing else should run meanwhile.
"""

import argparse
import json
import multiprocessing as mp
import os
import pathlib
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import weightcast as wc
from weightcast.rl.collectives import WAYS, Collective, PlainCopy, Roles, Way

LAYERS, HIDDEN, WORDS, PLACES = 12, 768, 50257, 1024
GLOO = ["tensor by tensor", "packed", "all roots", "hierarchical"]
PATHS = {"own path": {}, "tcp": {"transport": "tcp"}}
PATIENCE = 120.0


def shapes() -> dict[str, tuple[int, ...]]:
    """GPT-2, 124M."""
    found: dict[str, tuple[int, ...]] = {"wte.weight": (WORDS, HIDDEN), "wpe.weight": (PLACES, HIDDEN)}
    for layer in range(LAYERS):
        for name, wide, out in (
            ("attn.c_attn", HIDDEN, 3 * HIDDEN),
            ("attn.c_proj", HIDDEN, HIDDEN),
            ("mlp.c_fc", HIDDEN, 4 * HIDDEN),
            ("mlp.c_proj", 4 * HIDDEN, HIDDEN),
        ):
            found |= {f"h.{layer}.{name}.weight": (wide, out), f"h.{layer}.{name}.bias": (out,)}
        for name in ("ln_1", "ln_2"):
            found |= {f"h.{layer}.{name}.weight": (HIDDEN,), f"h.{layer}.{name}.bias": (HIDDEN,)}
    return found | {"ln_f.weight": (HIDDEN,), "ln_f.bias": (HIDDEN,)}


class Updates(Way):
    """weightcast's own: published by the trainers, committed by the engines."""

    def __init__(self, roles: Roles, controller: str, path: str, weights: dict[str, torch.Tensor]) -> None:
        super().__init__(roles)
        rank = dist.get_rank()
        more: dict[str, Any] = {"model": path, "settings": PATHS[path]}
        self.stats: list[float] = []
        self._version = 0
        self._worker: Any
        if rank in roles.trainers:
            place = roles.trainers.index(rank)
            self._worker = wc.Trainer(controller, rank=place, world_size=len(roles.trainers), **more)
            self._worker.register(weights)
        else:
            self._worker = wc.Inference(controller, engine=f"engine-{rank}", **more)
            # Other ways write to the same tensors.
            self._worker.register(weights, shares=False)

    def send(self, weights: Any) -> int:
        self._version += 1
        update = self._worker.publish(self._version)
        self.stats.append(update.wait(PATIENCE).seconds)
        return 0

    def receive(self, weights: Any) -> int:
        self._version += 1
        self._worker.wait(self._version - 1, PATIENCE)
        return 0

    def close(self) -> None:
        self._worker.close()


def make(name: str, roles: Roles, controller: str, weights: dict[str, torch.Tensor]) -> Way:
    kind, _, path = name.partition(", ")
    if kind == "weightcast":
        return Updates(roles, controller, path, weights)
    if kind == "weightcast.collective":
        return Collective(roles, settings={"bind": "127.0.0.1", **PATHS[path]})
    return WAYS[path or kind](roles)


def work(rank: int, options: argparse.Namespace, port: int, controller: str, results: Any) -> None:
    """One trainer or engine. Puts (rank, {way: [seconds on the clock of the host of each round]})."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    world = options.trainers + options.engines
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    ranks = list(range(world))
    roles = Roles(ranks[: options.trainers], ranks[options.trainers :], ["here"] * world)
    trains = rank in roles.trainers
    weights = {name: torch.zeros(shape) for name, shape in shapes().items()}
    ways = {name: make(name, roles, controller, weights) for name in options.ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    number = 0
    for turn in range(options.rounds + 1):
        for name in list(ways) if turn % 2 == 0 else reversed(ways):
            number += 1
            if trains:
                for tensor in weights.values():
                    tensor.fill_(number)
            dist.barrier()
            began = time.monotonic()
            (ways[name].send if trains else ways[name].receive)(weights)
            ended = time.monotonic()
            if not trains and not all(bool((one == number).all()) for one in weights.values()):
                sys.exit(f"{name}: rank {rank} has not got what was sent")
            times[name].append(began if trains else ended)
            dist.barrier()
    stats = {name: way.stats for name, way in ways.items() if isinstance(way, Updates) and trains}
    results.put((rank, times, stats))
    dist.barrier()
    for way in ways.values():
        way.close()
    dist.destroy_process_group()


def measure(options: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each way's rounds but the first; and of those what weightcast's trainers counted."""
    context = mp.get_context("spawn")
    results = context.Queue()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["WEIGHTCAST_TOKEN"] = os.urandom(16).hex()
    world = options.trainers + options.engines
    settings = {"min_engines": options.engines}
    with wc.Controller("127.0.0.1:0", settings=settings) as controller:
        port = free_port()
        processes = [
            context.Process(target=work, args=(rank, options, port, controller.address, results), daemon=True)
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        said: dict[int, tuple[dict[str, list[float]], dict[str, list[float]]]] = {}
        while len(said) < world:
            if not results.empty():
                rank, times, stats = results.get()
                said[rank] = times, stats
            elif any(process.exitcode for process in processes):
                sys.exit("a process has failed")
            else:
                time.sleep(0.1)
        for process in processes:
            process.join(60)
    seconds = {}
    for name in options.ways:
        began = zip(*(said[rank][0][name] for rank in range(options.trainers)), strict=True)
        ended = zip(*(said[rank][0][name] for rank in range(options.trainers, world)), strict=True)
        seconds[name] = [max(last) - max(first) for first, last in zip(began, ended, strict=True)][1:]
    return seconds, {name: one[1:] for name, one in said[0][1].items()}


def free_port() -> int:
    store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    return store.port


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ours = [f"{kind}, {path}" for kind in ("weightcast", "weightcast.collective") for path in PATHS]
    known = [*ours, *(f"gloo, {name}" for name in GLOO), PlainCopy.name]
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="that are counted, of each way (default 9)")
    parser.add_argument("--ways", default=";".join(known), help="with ; between them (default: %(default)s)")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there, too")
    options = parser.parse_args()
    options.ways = [name for name in options.ways.split(";") if name]
    if strangers := set(options.ways) - set(known):
        parser.error(f"no way is called {', '.join(sorted(strangers))}")
    load = os.getloadavg()[0]
    print(f"{options.trainers} trainers, {options.engines} engines, {options.rounds} rounds, load {load:.1f}")
    if load > 0.5:
        print("Something else runs: these figures are not reliable.", flush=True)
    seconds, counted = measure(options)
    rows = rows_of(seconds)
    print("| way | seconds | times the fastest of gloo |\n|---|---|---|")
    for row in rows:
        ratio = (
            f"{row['ratio']:.2f} ({row['least_ratio']:.2f}–{row['greatest_ratio']:.2f})"
            if "ratio" in row
            else ""
        )
        print(f"| {row['way']} | {row['median']:.3f} ({row['least']:.3f}–{row['greatest']:.3f}) | {ratio} |")
    for name, one in counted.items():
        print(f"{name}: {statistics.median(one):.3f} s of it from the first grant until all ranks were ready")
    if options.json:
        nbytes = 4 * sum(torch.Size(shape).numel() for shape in shapes().values())
        figures = {"load": load, "bytes": nbytes, "rows": rows, "seconds": seconds, "counted": counted}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def rows_of(seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Ratios are of the same round: how many times faster than the gloo way with the least median."""
    gloo = {name: statistics.median(times) for name, times in seconds.items() if name.startswith("gloo")}
    rows = []
    for name, times in seconds.items():
        row = {"way": name, "median": statistics.median(times), "least": min(times), "greatest": max(times)}
        if gloo and name not in gloo:
            best = seconds[min(gloo, key=gloo.__getitem__)]
            ratios = [theirs / ours for ours, theirs in zip(times, best, strict=True)]
            row |= {
                "ratio": statistics.median(ratios),
                "least_ratio": min(ratios),
                "greatest_ratio": max(ratios),
            }
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
