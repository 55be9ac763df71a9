"""What a run shows on standard output: a table while it goes on, and a summary at its end."""

from __future__ import annotations

import contextlib
import statistics
import sys
import textwrap
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Iteration, Sample, Transfer

WIDTH = 100  # No line is longer.
# Title, width, digits after the point. Times in seconds, GB of 10^9 bytes.
_COLUMNS = (
    ("iter", 5, 0),
    ("reward", 7, 4),
    ("KL", 7, 5),
    ("|dlogp|", 7, 5),
    ("eval", 5, 3),
    ("stale", 5, 2),
    ("train s", 7, 3),
    ("gen s", 7, 3),
    ("transfer s", 10, 3),
    ("total s", 7, 3),
    ("MB", 8, 1),
    ("GB/s", 6, 2),
    ("changed", 7, 0),
)
_BEFORE_TRANSFER = sum(width + 1 for _, width, _ in _COLUMNS[:8]) - 1
_HEADER_EVERY = 25

Cell = float | str | None


def number(value: Cell, width: int, digits: int) -> str:
    """With as many digits after the point as fit."""
    if value is None or isinstance(value, str):
        return value or "-"
    texts = (f"{value:.{fewer}f}" for fewer in range(digits, -1, -1))
    return next((text for text in texts if len(text) <= width), f"{value:.0e}")


def _line(cells: Sequence[Cell], first: int = 0) -> str:
    """Of the columns from `first` on."""
    columns = _COLUMNS[first : first + len(cells)]
    texts = (
        number(cell, width, digits).rjust(width)
        for cell, (_, width, digits) in zip(cells, columns, strict=True)
    )
    return " ".join(texts)


def _transfer_cells(transfer: Transfer | None, total: Cell) -> list[Cell]:
    """From the column of its seconds on."""
    if transfer is None:
        return [None, total, None, None, None]
    changed = f"{transfer.tensors_changed}/{transfer.tensors}"
    return [transfer.seconds, total, transfer.bytes / 1e6, transfer.gb_per_s, changed]


def rows(row: Iteration) -> list[str]:
    """A line for the iteration, and a line with its name for each further way of synchronising."""
    learning: list[Cell] = [row.iteration, row.reward, row.kl, row.train_rollout_logprob_abs_diff]
    learning += [row.evaluation, row.staleness, row.training_s, row.generation_s]
    first = row.transfers[0] if row.transfers else None
    lines = [_line([*learning, *_transfer_cells(first, row.total_s)])]
    for other in row.transfers[1:]:
        lines.append(f"{other.way:>{_BEFORE_TRANSFER}} {_line(_transfer_cells(other, ' '), 8)}")
    return lines


def header() -> list[str]:
    titles = _line([title for title, _, _ in _COLUMNS])
    return [titles, "-" * len(titles)]


def _first_and_last(name: str, values: Sequence[float | None], digits: int) -> list[str]:
    """Means of the first and the last fifth, as one rollout says little."""
    known = [value for value in values if value is not None]
    if not known:
        return []
    fifth = max(1, len(known) // 5)
    before, after = statistics.fmean(known[:fifth]), statistics.fmean(known[-fifth:])
    return [f"{name}: {before:.{digits}f} -> {after:.{digits}f} (best {max(known):.{digits}f})"]


def _span_of(values: Sequence[float]) -> str:
    """The lowest and the highest."""
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def by_way(rows: Sequence[Iteration]) -> dict[str, list[tuple[int, Transfer]]]:
    """(iteration, transfer) of each way."""
    found: dict[str, list[tuple[int, Transfer]]] = {}
    for row in rows:
        for one in row.transfers:
            found.setdefault(one.way, []).append((row.iteration, one))
    return found


def _way_lines(history: Sequence[Iteration]) -> list[str]:
    ways = by_way(history)
    if not ways:
        return []
    width = max(map(len, ways))
    titles = ("updates", "median s", "min s", "max s", "MB each", "GB/s", "GB/s each")
    lines = [f"{'way':<{width}} " + " ".join(title.rjust(10) for title in titles)]
    for way, moved in ways.items():
        transfers = [one for _, one in moved]
        seconds = [one.seconds for one in transfers]
        cells = (
            str(len(transfers)),
            *(f"{one:.3f}" for one in (statistics.median(seconds), min(seconds), max(seconds))),
            f"{transfers[-1].bytes / 1e6:.1f}",
            f"{statistics.median(one.gb_per_s for one in transfers):.2f}",
            _span_of([rate for one in transfers for rate in one.gb_per_s_each().values()]),
        )
        lines.append(f"{way:<{width}} " + " ".join(cell.rjust(10) for cell in cells))
    return lines


def summary(history: Sequence[Iteration], hidden: float | None) -> list[str]:
    """What the run came to. hidden: see `timeline.hidden_share`."""
    if not history:
        return []
    total = sum(row.total_s for row in history)
    parts = []
    for kind in ("training", "generation", "transfer"):
        seconds = sum(getattr(row, f"{kind}_s") for row in history)
        share = f" ({seconds / total:.0%})" if total > 0 else ""
        parts.append(f"{kind} {seconds:.2f} s{share}")
    lines = [
        f"{len(history)} iterations in {total:.2f} s: {', '.join(parts)}",
        *_first_and_last("reward", [row.reward for row in history], 4),
        *_first_and_last("accuracy", [row.accuracy for row in history], 3),
        *_first_and_last("evaluation", [row.metrics.get("eval_reward") for row in history], 4),
    ]
    if hidden is not None:
        lines.append(f"engines were generating during {hidden:.0%} of the time in which weights moved")
    return [*lines, *_way_lines(history)]


def _of_sample(one: Sample) -> str:
    prompt, completion = (
        repr(text if len(text) <= 60 else f"{text[:57]}...") for text in (one.prompt, one.completion)
    )
    return f"a sample of iteration {one.iteration}: {prompt} -> {completion}, reward {one.reward:.3g}"


class Console:
    """The table; a sample of what engines write stands above each of its headers."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._rows = 0
        self._sample: Sample | None = None

    def show(self, *lines: str) -> None:
        """Longer lines are wrapped."""
        wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        short = [part for line in lines for part in ([line] if len(line) <= WIDTH else wrapper.wrap(line))]
        # Standard output may be a file on a full disk, or a pipe that nobody reads any more.
        with contextlib.suppress(OSError):
            print(*short, sep="\n", file=self._out, flush=True)

    def sample(self, one: Sample) -> None:
        """The one for the next header."""
        self._sample = one

    def iteration(self, row: Iteration) -> None:
        if self._rows % _HEADER_EVERY == 0:
            if self._sample is not None:
                self.show(_of_sample(self._sample))
            self.show(*header())
        self._rows += 1
        self.show(*rows(row))
