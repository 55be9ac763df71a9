"""Pictures of a run, from its report: `python -m weightcast.rl.plots RUN_DIR` draws them (again).

reward.png: reward and evaluations; transfer.png: seconds of an update for each way of synchronising;
bandwidth.png: GB/s of all receivers together and of each; trace.json: who did what when, to be opened with
ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from .. import Error, InvalidArgument
from .console import by_way
from .report import Iteration, read_iterations, read_timeline
from .timeline import chrome_trace

_MOST_LINES = 6  # Of receivers that can be told apart in one panel.
_SMOOTHED = 40  # Of at least twice as many values the median is shown.
_WIDTH = 9.0  # Inches, at 150 dots each.


def check() -> None:
    """`InvalidArgument` where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidArgument("--plots: matplotlib is not installed; pip install matplotlib")


def _panels(height: float, titles: Sequence[str], units: Sequence[str]) -> tuple[Any, Any]:
    """A figure without a display, and its panels."""
    from matplotlib import style
    from matplotlib.figure import Figure

    # Colours that colour-blind people can tell apart.
    with style.context("tableau-colorblind10"):
        made = Figure(figsize=(_WIDTH, height), dpi=150, layout="constrained")
        panels = made.subplots(len(titles), 1, sharex=True, squeeze=False)[:, 0]
    for axes, title, unit in zip(panels, titles, units, strict=True):
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
        axes.set_ylabel(unit)
        axes.grid(True, alpha=0.3)
    panels[-1].set_xlabel("iteration")
    return made, panels


def _curve(axes: Any, points: Sequence[tuple[int, float]], label: str = "") -> None:
    """A line; of many values their running median before the pale values."""
    at, values = [one for one, _ in points], [value for _, value in points]
    width = max(1, len(at) // _SMOOTHED)
    if width == 1:
        axes.plot(at, values, marker="o", ms=3, label=label)
        return
    (pale,) = axes.plot(at, values, alpha=0.25, lw=0.8)
    middle = [statistics.median(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]
    axes.plot(at, middle, color=pale.get_color(), lw=2, label=label or f"median of {width} iterations")


def _legend_beside(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=9)


def draw_reward(rows: Sequence[Iteration]) -> Any:
    rewards = [(row.iteration, row.reward) for row in rows if row.reward is not None]
    evaluated = [(row.iteration, row.evaluation) for row in rows if row.evaluation is not None]
    titles = ["Reward", "Held-out prompts"][: 1 + bool(evaluated)]
    right = any(row.accuracy is not None for row in rows)
    units = ["mean reward of a rollout", "share of right answers" if right else "mean reward"]
    made, panels = _panels(5.4 if evaluated else 3.6, titles, units[: len(titles)])
    for axes, points in zip(panels, (rewards, evaluated), strict=False):
        _curve(axes, points)
    return made


def draw_transfer(rows: Sequence[Iteration]) -> Any:
    made, (axes,) = _panels(3.8, ["Transfer of one version to all engines"], ["milliseconds, log scale"])
    for way, moved in by_way(rows).items():
        points = [(iteration, max(1e3 * one.seconds, 1e-3)) for iteration, one in moved]
        _curve(axes, points, f"{way}: median {statistics.median(took for _, took in points):.3g} ms")
    axes.set_yscale("log")
    _legend_beside(axes)
    return made


def draw_bandwidth(rows: Sequence[Iteration]) -> Any:
    """All receivers together, and a panel for each way that knows what each of several has received."""
    ways = by_way(rows)
    detailed = {way: moved for way, moved in ways.items() if max(len(one.receivers) for _, one in moved) > 1}
    titles = ["All receivers together", *(f"Each receiver, {way}" for way in detailed)]
    made, panels = _panels(3.2 + 2.6 * len(detailed), titles, ["GB/s"] * len(titles))
    for way, moved in ways.items():
        points = [(iteration, one.gb_per_s) for iteration, one in moved]
        _curve(panels[0], points, f"{way}: median {statistics.median(rate for _, rate in points):.3g}")
    for moved, axes in zip(detailed.values(), panels[1:], strict=True):
        _draw_receivers([(iteration, one.gb_per_s_each()) for iteration, one in moved], axes)
    for axes in panels:
        axes.set_ylim(bottom=0)
        _legend_beside(axes)
    return made


def _draw_receivers(each: Sequence[tuple[int, dict[str, float]]], axes: Any) -> None:
    """A line for each receiver; where they are too many to tell apart, their median and extremes."""
    names = sorted({name for _, rates in each for name in rates})
    if len(names) <= _MOST_LINES:
        for name in names:
            _curve(axes, [(iteration, rates[name]) for iteration, rates in each if name in rates], name)
        return
    spread = [(iteration, sorted(rates.values())) for iteration, rates in each if rates]
    middle = [(iteration, statistics.median(rates)) for iteration, rates in spread]
    _curve(axes, middle, f"median of {len(names)} receivers")
    at, least, most = zip(*((iteration, rates[0], rates[-1]) for iteration, rates in spread), strict=True)
    axes.fill_between(at, least, most, alpha=0.3, lw=0, label="slowest to fastest")


def draw(run: str | pathlib.Path, folder: str | pathlib.Path | None = None) -> list[pathlib.Path]:
    """Draws the report in the folder `run` into `folder` (None: into `run`); returns the files.

    `InvalidArgument`: no report there, or no matplotlib.
    """
    check()
    run = pathlib.Path(run)
    folder = run if folder is None else pathlib.Path(folder)
    rows, entries = read_iterations(run), read_timeline(run)
    if not rows:
        raise InvalidArgument(f"no iteration in {run}/iterations.jsonl; name the --output folder of a run")
    pictures = {"reward.png": draw_reward(rows)}
    if by_way(rows):
        pictures |= {"transfer.png": draw_transfer(rows), "bandwidth.png": draw_bandwidth(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        picture.savefig(folder / name)
    drawn = [folder / name for name in pictures]
    if entries:
        drawn.append(folder / "trace.json")
        drawn[-1].write_text(json.dumps(chrome_trace(entries)))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m weightcast.rl.plots", description="Draws a run's report."
    )
    parser.add_argument("run", help="folder of the run, with iterations.jsonl")
    parser.add_argument("--plots", metavar="DIR", help="where to (default: the folder of the run)")
    options = parser.parse_args()
    try:
        for path in draw(options.run, options.plots):
            print(path)
    except Error as error:
        sys.exit(f"weightcast: {error}")


if __name__ == "__main__":
    main()
