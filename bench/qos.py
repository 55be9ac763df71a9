#!/usr/bin/env python3
"""Measures latency on a wire that weightcast fills, without and with a traffic class.

Two hosts in network namespaces, and between them a bridge as a switch. Its port to the receiver is shaped
and has a queue of 20 ms for each class, chosen by the DSCP of a packet: af31 goes first, le takes what nobody
else wants, all others share one. Transfers of weightcast fill the port all the time. Beside them another
program sends 64 bytes there and back, again and again. Scenarios take turns; each figure is over all turns.
Needs root and iproute2.
"""

import argparse
import json
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

from cli import BINARY, Running  # noqa: E402
from netns import Network, ip  # noqa: E402

SENDER, RECEIVER = "10.99.0.1", "10.99.0.2"
PROBE_PORT, BENCH_PORT = 5001, 29790
CLASSES = {"": 0, "af31": 0x68, "le": 0x04}
PROBE = """
import json, socket, sys, time
role, byte, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

def mark(taken):
    taken.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, byte)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return taken

if role == "answer":
    with socket.create_server(("0.0.0.0", {port})) as listener:
        print("listening", flush=True)
        taken = mark(listener.accept()[0])
        while data := taken.recv(64, socket.MSG_WAITALL):
            taken.sendall(data)
else:
    with mark(socket.create_connection(("{to}", {port}))) as out:
        times, end = [], time.monotonic() + seconds
        while (began := time.perf_counter()) and time.monotonic() < end:
            out.sendall(bytes(64))
            out.recv(64, socket.MSG_WAITALL)
            times.append(time.perf_counter() - began)
            time.sleep(0.002)
    print(json.dumps(times))
"""


class Scenario(NamedTuple):
    name: str
    load: str | None  # Its traffic class; None: no load.
    probe: str


SCENARIOS = [
    Scenario("no load", None, ""),
    Scenario("load, no class", "", ""),
    Scenario("load in `le`", "le", ""),
    Scenario("load, the probe in `af31`", "", "af31"),
]


class Wire:
    """The two hosts, and what the switch does with each class."""

    def __init__(self, mbit: int) -> None:
        self.network = Network()
        try:
            self.network.add_host("sender", f"{SENDER}/24")
            self.network.add_host("receiver", f"{RECEIVER}/24")
            self.shape(mbit)
        except BaseException:
            self.close()
            raise

    def shape(self, mbit: int) -> None:
        # Packets as on a wire: one of 64 KiB would hold it for milliseconds.
        device = ["dev", self.network.interfaces["sender"]]
        ip("-n", self.network.namespace("sender"), "link", "set", *device, "gso_max_segs", "1")
        namespace, device = self.network.hub, ["dev", "p1"]  # The receiver's port.

        def tc(*arguments: object) -> None:
            command = ["tc", "-n", namespace, *map(str, arguments)]
            subprocess.run(command, check=True, capture_output=True, text=True)

        burst = ["burst", "16k", "cburst", "16k", "quantum", 1514]
        tc("qdisc", "add", *device, "root", "handle", "1:", "htb", "default", "20")
        whole = ["htb", "rate", f"{mbit}mbit", "ceil", f"{mbit}mbit", *burst]
        tc("class", "add", *device, "parent", "1:", "classid", "1:1", *whole)
        queues = [("10", mbit * 45 // 100, 0), ("20", mbit * 50 // 100, 1), ("30", mbit * 5 // 100, 7)]
        for number, rate, priority in queues:
            mine = ["rate", f"{rate}mbit", "ceil", f"{mbit}mbit", "prio", priority, *burst]
            tc("class", "add", *device, "parent", "1:1", "classid", f"1:{number}", "htb", *mine)
            queue = ["bfifo", "limit", mbit * 1_000_000 // 8 // 50]  # Of 20 ms.
            tc("qdisc", "add", *device, "parent", f"1:{number}", "handle", f"{number}:", *queue)
        for name, number in (("af31", "10"), ("le", "30")):
            match = ["match", "ip", "dsfield", hex(CLASSES[name]), "0xfc"]
            tc(
                "filter",
                "add",
                *device,
                "parent",
                "1:",
                "protocol",
                "ip",
                "u32",
                *match,
                "flowid",
                f"1:{number}",
            )

    def close(self) -> None:
        self.network.close()


class Load:
    """Transfers from the sender to the receiver, one after another, until closed."""

    def __init__(self, wire: Wire, traffic_class: str) -> None:
        own = ["--traffic-class", traffic_class] if traffic_class else []
        token = {"WEIGHTCAST_TOKEN": os.environ["WEIGHTCAST_TOKEN"]}
        listen = ["bench", "p2p", "--listen", f"{RECEIVER}:{BENCH_PORT}", *own]
        self.listener = Running(*listen, prefix=wire.network.inside("receiver"), env=token)
        self.sender: Running | None = None
        try:
            self.listener.line()
            what = ["--transports", "tcp", "--memories", "any", "--ops", "write", "--sizes", "4M", "--reuse"]
            connect = ["bench", "p2p", "--connect", f"{RECEIVER}:{BENCH_PORT}", *what, *own]
            for_ever = ["--pairs", 2, "--milliseconds", 600_000]
            self.sender = Running(*connect, *for_ever, prefix=wire.network.inside("sender"), env=token)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for one in (self.sender, self.listener):
            if one is not None:
                one.kill()


def probe(wire: Wire, traffic_class: str, seconds: float) -> list[float]:
    """Seconds of each round trip."""
    text = PROBE.replace("{port}", str(PROBE_PORT)).replace("{to}", RECEIVER)
    words = [sys.executable, "-c", text]
    mark = [str(CLASSES[traffic_class]), str(seconds)]
    answer = [*wire.network.inside("receiver"), *words, "answer", *mark]
    with subprocess.Popen(answer, stdout=subprocess.PIPE, text=True) as answering:
        try:
            answering.stdout.readline()
            return json.loads(wire.network.run("sender", *words, "ask", *mark))
        finally:
            answering.terminate()


def measure(wire: Wire, scenario: Scenario, seconds: float) -> tuple[list[float], float]:
    """Round trips, and Mbit/s that the sender's wire carried meanwhile."""
    load = Load(wire, scenario.load) if scenario.load is not None else None
    try:
        if load is not None:
            time.sleep(2)  # It has connected, and TCP has filled its queue.
        before, began = wire.network.counters("sender")[0], time.monotonic()
        times = probe(wire, scenario.probe, seconds)
        sent = wire.network.counters("sender")[0] - before
        if load is not None and load.sender.process.poll() is not None:
            sys.exit(f"the load ended: {load.sender.errors()}")
        return times, sent * 8 / (time.monotonic() - began) / 1e6
    finally:
        if load is not None:
            load.close()


def quantile(times: list[float], part: float) -> float:
    return sorted(times)[min(math.floor(len(times) * part), len(times) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mbit", type=int, default=200, help="of the wire, a second (default 200)")
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement (default 8)")
    parser.add_argument("--turns", type=int, default=3, help="of all scenarios (default 3)")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("network namespaces need root")
    if not BINARY.exists():
        sys.exit(f"{BINARY} is missing: make binary, or set WC_TEST_BINARY")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Namespaces are removed then, too.
    os.environ["WEIGHTCAST_TOKEN"] = os.urandom(16).hex()
    wire = Wire(arguments.mbit)
    times: dict[str, list[float]] = {scenario.name: [] for scenario in SCENARIOS}
    rates: dict[str, list[float]] = {scenario.name: [] for scenario in SCENARIOS}
    try:
        for _ in range(arguments.turns):
            for scenario in SCENARIOS:
                found, rate = measure(wire, scenario, arguments.seconds)
                times[scenario.name] += found
                rates[scenario.name].append(rate)
    finally:
        wire.close()
    print(f"Round trips of 64 bytes in ms; a wire of {arguments.mbit} Mbit/s; jitter: standard deviation")
    print("| scenario | p50 | p99 | max | jitter | round trips | Mbit/s on the wire |")
    print("|---|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        found = [1000 * one for one in times[scenario.name]]
        figures = [quantile(found, 0.5), quantile(found, 0.99), max(found), statistics.pstdev(found)]
        row = " | ".join(f"{one:.2f}" for one in figures)
        rate = statistics.median(rates[scenario.name])
        print(f"| {scenario.name} | {row} | {len(found)} | {rate:.0f} |")


if __name__ == "__main__":
    main()
