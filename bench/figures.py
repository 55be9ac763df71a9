#!/usr/bin/env python3
"""Measures whole updates for docs/results.md: runs each command several times and prints a Markdown table.

A figure is the median over all runs and versions but the first of each run, which pays for fresh pages and
connections; in brackets the least and the greatest. Memory is the sum over all processes of the demo, at its
highest, each process with its share of what it shares (PSS). Nothing else should run meanwhile.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import threading

BINARY = pathlib.Path(__file__).resolve().parent.parent / "build" / "weightcast"
DEMOS = [
    ([], "GPT-2 bf16, 2 trainers → 2 engines, shm, in place"),
    (["--landing", "shadow"], "the same into a shadow copy"),
    (["--transport", "tcp"], "the same over TCP"),
    (["--trainers", "16", "--inference", "8"], "16 → 8 ranks"),
    (["--trainers", "32", "--inference", "32", "--trainer-layout", "fsdp"], "sharded 32 → 32 replicas"),
    (["--model", "qwen2.5-0.5b"], "Qwen2.5-0.5B, 2 → 2 engines"),
    (["--model", "qwen2.5-0.5b", "--trainers", "8", "--inference", "8"], "Qwen2.5-0.5B, 8 → 8"),
]


def children(pid: int) -> list[int]:
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += children(int(child))
    return found


def pss_bytes(pid: int) -> int:
    """Of the process and all it has started."""
    total = 0
    for one in children(pid):
        try:
            rollup = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue  # It has ended.
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
    return total


def run_demo(arguments: list[str], watch_memory: bool) -> tuple[dict, int]:
    process = subprocess.Popen([BINARY, "demo", "--json", *arguments], stdout=subprocess.PIPE, text=True)
    ended = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.5):
            try:
                peak = max(peak, pss_bytes(process.pid))
            except OSError:
                return

    watcher = threading.Thread(target=watch)
    if watch_memory:
        watcher.start()
    output, _ = process.communicate()
    ended.set()
    if watch_memory:
        watcher.join()
    if process.returncode != 0:
        sys.exit(f"demo {' '.join(arguments)} ended with {process.returncode}")
    return json.loads(output), peak


def spread(values: list[float], digits: int) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def measure(arguments: list[str], runs: int) -> list[str]:
    updates = []
    for _ in range(runs):
        report, _ = run_demo(arguments, watch_memory=False)
        if not report["bit_exact"]:
            sys.exit("not bit-exact")
        updates += report["updates"][1:]
    _, peak = run_demo(arguments, watch_memory=True)  # Apart: looking costs time.
    senders = [max(u["sender_bytes"]) / statistics.mean(u["sender_bytes"]) for u in updates]
    return [
        spread([update["seconds"] for update in updates], 3),
        spread([update["gb_per_s"] for update in updates], 1),
        f"{max(senders):.4f}",
        f"{peak / 2**30:.1f}",
    ]


def measure_plan(runs: int) -> str:
    totals = []
    for _ in range(runs):
        # On one core: what the figure speaks of.
        command = ["taskset", "-c", "0", BINARY, "bench", "plan", "--json"]
        totals.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    seconds = spread([total["total_seconds"] for total in totals], 2)
    boxes = f"{totals[0]['boxes']:,} irregular boxes planned, verified and serialised"
    return f"`weightcast bench plan`: {boxes}: {seconds} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each command (default 3)")
    runs = parser.parse_args().runs
    print("| command | what | seconds a version | GB/s | busiest sender / mean | GiB of memory |")
    print("|---|---|---|---|---|---|", flush=True)
    for arguments, what in DEMOS:
        cells = [f"`{' '.join(['weightcast demo', *arguments])}`", what, *measure(arguments, runs)]
        print("|", " | ".join(cells), "|", flush=True)
    print(measure_plan(runs))


if __name__ == "__main__":
    main()
