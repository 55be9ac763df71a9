"""The report of a run, kept by trainer 0: console table, JSON lines, TensorBoard, Weights & Biases.

`iterations.jsonl` has one object for each iteration; times are in seconds, null is what there was not:

| key | meaning |
|---|---|
| iteration, version | from 1; the weights' version that it ended with |
| at_s | when it ended, since the run's start |
| training_s | of the optimisation: log-probs, advantages, passes |
| generation_s | that the trainers waited for rollouts (sync), or that engines generated for it (async) |
| transfer_s | that the trainers gave to synchronising weights |
| total_s | from the end of the last iteration to the end of this one |
| reward, kl, staleness | means over its samples; staleness in versions |
| train_rollout_logprob_abs_diff | mean of abs(log-prob of trainer - of engine) over generated tokens |
| accuracy | of the evaluation after it, 0 to 1; null where --reward judges |
| metrics | further numbers by name: losses, clip fraction, engines_verified (that --verify compared), ... |
| metrics.eval_reward | mean of --reward in the evaluation after it |
| transfers | one object for each way of synchronising, the one that engines follow first |

and each of `transfers`: way; seconds, of the whole update; bytes, received by all together; gb_per_s, 10^9
bytes a second of all together; receivers: {name: {bytes, seconds, gb_per_s}}; tensors_changed of tensors.

`samples.jsonl` has an object for each of --log_samples completions of an iteration: iteration, version of the
weights that were trained, prompt, completion, reward. `timeline.jsonl`: see `timeline`.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import IO, Any

from .. import InvalidArgument
from .console import Console, summary
from .records import Lines, Sink, keep_lines, read_lines, tensorboard, wandb
from .timeline import Clock, Timeline, hidden_share

ITERATIONS = "iterations.jsonl"
TIMELINE = "timeline.jsonl"
SAMPLES = "samples.jsonl"


def _rate(count: int, seconds: float) -> float:
    return count / seconds / 1e9 if seconds > 0 else 0.0


def moved(count: int, seconds: float) -> dict[str, float]:
    """What a receiver got: bytes, and the seconds that it took."""
    return {"bytes": count, "seconds": seconds, "gb_per_s": _rate(count, seconds)}


@dataclass
class Transfer:
    """One version's way to the engines, by one way of synchronising."""

    way: str
    seconds: float
    bytes: int  # Received by all together.
    receivers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # Each as `moved` has it.
    tensors_changed: int = 0
    tensors: int = 0
    gb_per_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.gb_per_s = _rate(self.bytes, self.seconds)

    def gb_per_s_each(self) -> dict[str, float]:
        return {name: one["gb_per_s"] for name, one in self.receivers.items()}


@dataclass(frozen=True)
class Sample:
    """A completion that an iteration has learned from."""

    iteration: int
    version: int  # That the trainers had.
    prompt: str
    completion: str
    reward: float


def _init_of(kind: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the dataclass again that an entry was written of."""
    return {one.name: entry[one.name] for one in fields(kind) if one.init}


@dataclass(frozen=True)
class Iteration:
    """The numbers of one iteration; see the module for units."""

    iteration: int
    version: int
    training_s: float
    generation_s: float
    transfer_s: float
    total_s: float
    reward: float | None
    kl: float | None
    staleness: float
    train_rollout_logprob_abs_diff: float | None
    accuracy: float | None = None
    transfers: tuple[Transfer, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def evaluation(self) -> float | None:
        """Accuracy, or the mean of --reward."""
        return self.metrics.get("eval_reward") if self.accuracy is None else self.accuracy

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], folder: pathlib.Path) -> Iteration:
        """`InvalidArgument` if it is no such object. folder: the run's, for the message."""
        try:
            found = _init_of(cls, entry)
            found["transfers"] = tuple(Transfer(**_init_of(Transfer, one)) for one in found["transfers"])
            return cls(**found)
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                f"{folder / ITERATIONS}: iteration {entry.get('iteration')} cannot be read ({error!r}): "
                "the file was changed, or another release wrote it; use that release, or another folder"
            ) from None

    def scalars(self) -> dict[str, float]:
        """Everything that can be drawn over iterations, by name."""
        learning = ("reward", "kl", "staleness", "train_rollout_logprob_abs_diff", "accuracy")
        found = {name: getattr(self, name) for name in learning}
        for kind in ("training", "generation", "transfer", "total"):
            found[f"seconds/{kind}"] = getattr(self, f"{kind}_s")
        found |= {f"metrics/{name}": value for name, value in self.metrics.items()}
        for one in self.transfers:
            found[f"sync/{one.way}/seconds"] = one.seconds
            found[f"sync/{one.way}/gb_per_s"] = one.gb_per_s
            found[f"sync/{one.way}/tensors_changed"] = one.tensors_changed
            found |= {f"sync/{one.way}/gb_per_s/{name}": rate for name, rate in one.gb_per_s_each().items()}
        return {name: value for name, value in found.items() if value is not None}


def _is_past(entry: Mapping[str, Any], last: int, end: float) -> bool:
    """Whether it is of the iterations up to `last`, which was over at `end`."""
    number = entry["iteration"]
    return entry["end"] <= end if number is None else number <= last


def read_iterations(folder: pathlib.Path) -> list[Iteration]:
    """Of a run's folder; empty if there is no report."""
    return [Iteration.from_json(entry, folder) for entry in read_lines(folder / ITERATIONS)]


def read_timeline(folder: pathlib.Path) -> list[dict[str, Any]]:
    return read_lines(folder / TIMELINE)


def check_folder(folder: str | pathlib.Path, resume: bool) -> None:
    """`InvalidArgument` if a new run would write into the report of another."""
    if not resume and read_lines(pathlib.Path(folder) / ITERATIONS):
        raise InvalidArgument(
            f"{folder} has the report of a run; name another --output, or go on with --resume"
        )


class Report:
    """Writes the report of a run into a folder; of one thread, except `clock`, `timeline` and `events`.

    It is only a report: what cannot be written (a full disk) is named in a warning, and the run goes on.

    folder: None: the console only.
    resume_from: the iteration of the checkpoint that the run goes on from; later lines are dropped, and the
    clock goes on after the last that is left. None: a new run.
    log: of "tensorboard" and "wandb". run_id, options: what Weights & Biases is told.
    """

    def __init__(
        self,
        folder: str | pathlib.Path | None = None,
        *,
        resume_from: int | None = None,
        log: Collection[str] = (),
        run_id: str = "run",
        options: Mapping[str, Any] | None = None,
        out: IO[str] | None = None,
    ) -> None:
        self.history: list[Iteration] = []
        self._spans: list[dict[str, Any]] = []
        self._written = 0  # Of them, into the file.
        self._spans_lock = threading.Lock()
        self._console = Console(out)
        self._files: dict[str, Lines] = {}
        self._sinks: list[Sink] = []
        if folder is not None:
            path = pathlib.Path(folder)
            self._open(path, resume_from)
            if "tensorboard" in log:
                self._sinks.append(tensorboard(path / "tensorboard", (resume_from or 0) + 1))
            if "wandb" in log:
                self._sinks.append(wandb(path, run_id, options or {}))
        # One clock over all parts of a run, without the time between them.
        self.clock = Clock(Clock.reading() - max((one["end"] for one in self._spans), default=0.0))
        self.timeline = Timeline("trainer-0", self.clock)

    def _open(self, folder: pathlib.Path, resume_from: int | None) -> None:
        check_folder(folder, resume_from is not None)
        last = resume_from or 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            kept = keep_lines(folder / ITERATIONS, lambda entry: entry["iteration"] <= last)
            self.history = [Iteration.from_json(entry, folder) for entry in kept]
            end = max((entry["at_s"] for entry in kept), default=0.0)
            self._spans = keep_lines(folder / TIMELINE, lambda entry: _is_past(entry, last, end))
            self._written = len(self._spans)
            keep_lines(folder / SAMPLES, lambda entry: entry["iteration"] <= last)
            self._files = {name: Lines(folder / name) for name in (ITERATIONS, TIMELINE, SAMPLES)}
        except OSError as error:
            raise InvalidArgument(
                f"{folder} cannot be written: {error.strerror}; name another --output, or make room there"
            ) from None

    def _write(self, name: str, *entries: Mapping[str, Any]) -> None:
        if name in self._files:
            self._files[name].write(*entries)

    def iteration(self, row: Iteration) -> None:
        """An iteration is over: a line on the console and in each file, with the events so far."""
        self.events(self.timeline.take())
        self.history.append(row)
        self._console.iteration(row)
        self._write(ITERATIONS, {**asdict(row), "at_s": self.clock.now()})
        self.flush()
        for sink in self._sinks:
            sink.write(row.iteration, row.scalars())

    def events(self, entries: Iterable[dict[str, Any]]) -> None:
        """Spans of this or another process (`Timeline.take`); malformed ones are refused before.

        They are written with the next iteration: who tells of them does not wait for the disk.
        """
        with self._spans_lock:
            self._spans += entries

    def flush(self) -> None:
        """Writes the spans that have come."""
        with self._spans_lock:
            new = self._spans[self._written :]
            self._written += len(new)
        self._write(TIMELINE, *new)

    def samples(self, found: Sequence[Sample]) -> None:
        """Into the file, and the first of them above the console's next header."""
        if found:
            self._console.sample(found[0])
        self._write(SAMPLES, *map(asdict, found))

    def message(self, text: str) -> None:
        """A line between those of the table."""
        self._console.show(text)

    def close(self) -> None:
        """Prints the summary; safe to call twice."""
        self.events(self.timeline.take())
        self.flush()
        if lines := summary(self.history, hidden_share(self._spans)):
            self._console.show("", *lines)
        self.history = []
        for sink in self._sinks:
            sink.close()
        for file in self._files.values():
            file.close()
        self._sinks, self._files = [], {}

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
