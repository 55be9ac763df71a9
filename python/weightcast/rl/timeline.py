"""Who did what when: one clock for all processes of a run, and the spans that each of them collects.

An entry of `timeline.jsonl` is one span of one process:

    {"process": "engine-0", "kind": "generate", "start": 1.25, "end": 2.5, "version": 3, "iteration": 4}

start, end: seconds since the run's start, on trainer 0's clock. version: of the weights that were used,
moved or made; iteration: for which the work was done. Either is null where it has no meaning.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_KEYS = {"process", "kind", "start", "end", "version", "iteration"}
_MOST_LETTERS = 300  # In the name of a process.
_OF_WEIGHTS = ("publish", "transfer", "commit")
KINDS = ("generate", "train", "publish", "transfer", "commit", "evaluate", "wait")


def host_identity() -> str:
    """Equal in two processes if their CLOCK_MONOTONIC is the same clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return f"unknown/{os.getpid()}"


class Clock:
    """Seconds since the run's start.

    start: what trainer 0's `Clock.reading` was at the run's start. None: now.
    offset: trainer 0's reading minus this process's at the same moment; 0 on trainer 0's host.
    """

    def __init__(self, start: float | None = None, offset: float = 0.0) -> None:
        self.offset = offset
        self.start = self.reading() + offset if start is None else start

    @staticmethod
    def reading() -> float:
        """CLOCK_MONOTONIC of this host, in seconds."""
        return time.monotonic()

    @classmethod
    def from_hello(cls, start: float, theirs: float, sent: float, received: float, host: str) -> Clock:
        """From a question to trainer 0 and its answer: the answer is taken to be from half-way between.

        start, theirs, host: trainer 0's `start`, `reading` when it answered, and `host_identity`.
        sent, received: `reading` here before the question and after the answer. Off by half the round trip
        at most, and by nothing on the same host.
        """
        same = host == host_identity()
        return cls(start, 0.0 if same else theirs - (sent + received) / 2)

    def now(self) -> float:
        return self.reading() + self.offset - self.start


class Timeline:
    """Spans of one process until they are taken, for a message or for the report. Thread safe."""

    def __init__(self, process: str, clock: Clock) -> None:
        self.process = process
        self.clock = clock
        self._entries: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @contextmanager
    def span(self, kind: str, *, version: int | None = None, iteration: int | None = None) -> Iterator[None]:
        """What happens inside, also if it ends with an exception."""
        start = self.clock.now()
        try:
            yield
        finally:
            self.add(kind, start, self.clock.now(), version=version, iteration=iteration)

    def add(
        self, kind: str, start: float, end: float, *, version: int | None = None, iteration: int | None = None
    ) -> None:
        """A span that was measured elsewhere; seconds since the run's start."""
        assert kind in KINDS, kind
        entry = {"process": self.process, "kind": kind, "start": start, "end": end}
        with self._lock:
            self._entries.append({**entry, "version": version, "iteration": iteration})

    def take(self) -> list[dict[str, Any]]:
        """All spans since the last call."""
        with self._lock:
            taken, self._entries = self._entries, []
        return taken


def well_formed(entry: Any) -> bool:
    """Whether this, which came from elsewhere, is an entry of a timeline, and nothing else."""
    if not isinstance(entry, Mapping) or set(entry) != _KEYS or entry["kind"] not in KINDS:
        return False
    start, end, process = entry["start"], entry["end"], entry["process"]
    return (
        isinstance(process, str)
        and len(process) <= _MOST_LETTERS
        and all(type(one) in (int, float) and math.isfinite(one) for one in (start, end))
        and start <= end
        and all(one is None or type(one) is int for one in (entry["version"], entry["iteration"]))
    )


def chrome_trace(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The same in the trace event format, which Perfetto and chrome://tracing show: a row for each process,
    and one below it for what happens to its weights meanwhile."""
    entries = list(entries)
    number = {process: place for place, process in enumerate(sorted({one["process"] for one in entries}))}
    names = [
        {"ph": "M", "name": "process_name", "pid": place, "args": {"name": process}}
        for process, place in number.items()
    ]
    spans = [
        {
            "ph": "X",
            "name": one["kind"] if one["version"] is None else f"{one['kind']} {one['version']}",
            "cat": one["kind"],
            "pid": number[one["process"]],
            "tid": "weights" if one["kind"] in _OF_WEIGHTS else "work",
            "ts": 1e6 * one["start"],
            "dur": 1e6 * (one["end"] - one["start"]),
            "args": {"version": one["version"], "iteration": one["iteration"]},
        }
        for one in entries
    ]
    return {"traceEvents": [*names, *spans], "displayTimeUnit": "ms"}


Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans that do not touch each other, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def seconds_of(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in union(spans))


def overlap(first: Iterable[Span], second: Iterable[Span]) -> float:
    """Seconds in which both have a span."""
    first, second = list(first), list(second)
    both = [*first, *second]
    return max(0.0, seconds_of(first) + seconds_of(second) - seconds_of(both))


def hidden_share(entries: Iterable[Mapping[str, Any]]) -> float | None:
    """Which part of the time of all transfers some engine was generating in; None: there were none."""
    spans: dict[str, list[Span]] = {"transfer": [], "generate": []}
    for entry in entries:
        if entry["kind"] in spans:
            spans[entry["kind"]].append((entry["start"], entry["end"]))
    total = seconds_of(spans["transfer"])
    return overlap(spans["transfer"], spans["generate"]) / total if total > 0 else None
