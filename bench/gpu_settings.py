#!/usr/bin/env python3
"""Compares the settings that say how GPUs copy: single transfers, and whole updates within one GPU.

Each setting is measured alone, the other ones as they are. Single transfers are `weightcast bench p2p`,
within GPU 0 and, where there are two, from GPU 0 to GPU 1; every byte is compared. Updates go from one
process to another on GPU 0; every element is compared. A figure is a median. After `--seconds` no more is
begun; what is left then stands as "-" in the table.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "gpu" / "cases"))

from cluster import Cluster  # noqa: E402
from models import bytes_of, qwen  # noqa: E402

ALL = "1G"  # Longer than any copy of a batch.


@dataclass(frozen=True)
class Variant:
    name: str
    settings: dict[str, str]
    updates: bool = False  # Whether whole updates are worth their time.


VARIANTS = (
    Variant("as it is", {}, True),
    Variant("within a GPU the engine alone", {"copy_by_kernel": "0"}, True),
    Variant("within a GPU a kernel alone, 132 blocks", {"copy_by_kernel": ALL, "copy_blocks": "132"}, True),
    Variant("within a GPU a kernel alone, 64 blocks", {"copy_by_kernel": ALL, "copy_blocks": "64"}),
    Variant("within a GPU a kernel alone, 32 blocks", {"copy_by_kernel": ALL, "copy_blocks": "32"}),
    Variant("small ones by 132 blocks", {"copy_blocks": "132"}),
    Variant("small ones by 16 blocks", {"copy_blocks": "16"}),
    Variant("chunks of 64 MiB", {"chunk": "4M"}, True),
    Variant("1 stream", {"copy_streams": "1"}),
    Variant("4 streams", {"copy_streams": "4"}, True),
    Variant("no kernels", {"gpu_kernels": "0"}),
)
UPDATES = "update"


class Comparison:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._ends = time.monotonic() + options.seconds
        self._found: dict[tuple[str, str], str] = {}
        self._columns: list[str] = []

    def _put(self, variant: Variant, column: str, seconds: float, size: int) -> None:
        if column not in self._columns:
            self._columns.append(column)
        micro = 1e6 * seconds
        text = f"{micro:.0f} us" if micro < 1000 else f"{micro / 1000:.2f} ms"
        rate = size / seconds / 1e9
        self._found[variant.name, column] = f"{text} ({rate:.0f} GB/s)" if rate >= 1 else text
        row = {
            "experiment": f"{column}: {variant.name}", "predicted": "",
            "measured": round(micro, 1), "unit": "us", "note": f"{rate:.1f} GB/s",
        }  # fmt: skip
        print(json.dumps(row), flush=True)

    @property
    def time_is_up(self) -> bool:
        return time.monotonic() >= self._ends

    def transfers(self, variant: Variant, devices: str) -> None:
        sizes = "3x64K,64K" if self.options.small else "200x64K,64K,16M,1G"
        command = [self.options.binary, "bench", "p2p", "--memory", "cuda", "--transports", "shm", "--json"]
        command += ["--devices", devices, "--sizes", sizes, "--milliseconds", 20, "--ops"]
        ops = "write" if self.options.small else "write,read"
        settings = {f"WEIGHTCAST_{name.upper()}": value for name, value in variant.settings.items()}
        done = subprocess.run(
            [str(word) for word in [*command, ops]], check=True, stdout=subprocess.PIPE, text=True,
            timeout=120, env=os.environ | settings,
        )  # fmt: skip
        for one in json.loads(done.stdout)["results"]:
            pieces = f"{one['iovs']} x " if one["iovs"] > 1 else ""
            size = f"{pieces}{one['bytes'] // one['iovs'] // 1024} KiB"
            self._put(variant, f"{one['op']} {size}, {devices}", one["p50_us"] / 1e6, one["bytes"])

    def updates(self, variant: Variant) -> None:
        name = "small" if self.options.small else "7b"
        shapes = qwen(name)
        seconds = []
        with Cluster(shapes, [0], [0], settings=variant.settings) as cluster:
            for version in range(1, 3 if self.options.small else 9):
                cluster.write(version)
                seconds.append(cluster.update(version))
        self._put(variant, f"{UPDATES} of {name}, one GPU", statistics.median(seconds[1:]), bytes_of(shapes))

    def run(self) -> None:
        several = ["0,0", "0,1"] if self.options.gpus > 1 else ["0,0"]
        for variant in VARIANTS:
            for devices in several:
                if not self.time_is_up:
                    self.transfers(variant, devices)
            if variant.updates and not self.time_is_up:
                self.updates(variant)

    def table(self) -> str:
        """A line for each figure, since there are more of them than settings."""
        lines = ["| | " + " | ".join(one.name for one in VARIANTS) + " |", "|---" * (len(VARIANTS) + 1) + "|"]
        for column in self._columns:
            cells = (self._found.get((one.name, column), "-") for one in VARIANTS)
            lines.append(f"| {column} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "weightcast")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=140, help="after these nothing more is begun")
    parser.add_argument("--table", type=pathlib.Path, help="a file for the table, besides the output")
    parser.add_argument("--small", action="store_true", help="small sizes, for the fake driver")
    options = parser.parse_args()
    comparison = Comparison(options)
    comparison.run()
    table = comparison.table()
    if options.table is not None:
        options.table.write_text(table + "\n")
    print(table, flush=True)


if __name__ == "__main__":
    main()
