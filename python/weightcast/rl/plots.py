"""Pictures of a run, from its report: `python -m weightcast.rl.plots RUN_DIR` draws them (again).

reward.png: reward and evaluations; transfer.png: seconds of an update for each way of synchronising;
bandwidth.png: GB/s of all receivers together and of each; timeline.png: who did what when.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import Error, InvalidArgument
from .report import Iteration, Transfer, read_iterations, read_timeline
from .timeline import KINDS, hidden_share

# Okabe and Ito's colours, which colour-blind people can tell apart.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#BBBBBB",
)  # fmt: skip
WAY_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, SKY)
KIND_COLOURS = {
    "generate": GREEN,
    "train": BLUE,
    "publish": YELLOW,
    "transfer": ORANGE,
    "commit": RED,
    "evaluate": PURPLE,
    "wait": GREY,
}
_OF_WEIGHTS = ("publish", "transfer", "commit")
_SHOWN_ITERATIONS = 5
_MOST_ROWS = 32  # Processes in the timeline: the first and the last of more.
_SMOOTHED = 40  # Of at least twice as many values the median is shown.
_WIDTH = 9.0  # Inches, at 150 dots each.


def _pyplot() -> Any:
    """`InvalidArgument` where matplotlib is not installed. Draws into files only, without a display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidArgument("--plots: matplotlib is not installed; pip install matplotlib") from None

    def figure(height: float, rows: int = 1) -> tuple[Any, Any]:
        made = Figure(figsize=(_WIDTH, height), dpi=150, layout="constrained")
        FigureCanvasAgg(made)
        return made, made.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]

    return figure


def _plain(axes: Any, title: str, y: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_ylabel(y)
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def _curve(axes: Any, at: Sequence[int], values: Sequence[float], colour: str, label: str = "") -> None:
    """A line; of many values their running median before the pale values."""
    width = max(1, len(at) // _SMOOTHED)
    if width == 1:
        axes.plot(at, values, color=colour, marker="o" if len(at) <= 40 else "", ms=3, label=label)
        return
    axes.plot(at, values, color=colour, alpha=0.25, lw=0.8)
    middle = [statistics.median(values[max(0, i + 1 - width) : i + 1]) for i in range(len(values))]
    axes.plot(at, middle, color=colour, lw=2, label=label or f"median of {width} iterations")


def _series(rows: Sequence[Iteration], value: Callable[[Iteration], float | None]) -> tuple[list, list]:
    known = [(row.iteration, number) for row in rows if (number := value(row)) is not None]
    return [iteration for iteration, _ in known], [number for _, number in known]


def draw_reward(rows: Sequence[Iteration], figure: Callable[..., Any]) -> Any:
    evaluated, evaluation = _series(rows, lambda row: row.evaluation)
    made, panels = figure(5.4 if evaluation else 3.6, 2 if evaluation else 1)
    _curve(panels[0], *_series(rows, lambda row: row.reward), BLUE)
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(frameon=False)
    _plain(panels[0], "Reward", "mean reward of a rollout")
    if evaluation:
        right = any(row.accuracy is not None for row in rows)
        shown = [100 * one for one in evaluation] if right else evaluation
        panels[1].plot(evaluated, shown, color=GREEN, marker="o", ms=4)
        _plain(panels[1], "Held-out prompts", "right answers, %" if right else "mean reward")
        if right:
            panels[1].set_ylim(-3, 103)
    panels[-1].set_xlabel("iteration")
    return made


def _transfers(rows: Sequence[Iteration]) -> dict[str, list[tuple[int, Transfer]]]:
    """(iteration, transfer) of each way."""
    found: dict[str, list[tuple[int, Transfer]]] = {}
    for row in rows:
        for one in row.transfers:
            found.setdefault(one.way, []).append((row.iteration, one))
    return found


def draw_transfer(rows: Sequence[Iteration], figure: Callable[..., Any]) -> Any:
    made, (axes,) = figure(3.8)
    for (way, moved), colour in zip(_transfers(rows).items(), WAY_COLOURS, strict=False):
        milliseconds = [max(1e3 * one.seconds, 1e-3) for _, one in moved]
        label = f"{way}: median {statistics.median(milliseconds):.3g} ms"
        _curve(axes, [iteration for iteration, _ in moved], milliseconds, colour, label)
    axes.set_yscale("log")
    _plain(axes, "Transfer of one version to all engines", "milliseconds, log scale")
    axes.set_xlabel("iteration")
    _legend_beside(axes)
    return made


def _legend_beside(axes: Any, **more: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.02), frameon=False, fontsize=9, **more)


def draw_bandwidth(rows: Sequence[Iteration], figure: Callable[..., Any]) -> Any:
    """All receivers together, and a panel for each way that knows what each of several has received."""
    ways = _transfers(rows)
    detailed = {way: moved for way, moved in ways.items() if max(len(one.receivers) for _, one in moved) > 1}
    made, panels = figure(3.2 + 2.6 * len(detailed), 1 + len(detailed))
    for (way, moved), colour in zip(ways.items(), WAY_COLOURS, strict=False):
        rates = [one.gb_per_s for _, one in moved]
        label = f"{way}: median {statistics.median(rates):.3g}"
        _curve(panels[0], [iteration for iteration, _ in moved], rates, colour, label)
    for axes, title in zip(
        panels, ["All receivers together", *(f"Each receiver, {way}" for way in detailed)], strict=True
    ):
        _plain(axes, title, "GB/s")
    for moved, axes in zip(detailed.values(), panels[1:], strict=True):
        _draw_receivers([(iteration, one.gb_per_s_each()) for iteration, one in moved], axes)
    for axes in panels:
        axes.set_ylim(bottom=0)
        _legend_beside(axes)
    panels[-1].set_xlabel("iteration")
    return made


def _draw_receivers(each: Sequence[tuple[int, dict[str, float]]], axes: Any) -> None:
    """A line for each receiver; where they are too many to tell apart, their median and extremes."""
    names = sorted({name for _, rates in each for name in rates}, key=_row_order)
    if len(names) <= len(WAY_COLOURS):
        for name, colour in zip(names, WAY_COLOURS, strict=False):
            known = [(iteration, rates[name]) for iteration, rates in each if name in rates]
            _curve(axes, [one for one, _ in known], [rate for _, rate in known], colour, name)
        return
    at = [iteration for iteration, rates in each if rates]
    spread = [sorted(rates.values()) for _, rates in each if rates]
    _curve(axes, at, list(map(statistics.median, spread)), BLUE, f"median of {len(names)} receivers")
    least, most = [one[0] for one in spread], [one[-1] for one in spread]
    axes.fill_between(at, least, most, color=SKY, alpha=0.4, lw=0, label="slowest to fastest")


Entries = Sequence[Mapping[str, Any]]


def _part(entries: Entries, first: int | None, last: int | None) -> tuple[Entries, int, int]:
    """The spans in the time of some iterations, by default the last few, and these iterations' numbers."""
    numbers = [one["iteration"] for one in entries if one["iteration"] is not None]
    highest = max(numbers, default=0) if last is None else last
    lowest = max(min(numbers, default=0), highest - _SHOWN_ITERATIONS + 1) if first is None else first
    chosen = [one for one in entries if lowest <= (one["iteration"] or lowest - 1) <= highest]
    begin = min((one["start"] for one in chosen), default=0.0)
    end = max((one["end"] for one in chosen), default=0.0)
    # What is of no iteration, or of another, belongs to the picture where it happened meanwhile.
    inside = [one for one in entries if one["end"] > begin and one["start"] < end]
    return inside, lowest, highest


def _row_order(process: str) -> tuple[int, list[int | str]]:
    """Trainers first, then the controller, then engines; by number, not by digits."""
    group = next((i for i, one in enumerate(("trainer", "controller")) if process.startswith(one)), 2)
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", process)]


def merged(spans: Entries, gap: float) -> list[dict[str, Any]]:
    """Neighbours of one kind with less than `gap` seconds between them as one, where nobody could tell them
    apart: of one version, or both shorter than that."""
    found: dict[str, list[dict[str, Any]]] = {}
    for span in sorted(spans, key=lambda one: one["start"]):
        bars = found.setdefault(span["kind"], [])
        before = bars[-1] if bars else None
        if before is None or span["start"] - before["end"] >= gap:
            bars.append(dict(span))
        elif before["version"] == span["version"]:
            before["end"] = max(before["end"], span["end"])
        elif span["end"] - span["start"] < gap and before.get("many", before["end"] - before["start"] < gap):
            before |= {"end": max(before["end"], span["end"]), "version": None, "many": True}
        else:
            bars.append(dict(span))
    return [bar for bars in found.values() for bar in bars]


def draw_timeline(
    entries: Entries, figure: Callable[..., Any], first: int | None = None, last: int | None = None
) -> Any:
    shown, lowest, highest = _part(entries, first, last)
    everyone = sorted({one["process"] for one in shown}, key=_row_order)
    processes = [*everyone[: _MOST_ROWS // 2], *everyone[_MOST_ROWS // 2 :][-_MOST_ROWS // 2 :]]
    made, (axes,) = figure(1.9 + 0.42 * max(len(processes), 2))
    begin = min((one["start"] for one in shown), default=0.0)
    end = max((one["end"] for one in shown), default=1.0)
    for row, process in enumerate(processes):
        _draw_row(axes, row, [one for one in shown if one["process"] == process], end - begin)
    axes.set_yticks(range(len(processes)), processes)
    axes.set_ylim(len(processes) - 0.4, -0.6)
    axes.set_xlim(begin, end)
    axes.set_xlabel("seconds since the run's start (number on a bar: version of the weights)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    hidden = hidden_share(shown)
    title = f"Iterations {lowest} to {highest}"
    title += "" if hidden is None else f": engines generate during {hidden:.0%} of the transfers"
    title += "" if processes == everyone else f"; {len(processes)} of {len(everyone)} processes"
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    _kind_legend(axes, {one["kind"] for one in shown})
    return made


def _draw_row(axes: Any, row: int, spans: Entries, length: float) -> None:
    """Above what the process does, below what happens to weights meanwhile, so that overlap can be seen."""
    # Short ones in front of long ones.
    for span in sorted(merged(spans, length / 400), key=lambda one: one["start"] - one["end"]):
        lane = 1 if span["kind"] in _OF_WEIGHTS else 0
        height, top = (0.46, row - 0.36) if lane == 0 else (0.24, row + 0.12)
        width = max(span["end"] - span["start"], length / 400)  # The shortest can be seen too.
        edge = 0.4 if width > length / 100 else 0
        colour = KIND_COLOURS[span["kind"]]
        axes.broken_barh([(span["start"], width)], (top, height), color=colour, ec="white", lw=edge)
        if lane == 0 and span["version"] is not None and span["kind"] != "wait":
            text = str(span["version"])
            if width / length > 0.011 * (len(text) + 0.5):
                middle = (span["start"] + width / 2, top + height / 2)
                axes.text(*middle, text, ha="center", va="center", fontsize=7.5, color="white", clip_on=True)


def _kind_legend(axes: Any, present: set[str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=KIND_COLOURS[kind], label=kind) for kind in KINDS if kind in present]
    _legend_beside(axes, handles=handles, handlelength=1)


def draw(
    run: str | pathlib.Path,
    folder: str | pathlib.Path | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
) -> list[pathlib.Path]:
    """Draws the report in the folder `run` into `folder` (None: into `run`); returns the files.

    first, last: iterations that the timeline shows; None: the last few.
    `InvalidArgument`: no report there, or no matplotlib.
    """
    run = pathlib.Path(run)
    folder = run if folder is None else pathlib.Path(folder)
    rows, entries = read_iterations(run), read_timeline(run)
    if not rows:
        raise InvalidArgument(f"{run} has no report with an iteration; name the folder of a run")
    figure = _pyplot()
    pictures = {"reward.png": draw_reward(rows, figure)}
    if _transfers(rows):
        pictures["transfer.png"] = draw_transfer(rows, figure)
        pictures["bandwidth.png"] = draw_bandwidth(rows, figure)
    if entries:
        pictures["timeline.png"] = draw_timeline(entries, figure, first, last)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        picture.savefig(folder / name)
    return [folder / name for name in pictures]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m weightcast.rl.plots", description="Draws a run's report."
    )
    parser.add_argument("run", help="folder of the run, with iterations.jsonl")
    parser.add_argument("--plots", metavar="DIR", help="where to (default: the folder of the run)")
    parser.add_argument("--first", type=int, metavar="N", help="first iteration of the timeline")
    parser.add_argument("--last", type=int, metavar="N", help="last iteration of the timeline")
    options = parser.parse_args()
    try:
        for path in draw(options.run, options.plots, first=options.first, last=options.last):
            print(path)
    except Error as error:
        sys.exit(f"weightcast: {error}")


if __name__ == "__main__":
    main()
