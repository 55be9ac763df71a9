#!/usr/bin/env python3
"""Measures what the setting `compare` adds to an update, within one host and over a wire.

Within one host: `weightcast bench update` of Qwen2.5-0.5B in bf16, two trainers to two engines over shm.
Over a wire: one trainer and one engine in network namespaces of their own, --mib of weights over a link of
--mbit. Each turn measures without and with the setting, one after the other; a ratio is of one turn, the
median over all turns. The time is from the first grant to the last rank that is ready. The wire needs root
and iproute2.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

from netns import Network  # noqa: E402

CONTROLLER = "10.99.0.1:29750"
ROWS = 1 << 20  # Bytes of one row: the tensor is of that many columns of one byte.
WORKER = f"""
import statistics, sys
import numpy as np, weightcast as wc
role, rows, versions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
weights = {{f"layer.{{i}}": wc.allocate((16, {ROWS}), "uint8") for i in range(rows // 16)}}
if role == "trainer":
    with wc.Trainer("{CONTROLLER}") as trainer:
        trainer.register(weights)
        seconds = [trainer.publish(version).wait(120).seconds for version in range(versions)]
        print(statistics.median(seconds[1:]))
else:
    with wc.Inference("{CONTROLLER}", engine="e") as engine:
        engine.register(weights)
        version = None
        while version is None or version.number + 1 < versions:
            version = engine.wait(version, timeout=120)
"""


def within_host(versions: int, compare: bool) -> float:
    """Seconds of an update."""
    command = ["build/weightcast", "bench", "update", "--model", "qwen2.5-0.5b", "--transports", "shm"]
    command += ["--versions", str(versions), "--json"]
    environment = {**os.environ, "WEIGHTCAST_COMPARE": str(int(compare))}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, timeout=600)
    return json.loads(done.stdout)["results"][0]["median_seconds"]


class Wire:
    """A trainer, an engine and the controller, each on a host of its own."""

    def __init__(self, mbit: int, mib: int, versions: int) -> None:
        self.network, self.versions, self.mib = Network(), versions, mib
        for number, name in enumerate(["controller", "trainer", "engine"], 1):
            self.network.add_host(name, f"10.99.0.{number}/24")
            self.network.limit(name, mbit)

    def update(self, compare: bool) -> float:
        """Seconds of an update."""
        environment = {**os.environ, "WEIGHTCAST_COMPARE": str(int(compare))}
        controller = [*self.network.inside("controller"), "build/weightcast", "controller"]
        with subprocess.Popen(
            [*controller, "--listen", CONTROLLER], cwd=ROOT, stdout=subprocess.DEVNULL
        ) as one:
            try:
                workers = []
                for role in ("trainer", "engine"):
                    command = [*self.network.inside(role), sys.executable, "-c", WORKER, role]
                    command += [str(self.mib), str(self.versions)]
                    piped = {"stdout": subprocess.PIPE, "text": True}
                    workers.append(subprocess.Popen(command, env=environment, **piped))
                seconds = float(workers[0].communicate(timeout=600)[0])
                workers[1].communicate(timeout=60)
                return seconds
            finally:
                one.terminate()


def report(what: str, size: float, measure, turns: int) -> None:
    pairs = []
    for _ in range(turns):
        pairs.append((measure(False), measure(True)))
        without, compared = pairs[-1]
        print(f"  {what}: {without:.4f} s, compared {compared:.4f} s", file=sys.stderr, flush=True)
    without, compared = (statistics.median(column) for column in zip(*pairs, strict=True))
    added = statistics.median(compared / without - 1 for without, compared in pairs)
    print(f"| {what} | {size:.2f} GB | {without:.4f} s | {compared:.4f} s | {added:+.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--versions", type=int, default=5, help="of each measurement; the first is left out")
    parser.add_argument("--mbit", type=int, default=8000, help="of the wire, a second (default 8000)")
    parser.add_argument("--mib", type=int, default=512, help="over the wire, a multiple of 16 (default 512)")
    parser.add_argument("--only", choices=["host", "wire"])
    arguments = parser.parse_args()
    print("| where | bytes | update | compared | added |\n|---|---|---|---|---|")
    if arguments.only != "wire":
        report(
            "one host, shm", 1.98, lambda compare: within_host(arguments.versions, compare), arguments.turns
        )
    if arguments.only != "host":
        os.environ["WEIGHTCAST_TOKEN"] = os.urandom(16).hex()
        wire = Wire(arguments.mbit, arguments.mib, arguments.versions)
        try:
            size = (arguments.mib << 20) / 1e9
            report(f"a wire of {arguments.mbit / 8000:g} GB/s", size, wire.update, arguments.turns)
        finally:
            wire.network.close()


if __name__ == "__main__":
    main()
