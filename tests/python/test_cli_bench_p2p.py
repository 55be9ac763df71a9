"""`weightcast bench p2p`: that every option does what it says, never how fast."""

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from cli import BINARY, Running, fails, only_json, run
from processes import Process, wait_until

KEYS = ["transport", "memory", "op", "bytes", "iovs", "transfers", "gb_per_s", "p50_us", "p99_us"]
TINY = ["--sizes", "13,3x7", "--milliseconds", 1]


def measured(*arguments: object) -> list[dict]:
    results = only_json(run("bench", "p2p", *arguments, "--json", timeout=240))["results"]
    for one in results:
        assert one["gb_per_s"] > 0
        assert 0 < one["p50_us"] <= one["p99_us"]
        assert one["transfers"] >= 10
    return results


def processes_of(session: int) -> list[str]:
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = stat.read_text().rsplit(")", 1)
        except OSError:
            continue  # It has ended.
        state, _, _, its_session = rest.split()[:4]
        if int(its_session) == session and state != "Z":
            found.append(name)
    return found


@pytest.fixture
def listener() -> Iterator[tuple[Running, str]]:
    running = Running("bench", "p2p", "--listen", "127.0.0.1:0", "--json")
    try:
        yield running, json.loads(running.line())["address"]
    finally:
        running.kill()


def test_every_transport_memory_and_op_is_measured():
    results = measured(*TINY)
    assert all(list(one) == KEYS for one in results)
    cases = [(one["transport"], one["memory"], one["op"], one["bytes"], one["iovs"]) for one in results]
    assert cases == [
        (transport, memory, op, size, iovs)
        for transport in ("shm", "tcp")
        for memory in ("mapped", "any")
        for op in ("write", "read")
        for size, iovs in ((13, 1), (21, 3))
    ]


def test_pings_are_of_the_sizes_that_fit():
    results = measured("--ops", "ping", "--sizes", "8,13,1K,3x8,64K", "--milliseconds", 1)
    cases = [(one["transport"], one["memory"], one["op"], one["bytes"]) for one in results]
    assert cases == [
        (transport, memory, "ping", size)
        for transport in ("shm", "tcp")
        for memory in ("mapped", "any")
        for size in (8, 1024)
    ]
    fails(run("bench", "p2p", "--ops", "ping", "--sizes", "64K"), "8 to 1024")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["--both"], {"both": True}),
        (["--pairs", 2], {"pairs": 2}),
        (["--both", "--pairs", 2], {"both": True, "pairs": 2}),
        (["--reuse"], {"reuse": True}),
    ],
    ids=["both", "pairs", "both-pairs", "reuse"],
)
def test_options_are_named_in_the_results(transport, options, more):
    results = measured(*TINY, "--transports", transport, *options)
    assert len(results) == 2 * 2 * 2
    for one in results:
        assert {key: one[key] for key in one if key not in KEYS} == more


def test_a_transfer_larger_than_a_round_is_one_round():
    results = measured("--sizes", "3M,2x2M", "--milliseconds", 1, "--both", "--ops", "write")
    assert [one["bytes"] for one in results] == [3 << 20, 4 << 20] * 4


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages_are_measured(transport):
    results = measured(*TINY, "--transports", transport, "--ops", "send")
    assert {one["op"] for one in results} == {"send"}
    assert len(results) == 2 * 2


def test_a_table_is_printed():
    result = run("bench", "p2p", "--transports", "tcp", "--memories", "any", "--ops", "read", *TINY)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:5] == ["transport", "memory", "op", "bytes", "pieces"]
    assert [line[:5] for line in lines[1:]] == [
        ["tcp", "any", "read", "13", "1"],
        ["tcp", "any", "read", "21", "3"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "0"], ["'0'"]),
        (["--sizes", "0x8"], ["'0x8'"]),
        (["--sizes", "8x"], ["'8x'"]),
        (["--ops", "swim"], ["--ops", "'swim'", "write, read, send, ping, signal"]),
        (["--ops", "send", "--both"], ["--both", "'send'", "write, read"]),
        (["--memories", "shared"], ["--memories", "'shared'", "mapped, any, huge, cuda, cuda-pages"]),
        (["--transports", "pigeon"], ["'pigeon'"]),
        (["--pairs", "0"], ["--pairs", "'0'", "must be an integer in [1, "]),
        (["--pairs", "1000"], ["--pairs", "'1000'"]),
        (["--milliseconds", "0"], ["--milliseconds", "'0'"]),
        (["--connect", "nowhere"], ["'nowhere'", "HOST:PORT"]),
        (["--connect", "127.0.0.1:1"], ["127.0.0.1:1"]),
        (["--listen", "nowhere"], ["'nowhere'", "HOST:PORT"]),
        (["--listen", "127.0.0.1:0", "--connect", "127.0.0.1:1"], ["--listen", "--connect"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_bad_values_are_refused(arguments, words):
    fails(run("bench", "p2p", *arguments, timeout=30), *words)


def test_two_hosts_need_no_shared_memory(listener):
    running, address = listener
    results = measured(*TINY, "--connect", address, "--both", "--pairs", 2)
    assert {one["transport"] for one in results} == {"tcp"}
    # The listener serves the next one as well, here over shared memory: it is the same host after all.
    results = measured(*TINY, "--connect", address, "--transports", "shm", "--memories", "mapped")
    assert {one["transport"] for one in results} == {"shm"}
    ended = running.stop()
    assert (ended.returncode, ended.stderr) == (0, "")


def test_two_hosts_prove_the_same_token(listener, monkeypatch):
    _, address = listener
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "another-token-of-sufficient-length")
    fails(run("bench", "p2p", *TINY, "--connect", address), "another job token")


def test_beyond_loopback_a_token_must_be_given(monkeypatch, tmp_path):
    monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE")
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(tmp_path))
    fails(run("bench", "p2p", "--listen", "0.0.0.0:0"), "token", "0.0.0.0")
    fails(run("bench", "p2p", "--listen", "0"), "token")


def test_nothing_is_left_behind_when_it_is_killed(listener):
    running, address = listener
    command = [BINARY, "bench", "p2p", "--connect", address, "--pairs", "2", "--milliseconds", "60000"]
    process = Process(*command, "--sizes", "8", stdout=subprocess.DEVNULL, start_new_session=True)
    # Itself and a process of its own in each pair; as many at the listener, which it has forked.
    children = pathlib.Path(f"/proc/{running.pid}/task/{running.pid}/children")
    try:
        wait_until(lambda: len(processes_of(process.pid)) == 3 and len(children.read_text().split()) == 2)
    finally:
        process.close()
    wait_until(lambda: not processes_of(process.pid))

    def serving() -> list[str]:
        states = []
        for child in children.read_text().split():
            stat = pathlib.Path(f"/proc/{child}/stat").read_text()
            states.append(stat.rsplit(")", 1)[1].split()[0])
        return [state for state in states if state != "Z"]

    wait_until(lambda: not serving(), timeout=80)  # One that was not connected yet waits a minute for it.
    # It goes on to serve.
    assert len(measured(*TINY, "--connect", address, "--ops", "write", "--memories", "any")) == 2
