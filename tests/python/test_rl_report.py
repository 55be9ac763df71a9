"""The report of a reinforcement-learning run: its files, its table, its pictures."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import weightcast as wc
from weightcast.rl import timeline as times
from weightcast.rl.report import (
    Iteration,
    Report,
    Sample,
    Transfer,
    check_folder,
    moved,
    read_iterations,
    read_timeline,
)
from weightcast.rl.timeline import Clock, Timeline


def _transfer(way: str = "weightcast", seconds: float = 0.5) -> Transfer:
    receivers = {"engine-0 rank 0": moved(10**9, 0.5), "engine-1 rank 0": moved(10**9, 0.25)}
    return Transfer(way, seconds, 2 * 10**9, receivers, 140, 148)


def _iteration(number: int, **changes: Any) -> Iteration:
    values: dict[str, Any] = {
        "training_s": 1.5,
        "generation_s": 2.0,
        "transfer_s": 0.5,
        "total_s": 4.0,
        "reward": 0.1 * number,
        "kl": 0.01,
        "staleness": 1.0,
        "train_rollout_logprob_abs_diff": 0.002,
        "transfers": (_transfer(),),
        "metrics": {"policy_loss": -0.25},
    }
    return Iteration(number, number, **{**values, **changes})


def _entry(number: int, kind: str = "train", start: float = 0.0, end: float = 1.0) -> dict[str, Any]:
    return {
        "process": "engine-0",
        "kind": kind,
        "start": start,
        "end": end,
        "version": number,
        "iteration": number,
    }


def _quiet(folder: pathlib.Path | None, **more: Any) -> Report:
    return Report(folder, out=io.StringIO(), **more)


def test_a_line_for_each_iteration(tmp_path: pathlib.Path):
    with _quiet(tmp_path) as report:
        report.iteration(_iteration(1, accuracy=0.5))
        report.iteration(_iteration(2, kl=float("nan"), transfers=(_transfer(), _transfer("gloo", 1.0))))
        # They are in the file before the report is closed.
        lines = [json.loads(line) for line in (tmp_path / "iterations.jsonl").read_text().splitlines()]
    first, second = lines
    assert first["iteration"] == 1 and first["accuracy"] == 0.5 and first["at_s"] >= 0
    assert first["metrics"] == {"policy_loss": -0.25}
    (transfer,) = first["transfers"]
    assert transfer["gb_per_s"] == pytest.approx(4.0)
    assert transfer["receivers"]["engine-1 rank 0"] == {"bytes": 10**9, "seconds": 0.25, "gb_per_s": 4.0}
    assert (transfer["tensors_changed"], transfer["tensors"]) == (140, 148)
    assert second["kl"] is None and second["accuracy"] is None
    assert [one["way"] for one in second["transfers"]] == ["weightcast", "gloo"]
    assert read_iterations(tmp_path)[0] == _iteration(1, accuracy=0.5)


def test_the_documented_keys_are_those_written(tmp_path: pathlib.Path):
    from weightcast.rl import report as module

    with _quiet(tmp_path) as report:
        report.iteration(_iteration(1))
    written = json.loads((tmp_path / "iterations.jsonl").read_text())
    for name in (*written, *written["transfers"][0]):
        assert name in (module.__doc__ or "")


def test_the_table(tmp_path: pathlib.Path):
    out = io.StringIO()
    with Report(None, out=out) as report:
        report.events([_entry(1, "transfer", 0, 2), _entry(1, "generate", 1, 3)])
        for number in range(1, 31):
            both = (_transfer(), _transfer("gloo", 1.0))
            report.iteration(_iteration(number, accuracy=0.5 if number == 10 else None, transfers=both))
    lines = out.getvalue().splitlines()
    titles = [line for line in lines if "iter" in line and "changed" in line]
    assert len(titles) == 2
    (row,) = (line for line in lines if line.startswith("   10 "))
    numbers = ["10", "1.0000", "0.01000", "0.00200", "0.500", "1.00", "1.500", "2.000", "0.500", "4.000"]
    assert row.split() == [*numbers, "2000.0", "4.00", "140/148"]
    other = lines[lines.index(row) + 1]
    assert other.split() == ["gloo", "1.000", "2000.0", "2.00", "140/148"]
    # Each column ends where its title does.
    for title, cell, line in (("reward", "1.0000", row), ("GB/s", "4.00", row), ("GB/s", "2.00", other)):
        assert titles[0].index(title) + len(title) == line.rindex(cell) + len(cell)
    text = out.getvalue()
    assert "30 iterations in 120.00 s: training 45.00 s (38%), generation 60.00 s (50%)" in text
    assert "reward: 0.3500 -> 2.7500 (best 3.0000)" in text
    assert "generating during 50% of the time in which weights moved" in text
    (of_way,) = (line for line in lines if line.startswith("weightcast "))
    assert of_way.split() == ["weightcast", "30", "0.500", "0.500", "0.500", "2000.0", "4.00", "2.00-4.00"]


def test_no_line_is_longer_than_100_columns():
    """Of a run whose every number is large, with the longest name of a way, samples and a long message."""
    out = io.StringIO()
    with Report(None, out=out) as report:
        report.message("/a/path-of-many-letters" * 10)
        report.message("a word " * 40)
        for number in range(1, 27):
            report.samples([Sample(number, number, "p" * 500, "c\n" * 500, -1234.5678)])
            ways = ("weightcast", "weightcast.collective")
            transfers = [Transfer(way, 98765.4321, 10**13, {"a": moved(1, 9.0)}, 1234, 1234) for way in ways]
            times = dict.fromkeys(("training_s", "generation_s", "transfer_s", "total_s"), 123456.789)
            learned = {"reward": -1234.5678, "kl": 1e6, "staleness": 100.0, "accuracy": 1.0}
            row = _iteration(10**5, transfers=tuple(transfers), **times, **learned)
            report.iteration(row)
            report.iteration(_iteration(number, transfers=(), reward=None, kl=None))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("weightcast.collective" in line for line in lines) == 27  # 26 rows, and the summary.


def test_resume_drops_what_the_checkpoint_does_not_have(tmp_path: pathlib.Path):
    with _quiet(tmp_path) as report:
        for number in range(1, 6):
            report.events([_entry(number, start=number, end=number + 1)])
            report.iteration(_iteration(number))
    with (tmp_path / "iterations.jsonl").open("a") as file:
        file.write('{"iteration": 6, "vers')  # As a crash leaves it.
    with pytest.raises(wc.InvalidArgument, match="--resume"):
        _quiet(tmp_path)
    with pytest.raises(wc.InvalidArgument, match="--resume"):
        check_folder(tmp_path, resume=False)
    with _quiet(tmp_path, resume_from=3) as report:
        assert [row.iteration for row in report.history] == [1, 2, 3]
        assert 4 <= report.clock.now() < 5, "the clock goes on after the last entry"
        report.iteration(_iteration(4, reward=7.0))
    assert [row.reward for row in read_iterations(tmp_path)] == pytest.approx([0.1, 0.2, 0.3, 7.0])
    assert [one["iteration"] for one in read_timeline(tmp_path)] == [1, 2, 3]


def test_resume_drops_later_events_of_no_iteration(tmp_path: pathlib.Path):
    with _quiet(tmp_path) as report:
        for number in (1, 2):
            now = report.clock.now()
            report.events([{**_entry(number, "transfer", now, now), "iteration": None}])
            report.iteration(_iteration(number))
    _quiet(tmp_path, resume_from=1).close()
    assert [one["version"] for one in read_timeline(tmp_path)] == [1]


def _write_for_ever(folder: str) -> None:
    report = _quiet(pathlib.Path(folder))
    number = 0
    while True:
        number += 1
        report.events([_entry(number)] * 50)
        report.iteration(_iteration(number))
        if number == 200:
            os.kill(os.getpid(), signal.SIGKILL)


def test_killed_without_warning_everything_is_there(tmp_path: pathlib.Path, spawn: Callable[..., Any]):
    child = spawn(_write_for_ever, str(tmp_path))
    child.process.join(60)
    assert child.process.exitcode == -signal.SIGKILL
    assert [row.iteration for row in read_iterations(tmp_path)] == list(range(1, 201))
    assert len(read_timeline(tmp_path)) == 200 * 50


def test_a_line_that_is_no_object_is_named(tmp_path: pathlib.Path):
    (tmp_path / "iterations.jsonl").write_text('{"iteration": 1}\n[]\n')
    with pytest.raises(wc.InvalidArgument, match="line 2 is not a JSON object"):
        _quiet(tmp_path, resume_from=1)
    (tmp_path / "iterations.jsonl").write_text('{"iteration": 1}\n')
    with pytest.raises(wc.InvalidArgument, match="version"):
        read_iterations(tmp_path)


def test_one_clock(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Clock, "reading", staticmethod(lambda: 50.0))
    ours = times.host_identity()
    # Trainer 0's clock was at 1000 when the run began, and at 1007 half-way between 48 and 50 here.
    there = Clock.from_hello(start=1000.0, theirs=1007.0, sent=48.0, received=50.0, host="elsewhere")
    assert there.now() == pytest.approx(8.0)
    same = Clock.from_hello(start=42.0, theirs=50.0, sent=48.0, received=50.0, host=ours)
    assert same.now() == pytest.approx(8.0)
    assert Clock().now() == 0.0


def test_spans_are_taken_once():
    line = Timeline("engine-1", Clock())
    with line.span("generate", version=3, iteration=4):
        pass
    with pytest.raises(ZeroDivisionError), line.span("wait"):
        1 / 0  # noqa: B018
    first, second = line.take()
    assert first["kind"] == "generate" and first["version"] == 3 and first["iteration"] == 4
    assert 0 <= first["start"] <= first["end"] <= second["start"]
    assert second["kind"] == "wait" and second["version"] is None
    assert all(map(times.well_formed, (first, second)))
    assert line.take() == []


def test_overlap_of_spans():
    assert times.union([(3, 4), (0, 1), (0.5, 2)]) == [(0, 2), (3, 4)]
    assert times.overlap([(0, 2), (3, 4)], [(1, 3.5)]) == pytest.approx(1.5)
    assert times.overlap([(0, 1)], [(1, 2)]) == 0
    assert times.hidden_share([_entry(1, "generate")]) is None


def test_tensorboard_events(tmp_path: pathlib.Path):
    pytest.importorskip("torch")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with _quiet(tmp_path, log=("tensorboard",)) as report:
        for number in (1, 2, 3):
            report.iteration(_iteration(number))
    with _quiet(tmp_path, log=("tensorboard",), resume_from=2) as report:
        report.iteration(_iteration(3, reward=9.0))
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(one.step, round(one.value, 3)) for one in events.Scalars("reward")]
    assert found == [(1, 0.1), (2, 0.2), (3, 9.0)]
    assert events.Scalars("sync/weightcast/gb_per_s")[0].value == pytest.approx(4.0)
    assert events.Scalars("metrics/policy_loss")[0].value == pytest.approx(-0.25)


def test_no_event_files_without_being_asked(tmp_path: pathlib.Path):
    with _quiet(tmp_path) as report:
        report.iteration(_iteration(1))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "iterations.jsonl",
        "samples.jsonl",
        "timeline.jsonl",
    ]


def test_wandb_gets_everything(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    run = types.SimpleNamespace(
        log=lambda scalars, step: calls.append((step, scalars)), finish=lambda: calls.append("end")
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with _quiet(tmp_path, log=("wandb",), run_id="r7", options={"lr": 1e-3}) as report:
        report.iteration(_iteration(1))
    options, (step, scalars), end = calls
    assert options["mode"] == "offline" and options["id"] == "r7" and options["config"] == {"lr": 1e-3}
    assert step == 1 and scalars["reward"] == pytest.approx(0.1) and end == "end"


def test_what_cannot_be_logged_is_said(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(wc.InvalidArgument, match="wandb is not installed; pip install wandb"):
        _quiet(tmp_path, log=("wandb",))
    (tmp_path / "file").touch()
    with pytest.raises(wc.InvalidArgument, match="cannot be written: Not a directory; name another --output"):
        Report(tmp_path / "file" / "run")


def _run_with(folder: pathlib.Path, engines: int) -> None:
    with _quiet(folder) as report:
        for number in range(1, 9):
            receivers = {f"engine-{i} rank 0": moved(10**8, 0.1 + 0.01 * i) for i in range(engines)}
            transfer = Transfer("weightcast", 0.2, engines * 10**8, receivers, 3, 3)
            for i in range(engines):
                entries = [
                    _entry(number, "generate", number, number + 0.9),
                    _entry(number, "transfer", number + 0.2, number + 0.4),
                ]
                report.events([{**one, "process": f"engine-{i}"} for one in entries])
            report.iteration(_iteration(number, accuracy=0.5, transfers=(transfer, _transfer("gloo"))))


@pytest.mark.parametrize("engines", [1, 12])
def test_pictures(tmp_path: pathlib.Path, engines: int):
    pytest.importorskip("matplotlib")
    _run_with(tmp_path / "run", engines)
    command = [sys.executable, "-m", "weightcast.rl.plots", tmp_path / "run", "--plots", tmp_path / "plots"]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert drawn.returncode == 0, drawn.stderr
    names = ["reward.png", "transfer.png", "bandwidth.png"]
    assert drawn.stdout.split() == [str(tmp_path / "plots" / name) for name in (*names, "trace.json")]
    trace = json.loads((tmp_path / "plots" / "trace.json").read_text())["traceEvents"]
    assert len(trace) == engines + 2 * 8 * engines
    for name in names:
        assert (tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG")


def _figures(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is drawn of a run, by file name."""
    from matplotlib.figure import Figure

    from weightcast.rl.plots import draw

    found: dict[str, Any] = {}
    monkeypatch.setattr(Figure, "savefig", lambda self, path: found.update({path.name: self}))
    draw(folder)
    return found


def test_no_panel_is_empty_and_each_picture_has_a_legend(tmp_path: pathlib.Path, monkeypatch):
    pytest.importorskip("matplotlib")
    with _quiet(tmp_path) as report:
        for number in range(1, 301):
            report.events([_entry(number, "generate", number, number + 0.9)])
            ways = (
                _transfer(),
                Transfer("gloo", 1.0, 2 * 10**9),
                Transfer("one", 1.0, 9, {"a": moved(9, 1.0)}),
            )
            report.iteration(_iteration(number, transfers=ways))
    found = _figures(tmp_path, monkeypatch)
    titles = [one.get_title(loc="left") for one in found["bandwidth.png"].axes]
    assert titles == ["All receivers together", "Each receiver, weightcast"]
    for name in ("transfer.png", "bandwidth.png"):
        for axes in found[name].axes:
            assert axes.has_data() and axes.get_legend() is not None, name
    (transfer,) = found["transfer.png"].axes
    assert transfer.get_yscale() == "log"
    # Of each way a pale line of all values, and before it their median.
    assert [(line.get_alpha(), line.get_linewidth()) for line in transfer.lines] == [
        (0.25, 0.8),
        (None, 2),
    ] * 3


def test_a_trace_has_every_span_in_its_row():
    spans = [
        {**_entry(1, "generate", 0.5, 1.5), "process": "engine-1"},
        {**_entry(1, "commit", 1.5, 1.75), "process": "engine-0", "version": 7},
    ]
    first, second, *events = times.chrome_trace(spans)["traceEvents"]
    assert [(one["pid"], one["args"]["name"]) for one in (first, second)] == [
        (0, "engine-0"),
        (1, "engine-1"),
    ]
    assert [(one["pid"], one["tid"], one["ts"], one["dur"]) for one in events] == [
        (1, "work", 5e5, 1e6),
        (0, "weights", 1.5e6, 2.5e5),
    ]
    assert events[1]["name"] == "commit 7" and {one["ph"] for one in events} == {"X"}


def test_no_picture_of_nothing(tmp_path: pathlib.Path):
    pytest.importorskip("matplotlib")
    command = [sys.executable, "-m", "weightcast.rl.plots", tmp_path]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert drawn.returncode == 1
    assert drawn.stderr.startswith("weightcast: ") and "no iteration in" in drawn.stderr
    assert len(drawn.stderr.splitlines()) == 1


def test_pictures_of_the_shortest_run(tmp_path: pathlib.Path):
    pytest.importorskip("matplotlib")
    from weightcast.rl.plots import draw

    with _quiet(tmp_path) as report:
        report.iteration(_iteration(1, transfers=(), reward=None, accuracy=None))
    assert [one.name for one in draw(tmp_path)] == ["reward.png"]
