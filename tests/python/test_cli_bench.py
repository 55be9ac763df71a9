"""`weightcast bench connect`: that it works, never how fast."""

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
