#!/usr/bin/env python3
"""Measures weightcast, perftest, UCX and NIXL between two RDMA devices of one machine, taking turns.

    bench.py install     first, where there is a network: the peers, below build/peers
    bench.py             inside the machine that rxevm boots, or on one with real devices (--devices)

Prints a JSON line for each figure: the median of all turns, the least and the greatest, in MB/s (10^6 bytes)
or microseconds. Who cannot be measured gets a line with the reason. perftest and UCX send the same bytes each
time, which nobody reads, with many in flight, or with one (`-t 1`); `weightcast bench p2p` and NIXL send new
ones, one transfer at a time. ping, as ib_write_lat: half the time of a write that the target sees in its
memory and answers by another; signal, as ib_send_lat: the same with writes that tell of themselves. Under
emulation figures say nothing of hardware, only how the work of one compares with another's.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "tests" / "python")]
from peers import Missing, nixl, python_peer, ucx  # noqa: E402

from processes import Process  # noqa: E402

PEERS = ROOT / "build" / "peers"
SIZES = ["64K", "1M", "16M"]
RUN_SECONDS = 30  # Most that one run may take.
LATENCY_ROUNDS = 1000

Figures = dict[tuple[str, str], float]  # (what, size) → MB/s, or µs of 8 bytes.
Run = Callable[[], Figures]


class Failed(Exception):
    """Why one run has no figures."""


def rounds_of(size: str, megabytes: float) -> int:
    return min(LATENCY_ROUNDS, max(8, round(megabytes * 1e6 / ucx.parse_size(size))))


def between(
    server: list[str], client: list[str], port: int, here: dict[str, str], there: dict[str, str]
) -> str:
    """What the client prints. The server is ended, if it does not end itself."""
    with Process(*server, env=there, stdout=subprocess.DEVNULL) as started:
        ucx.wait_listening(port, started.process)
        done = subprocess.run(
            client, env={**os.environ, **here}, capture_output=True, text=True, timeout=RUN_SECONDS
        )
        if done.returncode != 0:
            raise Failed(
                (done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}")[-400:]
            )
        return done.stdout


def perftest(what: str, size: str, options: argparse.Namespace) -> Figures:
    tool, *more = what.split()
    latency = tool.endswith("_lat")
    rounds = LATENCY_ROUNDS if latency else rounds_of(size, options.megabytes)
    port = ucx.free_port()
    common = ["-x", str(options.gid), "-u", "18", "-F", "-p", str(port), "-s", str(ucx.parse_size(size))]
    common += ["-n", str(rounds), *more]
    there, here = ([tool, "-d", device, *common] for device in options.devices)
    output = between(there, [*here, "127.0.0.1"], port, {}, {})
    for line in output.splitlines():
        fields = line.split()
        if fields[:1] == [str(ucx.parse_size(size))]:
            # Bytes and rounds; then MB/s (of 2^20) peak and average, millions a second; or µs least, most
            # and typical.
            if latency or size == "8":  # One by one: µs of each, from the thousands in a second.
                return {(what, size): float(fields[4]) if latency else 1 / float(fields[4])}
            return {(what, size): float(fields[3]) * 1.048576}
    raise Failed("its output has no line of figures")


class Ucx:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.peer = options, ucx.Peer(PEERS)

    def run(self, test: str, size: str) -> Figures:
        latency = test.endswith("_lat")
        port = ucx.free_port()
        rounds = LATENCY_ROUNDS if latency else rounds_of(size, self.options.megabytes)
        command = [str(self.peer.program), "-p", str(port)]
        what = ["-t", test, "-s", str(ucx.parse_size(size)), "-n", str(rounds), "-w", "4", "-f", "-v"]
        there, here = (
            {**self.peer.environment, **ucx_choice(device, "ud_verbs", self.options)}
            for device in self.options.devices
        )
        output = between([*command], [*command, "127.0.0.1", *what], port, here, there)
        # iterations, percentile, average and overall latency in µs, average and overall MB/s (of 2^20), rates
        figures = output.strip().splitlines()[-1].split(",")
        return {(test, size): float(figures[1]) if latency else float(figures[5]) * 1.048576}


def ucx_choice(device: str, auxiliary: str, options: argparse.Namespace) -> dict[str, str]:
    """`auxiliary`: by which UCX makes connections."""
    return {
        "UCX_TLS": f"rc_verbs,{auxiliary}",
        "UCX_NET_DEVICES": f"{device}:1" + (",lo" if auxiliary == "tcp" else ""),
        "UCX_IB_GID_INDEX": str(options.gid),
        "UCX_RC_VERBS_TIMEOUT": "2s",
        **dict(one.split("=", 1) for one in options.ucx_set),
    }


class Nixl:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.peer = options, nixl.Peer(PEERS)

    def run(self) -> Figures:
        there, here = (ucx_choice(device, "tcp", self.options) for device in self.options.devices)
        # NIXL brings a libibverbs that finds none of the system's drivers.
        here["LD_PRELOAD"] = "libibverbs.so.1"
        sizes = ["8", *SIZES]
        times = python_peer.measure(self.peer.python, nixl.__file__, here, sizes, 0.5, [0, 1], there)
        return {
            ("write", size): us if size == "8" else ucx.parse_size(size) / us for size, us in times.items()
        }


class Weightcast:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if not pathlib.Path(options.binary).exists():
            raise Missing(f"{options.binary} is not built")

    def run(self) -> Figures:
        port = ucx.free_port()
        command = [self.options.binary, "bench", "p2p"]
        what = ["--transports", self.options.transport, "--memories", "any", "--json"]
        what += ["--ops", "write,read,ping,signal"]
        what += ["--sizes", ",".join(["8", *SIZES]), "--milliseconds", "500"]
        there, here = ({"WEIGHTCAST_NICS": device} for device in self.options.devices)
        address = f"127.0.0.1:{port}"
        output = between(
            [*command, "--listen", address], [*command, "--connect", address, *what], port, here, there
        )
        figures = {}
        for one in json.loads(output)["results"]:
            size = next(size for size in ["8", *SIZES] if ucx.parse_size(size) == one["bytes"])
            figures[one["op"], size] = one["p50_us"] if size == "8" else one["gb_per_s"] * 1e3
        return figures


def runs_of(name: str, options: argparse.Namespace) -> list[Run]:
    """One run of this contender each, in the order of a turn. Raises Missing."""
    if name == "perftest":
        bandwidths = [(tool, size) for size in SIZES for tool in ("ib_write_bw", "ib_read_bw")]
        alone = [("ib_write_bw -t 1", size) for size in ["8", *SIZES]]
        cases = [*bandwidths, *alone, ("ib_write_lat", "8"), ("ib_send_lat", "8")]
        return [functools.partial(perftest, tool, size, options) for tool, size in cases]
    if name == "ucx":
        peer = Ucx(options)
        cases = [(test, size) for size in SIZES for test in ("ucp_put_bw", "ucp_get")]
        return [functools.partial(peer.run, test, size) for test, size in [*cases, ("ucp_put_lat", "8")]]
    return [Nixl(options).run if name == "nixl" else Weightcast(options).run]


def packets_of(device: str) -> int | None:
    """Sent so far, where the driver counts them by this name."""
    counter = pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts")
    return int(counter.read_text()) if counter.exists() else None


def run_once(run: Run, source: str) -> Figures:
    before = packets_of(source)
    figures = run()
    if before is not None and packets_of(source) == before:
        raise Failed(f"nothing went through {source}")
    return figures


def measure(options: argparse.Namespace) -> dict[str, dict[tuple[str, str], list[float]]]:
    contenders: dict[str, list[Run]] = {}
    for name in options.who:
        try:
            contenders[name] = runs_of(name, options)
        except Missing as missing:
            print(json.dumps({"who": name, "missing": str(missing)}), flush=True)
    found: dict[str, dict[tuple[str, str], list[float]]] = {name: {} for name in contenders}
    end = time.monotonic() + options.seconds
    # Forwards and backwards, so that nobody always comes after the same other.
    for turn in range(options.turns):
        for name in list(contenders)[:: 1 if turn % 2 == 0 else -1]:
            for run in contenders[name]:
                try:
                    if time.monotonic() > end:
                        return found
                    for key, value in run_once(run, options.devices[1]).items():
                        found[name].setdefault(key, []).append(value)
                except (Failed, subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
                    reason = (getattr(error, "stderr", None) or str(error)).strip()[-400:]
                    print(json.dumps({"who": name, "turn": turn, "failed": reason}), flush=True)
                    if not found[name]:  # It does not run here: no more waiting for it.
                        del contenders[name]
                        break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["install"])
    parser.add_argument("--who", default="weightcast,perftest,ucx,nixl", type=lambda text: text.split(","))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no run later than this")
    parser.add_argument("--megabytes", type=float, default=64, help="that perftest and UCX move in each run")
    parser.add_argument(
        "--devices", default="rxe0,rxe1", type=lambda text: text.split(","), help="target, source"
    )
    parser.add_argument("--gid", type=int, default=1, help="index of the GID that perftest uses")
    parser.add_argument("--binary", default=str(ROOT / "build" / "weightcast"))
    parser.add_argument("--transport", default="verbs", help="of weightcast")
    parser.add_argument(
        "--ucx-set", action="append", default=[], metavar="UCX_NAME=VALUE", help="for UCX and NIXL"
    )
    options = parser.parse_args()
    if options.what == "install":
        ucx.Peer(PEERS)
        nixl.Peer(PEERS)
        return
    for name, figures in measure(options).items():
        for (what, size), values in figures.items():
            unit = "us" if size == "8" else "mb_per_s"
            line = {"who": name, "what": what, "size": size, unit: round(statistics.median(values), 1)}
            least, most = round(min(values), 1), round(max(values), 1)
            print(json.dumps({**line, "least": least, "most": most, "turns": len(values)}), flush=True)


if __name__ == "__main__":
    main()
