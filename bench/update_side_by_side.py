#!/usr/bin/env python3
"""Times whole updates beside what the machine allows and beside NIXL, taking turns.

Qwen2.5-0.5B in bf16, two trainers with a replica each, two inference engines: every engine's bytes come half
from each trainer. weightcast: five processes (with the controller), `weightcast bench update`. NIXL: the four
that move bytes, told what goes where beforehand (bench/peers/nixl_update.py). The floor: two pinned processes
that copy as many bytes once, by the 1 GiB of `weightcast bench floor`. A ratio is time by time of the same
turn, the median over all turns; below 1 weightcast is the faster. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from peers import Missing, nixl

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HIDDEN, INNER, KEYS, WORDS = 24, 896, 4864, 128, 151_936
LAYER = [HIDDEN * HIDDEN, HIDDEN, KEYS * HIDDEN, KEYS, KEYS * HIDDEN, KEYS, HIDDEN * HIDDEN]
LAYER += [INNER * HIDDEN, INNER * HIDDEN, HIDDEN * INNER, HIDDEN, HIDDEN]
TENSORS = [2 * values for values in [WORDS * HIDDEN, *LAYERS * LAYER, HIDDEN]]
BYTES = 2 * sum(TENSORS)  # To both engines.
FLOORS = {"cross": "a cross-process copy", "stream": "a non-temporal copy", "socket": "a socket pair"}


class Runner:
    def __init__(self, binary: pathlib.Path, versions: int) -> None:
        self.binary, self.versions = binary, versions

    def _json(self, *command: object, **environment: str) -> dict:
        words = list(map(str, command))
        environment = {**os.environ, **environment}
        done = subprocess.run(
            words, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=600
        )
        return json.loads(done.stdout)

    def weightcast(self, transport: str) -> float:
        model = ["--model", "qwen2.5-0.5b", "--versions", self.versions, "--transports", transport]
        (result,) = self._json(self.binary, "bench", "update", *model, "--json")["results"]
        if result["bytes"] != BYTES:
            sys.exit(f"an update of {result['bytes']} bytes where {BYTES} were expected")
        return result["median_seconds"]

    def floor(self, what: str) -> float:
        (result,) = self._json(self.binary, "bench", "floor", "--what", what, "--sizes", "1G", "--json")[
            "results"
        ]
        return BYTES / result["gb_per_s"] / 1e9

    def nixl(self, python: pathlib.Path, **environment: str) -> float:
        program = ROOT / "bench" / "peers" / "nixl_update.py"
        sizes = ",".join(map(str, TENSORS))
        asked = ["--tensors", sizes, "--rounds", self.versions - 1]
        return self._json(python, program, *asked, **environment)["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--versions", type=int, default=6, help="in each run; the first is not counted")
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "weightcast")
    options = parser.parse_args()
    runner = Runner(options.binary, options.versions)
    runs = {f"weightcast, {path}": lambda path=path: runner.weightcast(path) for path in ("shm", "tcp")}
    runs |= {f"floor: {text}": lambda what=what: runner.floor(what) for what, text in FLOORS.items()}
    try:
        python = nixl.Peer(ROOT / "build" / "peers").python
        runs["NIXL, its own choice"] = lambda: runner.nixl(python)
        runs["NIXL, tcp"] = lambda: runner.nixl(python, UCX_TLS="tcp,self")
    except Missing as error:
        print(f"left out: NIXL: {error}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(options.turns):
        for name in list(runs) if turn % 2 == 0 else reversed(runs):
            seconds[name].append(runs[name]())
    print(f"{BYTES / 1e9:.3f} GB an update, {options.turns} turns, load {os.getloadavg()[0]:.1f}")
    print("| who | seconds | weightcast shm by it | weightcast tcp by it |\n|---|---|---|---|")
    for name, times in seconds.items():
        cells = [name, f"{statistics.median(times):.3f}"]
        for path in ("shm", "tcp"):
            ratios = [
                ours / theirs for ours, theirs in zip(seconds[f"weightcast, {path}"], times, strict=True)
            ]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
