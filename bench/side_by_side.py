#!/usr/bin/env python3
"""Measures weightcast beside what the machine allows and beside other engines, in the same minutes.

Each run is two fresh processes pinned to one core each. Runs of all contenders take turns, so that what
else happens on the machine meets them alike. A ratio is speed by speed, weightcast's first, of two runs of
the same turn: the median over all turns, in brackets the least and the greatest. The source writes new
bytes before each timed write and the target reads them afterwards; a peer that cannot do so (it says
"same bytes") is compared with weightcast doing as it does. Peers are installed below build/peers; one that
cannot be is left out, with the reason. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
from collections.abc import Callable

from peers import Missing, Peer, gloo, mooncake, nixl, ucx

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = {"ucx": ucx.Peer, "nixl": nixl.Peer, "mooncake": mooncake.Peer, "gloo": gloo.Peer}
PATHS = {  # What weightcast is told, and what the machine's own is.
    "tcp": (["--transports", "tcp", "--memories", "any"], ["socket", "socket-ping"]),
    "any": (["--transports", "shm", "--memories", "any"], ["cross"]),
    "huge": (["--transports", "shm", "--memories", "huge"], ["cross-huge"]),
    "mapped": (["--transports", "shm", "--memories", "mapped"], ["memcpy", "stream", "flag-ping"]),
}
SIZES = {path: "8,64K,1M,16M,256M,200x64K" + ("" if path == "tcp" else ",1G") for path in PATHS}
TITLES = {
    "tcp": "tcp",
    "any": "shm, any memory",
    "huge": "shm, any memory in huge pages",
    "mapped": "shm, mapped memory",
}

LEAST_BOTH = 64 << 10  # Below, both directions at once say nothing.

Figures = dict[str, float]  # Size → microseconds of one write.
Contender = tuple[str, bool, Callable[[], Figures]]  # Name, whether it sends the same bytes, one run.


class Weightcast:
    def __init__(self, binary: pathlib.Path, seconds: float, cores: list[int]) -> None:
        self.command = ["taskset", "-c", ",".join(map(str, cores)), str(binary), "bench"]
        self.options = ["--json", "--milliseconds", str(round(seconds * 1000))]

    def _results(self, *arguments: str) -> list[dict]:
        command = [*self.command, *arguments, *self.options]
        result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        return json.loads(result.stdout)["results"]

    def write(self, path: str, sizes: list[str], reuse: bool) -> Figures:
        more = ["--reuse"] if reuse else []
        asked = ["p2p", *PATHS[path][0], "--ops", "write", "--sizes", ",".join(sizes), *more]
        return {size: one["p50_us"] for size, one in zip(sizes, self._results(*asked), strict=True)}

    def both(self, path: str, sizes: list[str]) -> Figures:
        """Both directions at once: the time of the bytes of one at the speed of their sum."""
        asked = ["p2p", *PATHS[path][0], "--ops", "write", "--sizes", ",".join(sizes), "--both"]
        results = self._results(*asked)
        return {
            size: bytes_of(size) / one["gb_per_s"] / 1e3 for size, one in zip(sizes, results, strict=True)
        }

    def floor(self, what: str, sizes: list[str]) -> Figures:
        plain = ["8"] if what.endswith("-ping") else [size for size in sizes if "x" not in size]
        results = self._results("floor", "--what", what, "--sizes", ",".join(plain))
        return {size: one["p50_us"] for size, one in zip(plain, results, strict=True)}


def bytes_of(size: str) -> int:
    pieces, _, length = size.rpartition("x")
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(length[-1], 1)
    return int(pieces or 1) * int(length.rstrip("KMG")) * unit


def sizes_of(path: str, arguments: argparse.Namespace) -> list[str]:
    return (arguments.sizes or SIZES[path]).split(",")


def contenders_of(
    path: str, ours: Weightcast, peers: list[Peer], arguments: argparse.Namespace
) -> list[Contender]:
    sizes = sizes_of(path, arguments)
    peers = [peer for peer in peers if path in peer.paths]
    found: list[Contender] = [("weightcast", False, lambda: ours.write(path, sizes, reuse=False))]
    if any(peer.reuse for peer in peers):
        found.append(("weightcast, same bytes", True, lambda: ours.write(path, sizes, reuse=True)))
    large = [size for size in sizes if bytes_of(size) >= LEAST_BOTH]
    if large:
        found.append(("weightcast, both directions", False, lambda: ours.both(path, large)))
    for what in PATHS[path][1]:
        found.append((f"floor: {what}", False, lambda what=what: ours.floor(what, sizes)))
    for peer in peers:
        name = f"{peer.name}, same bytes" if peer.reuse else peer.name
        run = lambda peer=peer: peer.measure(path, sizes, arguments.seconds, arguments.cores)  # noqa: E731
        found.append((name, peer.reuse, run))
    return found


def take_turns(contenders: list[Contender], turns: int) -> dict[str, list[Figures]]:
    """For each contender its figures of each turn; none where a run has failed, which is said."""
    figures: dict[str, list[Figures]] = {name: [] for name, _, _ in contenders}
    for turn in range(turns):
        # Forwards and backwards, so that nobody always comes after the same other.
        for name, _, run in contenders if turn % 2 == 0 else reversed(contenders):
            try:
                figures[name].append(run())
            except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
                print(f"{name}: a run has failed: {reason(error)}", file=sys.stderr)
                figures[name].append({})
    return figures


def reason(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else str(error)


def speed(size: str, microseconds: list[float]) -> str:
    middle = statistics.median(microseconds)
    return f"{middle:.2f} µs" if bytes_of(size) < 4096 else f"{bytes_of(size) / middle / 1e3:.2f} GB/s"


def rows_of(
    path: str, contenders: list[Contender], figures: dict[str, list[Figures]], size: str
) -> list[dict]:
    rows = []
    for name, reuse, _ in contenders:
        times = [turn[size] for turn in figures[name] if size in turn]
        own = "weightcast, same bytes" if reuse else "weightcast"
        pairs = zip(figures[own], figures[name], strict=True)
        ratios = [theirs[size] / ours[size] for ours, theirs in pairs if size in ours and size in theirs]
        if not times or not ratios:
            continue
        row = {
            "path": path,
            "size": size,
            "contender": name,
            "speed": speed(size, times),
            "turns": len(ratios),
        }
        row |= {
            "p50_us": statistics.median(times),
            "gb_per_s": bytes_of(size) / statistics.median(times) / 1e3,
        }
        if name != own:
            row |= {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}
        rows.append(row)
    return rows


def print_rows(rows: list[dict]) -> None:
    for row in rows:
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f}–{row['greatest']:.2f})" if "ratio" in row else ""
        print(
            "|",
            TITLES[row["path"]],
            "|",
            row["size"],
            "|",
            row["contender"],
            "|",
            row["speed"],
            "|",
            ratio,
            "|",
        )
    sys.stdout.flush()


def install(names: list[str], folder: pathlib.Path) -> list[Peer]:
    peers = []
    for name in names:
        try:
            peers.append(PEERS[name](folder))
        except Missing as error:
            print(f"left out: {PEERS[name].name}: {error}", flush=True)
    return peers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9, help="runs of each contender (default 9)")
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="for each size in a run, about (default 0.2)"
    )
    parser.add_argument(
        "--sizes", help="of a write, or pieces: 200x64K (default up to 256M, 1G within the host)"
    )
    parser.add_argument("--paths", default=",".join(PATHS), help="(default %(default)s)")
    parser.add_argument("--peers", default=",".join(PEERS), help="(default %(default)s)")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "weightcast")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there, too")
    arguments = parser.parse_args()
    for given, known in ((arguments.paths, PATHS), (arguments.peers, PEERS)):
        for name in filter(None, given.split(",")):
            if name not in known:
                parser.error(f"'{name}' is none of {', '.join(known)}")
    usable = sorted(os.sched_getaffinity(0))
    arguments.cores = [usable[0], usable[1 % len(usable)]]
    return arguments


def main() -> None:
    arguments = parse()
    load = os.getloadavg()[0]
    print(
        f"cores {arguments.cores[0]} and {arguments.cores[1]}, {arguments.turns} turns, load {load:.1f}",
        flush=True,
    )
    if load > 0.5:
        print("Something else runs: these figures are not reliable.", flush=True)
    peers = install([name for name in arguments.peers.split(",") if name], ROOT / "build" / "peers")
    ours = Weightcast(arguments.binary, arguments.seconds, arguments.cores)
    print("| path | size | who | speed | weightcast by it |")
    print("|---|---|---|---|---|", flush=True)
    rows = []
    for path in arguments.paths.split(","):
        contenders = contenders_of(path, ours, peers, arguments)
        figures = take_turns(contenders, arguments.turns)
        for size in sizes_of(path, arguments):
            found = rows_of(path, contenders, figures, size)
            print_rows(found)
            rows += found
    if arguments.json:
        arguments.json.write_text(json.dumps({"load": load, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
