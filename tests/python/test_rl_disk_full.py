"""A full disk: a report that cannot be written ends no run, a checkpoint that cannot is named."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from weightcast.rl.records import Lines, Sink, read_lines

PATIENCE = 240
SMALL = ["--rollouts_per_gpu", "4", "--samples_per_prompt", "4", "--max_gen_length", "6"]


@contextlib.contextmanager
def full(lines: Lines) -> Iterator[None]:
    """The file behind these lines is on a full disk meanwhile."""
    kept, device = os.dup(lines._descriptor), os.open("/dev/full", os.O_WRONLY)
    os.dup2(device, lines._descriptor)
    yield
    os.dup2(kept, lines._descriptor)
    os.close(kept)
    os.close(device)


def test_lines_wait_for_room_and_are_whole_then(tmp_path, caplog):
    lines = Lines(tmp_path / "lines")
    lines.write({"number": 0})
    with full(lines):
        lines.write({"number": 1}, {"number": 2})
        lines.write({"number": 3})
    lines.write({"number": 4})
    lines.close()
    assert [one["number"] for one in read_lines(tmp_path / "lines")] == [0, 1, 2, 3, 4]
    assert [one.message.split(": ")[-1] for one in caplog.records] == [
        "No space left on device; the run continues, make room there or its lines are lost",
        f"{tmp_path}/lines can be written again; 0 lines are lost",
    ]


def test_lines_for_which_there_is_never_room_are_counted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("weightcast.rl.records._MOST_WAITING", 30)
    lines = Lines(tmp_path / "lines")
    with full(lines):
        for number in range(10):
            lines.write({"number": number})
        lines.close()
        lines._descriptor = os.open(tmp_path / "lines", os.O_WRONLY)  # For `full` to give back.
    assert "its last 10 lines are lost" in caplog.text


def test_a_log_that_fails_is_named_once(caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    sink = Sink("tensorboard", fail, fail)
    sink.write(1, {})
    sink.write(2, {})
    sink.close()
    assert [one.message for one in caplog.records] == [
        "--log tensorboard gets nothing from now on, and the run continues "
        "(OSError: [Errno 28] No space left on device); correct that for later"
    ]


# --- Whole runs


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_on_a_small_disk(disk: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A whole run; the folder `disk` is a disk of 16 KiB for it."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    disk.mkdir()
    script = 'mount -t tmpfs -o size=16k none "$1" && shift && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(disk), sys.executable]
    command += ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "weightcast.rl"]
    command += [*SMALL, "--num_training", "1", "--num_inference", "1", "--sync", "none", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.timeout(2 * PATIENCE)
def test_a_run_whose_output_is_on_a_full_disk_ends_well(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    kept = tmp_path / "kept"
    result = run_on_a_small_disk(
        tmp_path / "disk",
        *["--output", str(tmp_path / "disk" / "run"), "--plots", str(tmp_path / "disk" / "plots")],
        *["--rl_iterations", "40", "--checkpoint_dir", str(kept)],
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("iterations.jsonl", "timeline.jsonl"):
        assert (
            result.stderr.count(f"{name} cannot be written now: No space left on device; the run continues")
            == 1
        )
    assert json.loads((kept / "iteration-000040" / "complete").read_text())["iteration"] == 40


@pytest.mark.timeout(2 * PATIENCE)
def test_only_the_last_checkpoint_that_cannot_be_written_ends_the_run(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    result = run_on_a_small_disk(
        tmp_path / "disk",
        *["--output", str(tmp_path / "run"), "--checkpoint_dir", str(tmp_path / "disk" / "kept")],
        *["--rl_iterations", "3", "--checkpoint_every", "1"],
    )
    assert result.returncode != 0
    warned = [line for line in result.stderr.splitlines() if "the run continues and tries again" in line]
    assert len(warned) == 2, result.stderr
    for number, line in enumerate(warned, 1):
        assert f"iteration-{number:06d} could not be written" in line
    assert "iteration-000003 could not be written" in result.stderr
    assert len((tmp_path / "run" / "iterations.jsonl").read_text().splitlines()) == 2
