#!/usr/bin/env python3
"""Compares what `weightcast doctor --peer` says of RDMA with ib_write_lat and ib_write_bw, taking turns.

Runs between two RDMA devices of one machine, such as that which rxevm boots:

    make binary
    tests/rdma/rxevm run -t 560 -- bench/doctor_verbs.py

Latency is half of 8 bytes there and 8 bytes back, which either side sees in its memory: the medians of the
devices alone (verbs.device_latency) and of ib_write_lat. Bandwidth is writes of one size in one direction:
the doctor's through weightcast, with about 1 MiB in flight, and ib_write_bw's with as many in flight, or
128 (its default). Either has one queue pair (the setting lanes), or two, as weightcast chooses by itself.

Source and target have a processor each, and what the kernel does for soft-RoCE (rxe's work queue) runs on
that of the target: left to the scheduler, a queue pair takes 120 or 240 us for its lifetime, by chance.
--free leaves it so.
Prints a table of medians over all turns (least–greatest), and of the ratios within each turn.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "bench"))
from peers import ucx  # noqa: E402

TOKEN = {"WEIGHTCAST_TOKEN": "5d0c1b7a9e3f48620d1c7b5a9e3f4862"}
PATIENCE = 90
SOURCE, TARGET = 0, 1  # Processors.
WORKERS = pathlib.Path("/sys/devices/virtual/workqueue/cpumask")  # Of the kernel's unbound work queues.
PINGS = 5000
MEGABYTES = 64  # That ib_write_bw moves: about what the doctor does in half a second.
DEPTHS = {65536: 16, 1 << 20: 2}  # By size: how many the doctor has in flight.
LANES = (1, 2)

Figures = dict[str, float]  # By the name of a row's column: µs, or MB/s (10^6 bytes).
Run = Callable[[], Figures]


def between(server: list[str], client: list[str], port: int, options: argparse.Namespace) -> str:
    """What the client prints. The server is ended, if it does not end itself."""
    there, here = ({**os.environ, **TOKEN, "WEIGHTCAST_NICS": nic} for nic in options.devices)
    if not options.free:
        server, client = ["taskset", "-c", str(TARGET), *server], ["taskset", "-c", str(SOURCE), *client]
    started = subprocess.Popen(server, env=there, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        ucx.wait_listening(port, started)
        done = subprocess.run(client, env=here, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        started.terminate()
        started.wait()
    if done.returncode != 0:
        sys.exit(f"{client}: {done.stdout}{done.stderr}")
    return done.stdout


def perftest(tool: str, size: int, options: argparse.Namespace, *more: str) -> float:
    """Of ib_write_lat the median in µs, of ib_write_bw MB/s."""
    port = ucx.free_port()
    # A time-out that does not fire while an emulated processor is busy elsewhere.
    common = ["-x", str(options.gid), "-u", "18", "-F", "-p", str(port), "-s", str(size), *more]
    server, client = ([tool, "-d", device, *common] for device in options.devices)
    for line in between(server, [*client, "127.0.0.1"], port, options).splitlines():
        fields = line.split()
        if fields[:1] == [str(size)]:
            # Bytes and rounds; then µs least, most and typical, or MB/s (of 2^20) peak and average.
            return float(fields[4]) if tool == "ib_write_lat" else float(fields[3]) * 1.048576
    sys.exit(f"{tool}: its output has no line of figures")


def latency_of_perftest(options: argparse.Namespace) -> Figures:
    return {"latency perftest": perftest("ib_write_lat", 8, options, "-n", str(PINGS))}


def bandwidths_of_perftest(lanes: int, options: argparse.Namespace) -> Figures:
    figures = {}
    for size, depth in DEPTHS.items():
        what = ["-n", str(round(MEGABYTES * 1e6 / size / lanes)), "-q", str(lanes)]
        if depth > lanes:  # It gives no figure for one in flight.
            as_many = perftest("ib_write_bw", size, options, *what, "-t", str(depth // lanes), "-Q", "1")
            figures[f"{size} {lanes} perftest, as many"] = as_many
        if lanes == 1:
            figures[f"{size} {lanes} perftest"] = perftest("ib_write_bw", size, options, *what)
    return figures


def doctor(lanes: int, options: argparse.Namespace) -> Figures:
    port = ucx.free_port()
    address = f"127.0.0.1:{port}"
    command = [options.binary, "doctor", "--lanes", str(lanes)]
    client = ["--json", "--peer", address, "--milliseconds", str(options.milliseconds)]
    output = between([*command, "--serve", "--listen", address], [*command, *client], port, options)
    verbs = next(one for one in json.loads(output)["peer"]["transports"] if one["name"] == "verbs")
    if verbs["error"] or verbs["skipped"] or verbs["device_error"]:
        sys.exit(f"no figures of verbs: {verbs}")
    out = {one["bytes"]: one["gbit"] * 1e3 / 8 for one in verbs["out"]}
    figures = {f"{size} {lanes} doctor": out[size] for size in DEPTHS if size in out}
    if lanes == 1:
        figures["latency doctor"] = verbs["device"]["p50"] * 1e6
        figures["latency library"] = verbs["latency"]["p50"] * 1e6
    return figures


@contextlib.contextmanager
def workers_beside(processor: int) -> Iterator[None]:
    """The kernel's workers, there alone."""
    before = WORKERS.read_text()
    WORKERS.write_text(f"{1 << processor:x}")
    try:
        yield
    finally:
        WORKERS.write_text(before)


def measure(options: argparse.Namespace) -> list[Figures]:
    """Of each turn. Forwards and backwards, so that nobody always comes after the same other."""
    runs: list[Run] = [functools.partial(latency_of_perftest, options)]
    for lanes in LANES:
        runs.append(functools.partial(doctor, lanes, options))
        runs.append(functools.partial(bandwidths_of_perftest, lanes, options))
    turns = []
    for turn in range(options.turns):
        figures: Figures = {}
        for run in runs[:: 1 if turn % 2 == 0 else -1]:
            figures |= run()
        print(
            json.dumps({"turn": turn, **{name: round(value, 1) for name, value in figures.items()}}),
            flush=True,
        )
        turns.append(figures)
    return turns


def cell(values: list[float], digits: int) -> str:
    median, least, most = (
        f"{one:.{digits}f}" for one in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least}–{most})"


def print_table(turns: list[Figures]) -> None:
    print("| what | `weightcast doctor --peer` | perftest | ratio |\n|---|---|---|---|")
    rows = [
        ("8 bytes one way, devices alone, us", "latency doctor", "latency perftest"),
        ("8 bytes one way, through weightcast, us", "latency library", "latency perftest"),
    ]
    for size, depth in DEPTHS.items():
        for lanes in LANES:
            pairs = "one queue pair" if lanes == 1 else f"{lanes} queue pairs"
            title = f"write {size >> 10} KiB, {pairs}, MB/s; perftest with "
            ours = f"{size} {lanes} doctor"
            rows.append((f"{title}{depth} in flight", ours, f"{size} {lanes} perftest, as many"))
            if lanes == 1:
                rows.append((f"{title}128", ours, f"{size} {lanes} perftest"))
    for title, ours, theirs in rows:
        both = [turn for turn in turns if ours in turn and theirs in turn]
        if not both:
            continue
        cells = [cell([turn[name] for turn in both], 1) for name in (ours, theirs)]
        ratios = [turn[ours] / turn[theirs] for turn in both]
        print(f"| {title} | {cells[0]} | {cells[1]} | {cell(ratios, 2)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--milliseconds", type=int, default=500, help="of each of the doctor's measurements")
    parser.add_argument(
        "--devices", default="rxe0,rxe1", type=lambda text: text.split(","), help="target, source"
    )
    parser.add_argument("--free", action="store_true", help="let the scheduler place processes")
    parser.add_argument("--gid", type=int, default=1, help="index of the GID that perftest uses")
    parser.add_argument("--binary", default=str(ROOT / "build" / "weightcast"))
    options = parser.parse_args()
    with contextlib.nullcontext() if options.free else workers_beside(TARGET):
        print_table(measure(options))


if __name__ == "__main__":
    main()
