#!/usr/bin/env python3
"""Measures how long an engine that joins late takes to get the served version from its peers.

Each process has a network namespace of its own on this machine, with a wire that is limited in both
directions. Compared with one plain TCP copy of as many bytes from one engine's host to the joiner's, over
the same wires, in the same run. A joiner's time is from the start of its process to the line that says it
serves the version. Prints a table with what crossed each trainer's wire meanwhile. Needs root and iproute2.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

from cli import Running, only_json, run, write_checkpoint  # noqa: E402
from netns import Network  # noqa: E402

CONTROLLER = "10.99.0.1:29750"
RECEIVE = """
import socket, time
with socket.create_server(("0.0.0.0", 5001)) as listener:
    print("listening", flush=True)
    taken, _ = listener.accept()
    began, left, buffer = time.monotonic(), {size}, bytearray(1 << 20)
    while left > 0 and (got := taken.recv_into(buffer)) > 0:
        left -= got
    assert left == 0
    print(time.monotonic() - began)
"""
SEND = """
import socket
with socket.create_connection(("{to}", 5001)) as out:
    block = bytes(1 << 20)
    for _ in range({size} >> 20):
        out.sendall(block)
"""


class Cluster:
    def __init__(self, arguments: argparse.Namespace, folder: pathlib.Path) -> None:
        self.arguments = arguments
        self.folder = folder
        self.size = arguments.mib << 20
        self.network = Network()
        self.running: list[Running] = []
        self.addresses: dict[str, str] = {}

    def build(self) -> None:
        trainers = [f"trainer{i}" for i in range(self.arguments.trainers)]
        engines = [f"e{i}" for i in range(self.arguments.engines)]
        for number, name in enumerate(["controller", *trainers, *engines, "late"], 1):
            self.addresses[name] = f"10.99.0.{number}"
            self.network.add_host(name, f"{self.addresses[name]}/24")
            self.network.limit(name, self.arguments.mbit)
        # Rows of 1 MiB, tensors of 16 MiB.
        tensors = {f"layer.{i}": ("BF16", [16, 1 << 19]) for i in range(self.arguments.mib // 16)}
        write_checkpoint(self.folder / "ckpt", tensors=tensors)
        listen = ["controller", "--listen", CONTROLLER, "--min-engines", len(engines)]
        self.start("controller", *listen).line()
        for rank, name in enumerate(trainers):
            place = ["--rank", rank, "--world-size", len(trainers), "--checkpoint", self.folder / "ckpt"]
            self.start(name, "trainer", "--controller", CONTROLLER, *place, "--version", 1)
        for engine in [self.engine(name) for name in engines]:
            engine.line(600)

    def start(self, name: str, *arguments: object) -> Running:
        self.running.append(Running(*arguments, prefix=self.network.inside(name)))
        return self.running[-1]

    def engine(self, name: str, host: str = "") -> Running:
        what = ["inference", "--controller", CONTROLLER, "--engine", name, "--like", self.folder / "ckpt"]
        return self.start(host or name, *what)

    def copy(self) -> float:
        """Seconds of a plain copy from the first engine's host to the joiner's."""
        receive = [*self.network.inside("late"), sys.executable, "-c", RECEIVE.format(size=self.size)]
        with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as receiver:
            receiver.stdout.readline()
            send = SEND.format(to=self.addresses["late"], size=self.size)
            self.network.run("e0", sys.executable, "-c", send)
            return float(receiver.communicate(timeout=60)[0])

    def join(self, number: int) -> tuple[float, float, list[int]]:
        """Seconds of a joiner in all and of its longest route, and what crossed the trainers' wires."""
        trainers = [f"trainer{i}" for i in range(self.arguments.trainers)]
        before = {name: self.network.counters(name) for name in trainers}
        began = time.monotonic()
        joiner = self.engine(f"late{number}", "late")
        joiner.line(600)
        seconds = time.monotonic() - began
        moved = [self.network.moved(name, since) for name, since in before.items()]
        command = ["info", "--controller", CONTROLLER, "--json"]
        view = only_json(run(*command, prefix=self.network.inside("controller")))["models"][0]
        routes = [route for route in view["routes"] if route["engine"] == f"late{number}"]
        if any(route["sender"].startswith("trainer") for route in routes) or not routes:
            sys.exit(f"not served by peers: {view['routes']}")
        joiner.stop()
        return seconds, max(route["seconds"] for route in routes), moved

    def close(self) -> None:
        for one in self.running:
            one.kill()
        self.network.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=8, help="that serve (default 8)")
    parser.add_argument("--trainers", type=int, default=2, help="replicas (default 2)")
    parser.add_argument("--mbit", type=int, default=400, help="of each wire, a second (default 400)")
    parser.add_argument("--mib", type=int, default=256, help="of weights, a multiple of 16 (default 256)")
    parser.add_argument("--runs", type=int, default=3, help="joiners, one after another (default 3)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Namespaces are removed then, too.
    with tempfile.TemporaryDirectory() as folder:
        # The workers' secret; nobody else knows these networks.
        os.environ["WEIGHTCAST_TOKEN"] = os.urandom(16).hex()
        cluster = Cluster(arguments, pathlib.Path(folder))
        try:
            cluster.build()
            measure(cluster, arguments)
        finally:
            cluster.close()


def measure(cluster: Cluster, arguments: argparse.Namespace) -> None:
    print(f"{arguments.engines} engines serve {arguments.mib} MiB; wires of {arguments.mbit} Mbit/s")
    print("| run | plain copy s | joiner s | ratio | moving s | trainers' wires, bytes a second |")
    print("|---|---|---|---|---|---|", flush=True)
    ratios = []
    for number in range(arguments.runs):
        plain = cluster.copy()
        seconds, moving, moved = cluster.join(number)
        ratios.append(seconds / plain)
        wires = ", ".join(f"{one / seconds:.0f}" for one in moved)
        print(
            f"| {number} | {plain:.2f} | {seconds:.2f} | {ratios[-1]:.3f} | {moving:.2f} | {wires} |",
            flush=True,
        )
    print(f"a joiner takes {statistics.median(ratios):.3f} times as long as one plain copy (median)")


if __name__ == "__main__":
    main()
