"""`weightcast bench connect` and `bench register`: that they work, never how fast."""

import shutil

import pytest

from cli import fails, only_json, run


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
