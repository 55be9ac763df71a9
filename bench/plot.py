#!/usr/bin/env python3
"""Draws what `weightcast bench p2p --json` or `weightcast bench update --json` has measured.

    weightcast bench p2p --json | bench/plot.py p2p.svg
    weightcast bench update --sweep-trainers 1,2,4 --json | bench/plot.py update.png

GB/s by bytes, a line for each transport, memory and op. Or by trainers, a line for each transport and
landing.
The ending of the file's name says its format. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import sys
from typing import Any

from matplotlib.figure import Figure


def lines_of(report: dict[str, Any]) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """What stands on the x axis; the points of each line. Pieces that lie apart are left out: their sizes are
    of another scale."""
    x, names = (
        ("trainers", ("transport", "landing"))
        if "model" in report
        else ("bytes", ("transport", "memory", "op"))
    )
    lines = collections.defaultdict(list)
    for one in report["results"]:
        if one.get("iovs", 1) == 1:
            lines[" ".join(one[name] for name in names)].append((one[x], one["gb_per_s"]))
    return x, lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("report", nargs="?", type=argparse.FileType(), default=sys.stdin, help="JSON (stdin)")
    arguments = parser.parse_args()
    x, lines = lines_of(json.load(arguments.report))
    axes = Figure(figsize=(8, 5), layout="constrained").subplots()
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set(xlabel=x, ylabel="GB/s")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.legend()
    axes.figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
