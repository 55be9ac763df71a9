"""What a run shows while it goes on: a table on standard output, and a progress bar on a terminal."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Iteration, Sample, Transfer

# Title, width. Times in seconds, GB of 10^9 bytes.
COLUMNS = (
    ("iter", 5),
    ("reward", 8),
    ("KL", 8),
    ("|dlogp|", 8),
    ("eval", 8),
    ("stale", 6),
    ("train s", 8),
    ("generate s", 10),
    ("transfer s", 10),
    ("total s", 8),
    ("MB", 9),
    ("GB/s", 7),
    ("GB/s each", 11),
    ("changed", 9),
)
_HEADER_EVERY = 25
_CLEAR = "\r\x1b[K"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def span_of(values: Sequence[float]) -> str:
    """The lowest and the highest."""
    if not values:
        return "-"
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def _line(cells: Sequence[str], way: str) -> str:
    text = " ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    return f"{text}  {way}".rstrip()


def _transfer_cells(transfer: Transfer | None) -> list[str]:
    if transfer is None:
        return ["-"] * 5
    changed = f"{transfer.tensors_changed}/{transfer.tensors}"
    rates = list(transfer.gb_per_s_each().values())
    return [
        number(transfer.seconds, 3),
        number(transfer.bytes / 1e6, 1),
        number(transfer.gb_per_s, 2),
        span_of(rates),
        changed,
    ]


def rows(row: Iteration) -> list[str]:
    """A line for the iteration, and one for each further way of synchronising."""
    first = row.transfers[0] if row.transfers else None
    seconds, *moved = _transfer_cells(first)
    cells = [
        str(row.iteration),
        number(row.reward, 4),
        number(row.kl, 5),
        number(row.train_rollout_logprob_abs_diff, 5),
        number(row.evaluation, 3),
        number(row.staleness, 2),
        number(row.training_s, 3),
        number(row.generation_s, 3),
        seconds,
        number(row.total_s, 3),
        *moved,
    ]
    lines = [_line(cells, first.way if first else "")]
    for other in row.transfers[1:]:
        seconds, *moved = _transfer_cells(other)
        lines.append(_line(["", "", "", "", "", "", "", "", seconds, "", *moved], other.way))
    return lines


def header() -> list[str]:
    titles = _line([title for title, _ in COLUMNS], "way")
    return [titles, "-" * (len(titles) + 9)]


def _part(name: str, seconds: float, whole: float) -> str:
    return f"{name} {seconds:.2f} s ({seconds / whole:.0%})" if whole > 0 else f"{name} {seconds:.2f} s"


def _first_and_last(name: str, values: Sequence[float | None], digits: int) -> list[str]:
    """Means of the first and the last fifth, as one rollout says little."""
    known = [value for value in values if value is not None]
    if not known:
        return []
    fifth = max(1, len(known) // 5)
    before, after = statistics.fmean(known[:fifth]), statistics.fmean(known[-fifth:])
    return [f"{name}: {before:.{digits}f} -> {after:.{digits}f} (best {max(known):.{digits}f})"]


def _way_lines(history: Sequence[Iteration]) -> list[str]:
    ways: dict[str, list[Transfer]] = {}
    for row in history:
        for one in row.transfers:
            ways.setdefault(one.way, []).append(one)
    if not ways:
        return []
    width = max(12, *(len(way) for way in ways))
    titles = ("updates", "median s", "min s", "max s", "MB each", "GB/s", "GB/s each")
    lines = [f"{'way':<{width}} " + " ".join(title.rjust(11) for title in titles)]
    for way, transfers in ways.items():
        seconds = [one.seconds for one in transfers]
        each = [rate for one in transfers for rate in one.gb_per_s_each().values()]
        cells = (
            str(len(transfers)),
            number(statistics.median(seconds), 3),
            number(min(seconds), 3),
            number(max(seconds), 3),
            number(statistics.fmean(one.bytes for one in transfers) / 1e6, 1),
            number(statistics.median(one.gb_per_s for one in transfers), 2),
            number(statistics.median(each), 2) if each else "-",
        )
        lines.append(f"{way:<{width}} " + " ".join(cell.rjust(11) for cell in cells))
    return lines


def summary(history: Sequence[Iteration], hidden: float | None) -> list[str]:
    """What the run came to. hidden: see `timeline.hidden_share`."""
    if not history:
        return []
    total = sum(row.total_s for row in history)
    lines = [
        f"{len(history)} iterations in {total:.2f} s: "
        + ", ".join(
            (
                _part("training", sum(row.training_s for row in history), total),
                _part("generation", sum(row.generation_s for row in history), total),
                _part("transfer", sum(row.transfer_s for row in history), total),
            )
        ),
        *_first_and_last("reward", [row.reward for row in history], 4),
        *_first_and_last("accuracy", [row.accuracy for row in history], 3),
        *_first_and_last("evaluation", [row.metrics.get("eval_reward") for row in history], 4),
    ]
    if hidden is not None:
        lines.append(f"engines were generating during {hidden:.0%} of the time in which weights moved")
    return [*lines, *_way_lines(history)]


def _of_sample(one: Sample) -> str:
    def short(text: str) -> str:
        return repr(text if len(text) <= 60 else f"{text[:57]}...")

    return (
        f"a sample of iteration {one.iteration}: {short(one.prompt)} -> {short(one.completion)}, "
        f"reward {one.reward:.3g}"
    )


class Console:
    """The table and the bar; where both are on one terminal, the bar makes way for each line."""

    def __init__(self, out: IO[str] | None = None, err: IO[str] | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._bar_shown = False
        self._rows = 0
        self._sample: Sample | None = None

    def show(self, *lines: str) -> None:
        self._clear()
        # Standard output may be a file on a full disk, or a pipe that nobody reads any more.
        with contextlib.suppress(OSError):
            print(*lines, sep="\n", file=self._out, flush=True)

    def sample(self, one: Sample) -> None:
        self._sample = one

    def iteration(self, row: Iteration) -> None:
        if self._rows % _HEADER_EVERY == 0:
            if self._sample is not None:
                self.show(_of_sample(self._sample))
            self.show(*header())
        self._rows += 1
        self.show(*rows(row))

    def progress(self, what: str, done: int, total: int) -> None:
        """A bar on standard error, if that is a terminal."""
        if not self._err.isatty():
            return
        filled = 30 * done // max(total, 1)
        bar = "#" * filled + "." * (30 - filled)
        self._err.write(f"{_CLEAR}{what} [{bar}] {done}/{total}")
        self._err.flush()
        self._bar_shown = True

    def _clear(self) -> None:
        if self._bar_shown:
            self._err.write(_CLEAR)
            self._err.flush()
            self._bar_shown = False

    def close(self) -> None:
        self._clear()
