"""`weightcast bench connect`, `register` and `floor`: that they work, never how fast."""

import json
import shutil
import subprocess
import sys

import pytest

from cli import BINARY, ROOT, fails, only_json, run


def test_connect_counts_every_connection_over_every_transport():
    report = only_json(
        run("bench", "connect", "--processes", 7, "--rounds", 2, "--samples", 3, "--json", timeout=120)
    )
    assert (report["processes"], report["connections"]) == (7, 3 * 4)
    assert [result["transport"] for result in report["results"]] == ["any", "shm", "tcp"]
    for result in report["results"]:
        assert 0 < result["least_seconds"] <= result["median_seconds"] <= result["most_seconds"]
        assert 0 < result["one_p50_ms"] <= result["one_p99_ms"]


def test_connect_prints_a_table():
    result = run("bench", "connect", "--processes", 2, "--rounds", 1, "--samples", 1, "--transports", "tcp")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("1 processes connect to 1")
    assert lines[-1].split()[:2] == ["tcp", "1"]


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_connect_refuses_what_the_limit_of_descriptors_does_not_allow():
    result = run("bench", "connect", "--transports", "tcp", prefix=["prlimit", "--nofile=100:100"])
    fails(result, "64 processes", "32 connections", "the limit is 100", "ulimit -n", "--processes")
    assert result.stdout == ""


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_register_hands_every_worker_its_table(layout):
    arguments = ["--trainers", 3, "--inference", 4, "--engines", 2, "--processes", 2, "--rounds", 2]
    report = only_json(
        run("bench", "register", *arguments, "--trainer-layout", layout, "--json", timeout=120)
    )
    assert (report["workers"], report["trainers"], report["inference"], report["engines"]) == (7, 3, 4, 2)
    assert report["plans"] >= 1
    # Each rank of a two-rank engine needs its part of all 148 tensors.
    assert report["routes"] >= 4 * 148
    assert report["table_bytes"] > 0
    assert 0 < report["least_seconds"] <= report["median_seconds"] <= report["most_seconds"]


def test_register_prints_a_table():
    result = run("bench", "register", "--trainers", 1, "--inference", 1, "--rounds", 1)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("gpt2, 1 trainer (ddp) -> 1 engine of 1 rank")
    assert lines[-1].split()[0] == "2"


def test_floor_measures_every_kind():
    results = only_json(run("bench", "floor", "--sizes", "13,1M", "--milliseconds", 1, "--json"))["results"]
    assert [(one["what"], one["bytes"]) for one in results] == [
        *(
            (what, size)
            for what in ("memcpy", "stream", "cross", "cross-huge", "socket")
            for size in (13, 1 << 20)
        ),
        ("socket-ping", 8),
        ("flag-ping", 8),
    ]
    for one in results:
        assert list(one) == ["what", "bytes", "gb_per_s", "p50_us", "p99_us"]
        assert one["gb_per_s"] > 0
        assert 0 < one["p50_us"] <= one["p99_us"]


def test_floor_prints_a_table():
    result = run("bench", "floor", "--what", "flag-ping", "--milliseconds", 1)
    assert result.returncode == 0, result.stderr
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["what", "bytes"],
        ["flag-ping", "8"],
    ]


def test_side_by_side_prints_ratios(tmp_path):
    command = [sys.executable, ROOT / "bench" / "side_by_side.py", "--binary", BINARY, "--peers", ""]
    command += ["--turns", "2", "--seconds", "0.001", "--sizes", "8,2x4K", "--json", tmp_path / "figures"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    rows = json.loads((tmp_path / "figures").read_text())["rows"]
    assert len(rows) == sum(line.startswith(("| tcp", "| shm")) for line in result.stdout.splitlines())
    compared = {(one["path"], one["contender"]) for one in rows if "ratio" in one}
    assert compared == {
        ("tcp", "floor: socket"),
        ("tcp", "floor: socket-ping"),
        ("any", "floor: cross"),
        ("huge", "floor: cross-huge"),
        ("mapped", "floor: memcpy"),
        ("mapped", "floor: stream"),
        ("mapped", "floor: flag-ping"),
    }
    for one in rows:
        assert one["turns"] == 2
        assert one["p50_us"] > 0
        if "ratio" in one:
            assert 0 < one["least"] <= one["ratio"] <= one["greatest"]
