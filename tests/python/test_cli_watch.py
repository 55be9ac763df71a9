"""`weightcast watch`: rates, and the bytes of each step of a program."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cli import BINARY, Running, fails, only_json, run
from netns import Network, make_network
from processes import Process

MIB = 1 << 20
RECEIVE = """
import socket
with socket.create_server(("0.0.0.0", 5001)) as listener:
    print("listening", flush=True)
    taken, _ = listener.accept()
    while head := taken.recv(8, socket.MSG_WAITALL):
        left = int.from_bytes(head, "big")
        while left > 0:
            left -= len(taken.recv(min(left, 1 << 20)))
        taken.sendall(b"k")
"""
# Step n sends n MiB, ends when they have arrived, and rests. Its marks alternate between the two streams.
SEND = """
import socket, sys, time
with socket.create_connection(("10.99.0.2", 5001)) as out:
    for step in range(1, 6):
        size = step << 20
        out.sendall(size.to_bytes(8, "big") + bytes(size))
        assert out.recv(1) == b"k"
        print("epoch 0 step", step, "done", file=sys.stdout if step % 2 else sys.stderr)
        time.sleep(0.3)
"""
MARKER = ["--marker", "step ([0-9]+)"]


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network()
    try:
        made.add_host("sender", "10.99.0.1/24")
        made.add_host("receiver", "10.99.0.2/24")
        yield made
    finally:
        made.close()


@pytest.fixture
def receiver(network: Network) -> Iterator[None]:
    with Process(*network.inside("receiver"), sys.executable, "-c", RECEIVE) as process:
        process.hear("listening")
        yield


def counts(step: dict, name: str) -> dict:
    return next(one for one in step["devices"] if one["name"] == name)


@pytest.mark.usefixtures("receiver")
def test_the_bytes_of_each_step_are_attributed_to_it(network):
    program = ["--per-iteration", "--", sys.executable, "-c", SEND]
    command = ["watch", "--json", "--devices", "eth0,tcp", *MARKER, *program]
    result = only_json(run(*command, prefix=network.inside("sender")))
    assert result["exit_code"] == 0
    assert [step["name"] for step in result["steps"]] == ["1", "2", "3", "4", "5"]
    for number, step in enumerate(result["steps"], 1):
        wire = counts(step, "eth0")
        # Bytes of headers come on top.
        assert number * MIB <= wire["sent_bytes"] <= 1.06 * number * MIB + 4096, result["steps"]
        assert wire["received_bytes"] < 0.1 * number * MIB
        assert wire["cnps_sent"] is None
        assert counts(step, "tcp")["sent_packets"] > 0
        assert counts(step, "tcp")["sent_bytes"] is None
        assert 0 < step["seconds"] < 30
    assert counts(result["rest"], "eth0")["sent_bytes"] < 0.1 * MIB
    total = next(one for one in result["devices"] if one["name"] == "eth0")
    assert 15 * MIB <= total["sent_bytes"] <= 1.06 * 15 * MIB + 5 * 4096
    assert total["median_sent_bytes"] == pytest.approx(3.5 * MIB, rel=0.06)
    assert result["notes"] == []


@pytest.mark.usefixtures("receiver")
def test_the_table_of_steps_stands_behind_the_programs_output(network):
    program = ["--per-iteration", "--", sys.executable, "-c", SEND]
    result = run("watch", *MARKER, *program, prefix=network.inside("sender"))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("epoch 0 step 1 done\nepoch 0 step 3 done\nepoch 0 step 5 done\n\nstep ")
    assert result.stderr == "epoch 0 step 2 done\nepoch 0 step 4 done\n"
    table = result.stdout.split("\n\n")[1].splitlines()
    assert "eth0 sent" in table[0]
    assert [row.split()[0] for row in table[1:6]] == ["1", "2", "3", "4", "5"]
    sent, unit = table[5].split()[2:4]
    assert unit == "MB" and 5.24 <= float(sent) <= 5.6, table[5]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (["echo step 1; exit 3"], 3),
        (["sh", "-c", "echo step 1; exit 3"], 3),
        (["echo step 1; kill -9 $$"], 137),
    ],
)
def test_the_exit_code_is_the_programs(program, code):
    result = run("watch", *MARKER, "--per-iteration", "--", *program)
    assert result.returncode == code
    assert result.stdout.startswith("step 1\n")


def test_a_program_may_stand_before_other_flags():
    result = run("watch", "--per-iteration", "echo", "step", "7", "--marker", "step ([0-9]+)")
    assert result.returncode == 0, result.stderr
    assert "\n7 " in result.stdout


def test_dashes_are_for_programs_alone():
    result = run("info", "--", "x")
    assert result.returncode == 2
    assert "not expected: --" in result.stderr


def test_a_program_that_cannot_be_run_is_said():
    result = run("watch", *MARKER, "--per-iteration", "--", "/no/such/program", "x")
    assert result.returncode == 127
    assert "weightcast: cannot run " in result.stderr


def test_a_marker_that_never_comes_costs_one_line_and_keeps_the_exit_code():
    result = run("watch", *MARKER, "--per-iteration", "echo nothing; exit 4")
    assert result.returncode == 4
    errors = [line for line in result.stderr.splitlines() if line.startswith("weightcast: ")]
    assert len(errors) == 1
    assert "no line of the program's output matches the marker 'step ([0-9]+)'" in errors[0]
    assert "stdbuf -oL" in errors[0]
    assert result.stdout.startswith("nothing\n")
    only = run("watch", "--json", *MARKER, "--per-iteration", "echo nothing")
    assert any("marker" in note for note in only_json(only)["notes"])
    assert only.stderr == "nothing\n"


def test_what_the_program_left_running_is_not_waited_for():
    began = time.monotonic()
    result = run("watch", *MARKER, "--per-iteration", "sleep 30 & echo step 1")
    assert result.returncode == 0
    assert time.monotonic() - began < 20


def test_a_request_to_end_is_passed_on():
    program = "trap 'echo ended by request; exit 5' TERM; echo step 1; while :; do sleep 0.1; done"
    running = Running("watch", *MARKER, "--per-iteration", program)
    try:
        assert running.line() == "step 1"
        running.send_signal(signal.SIGTERM)
        result = running.end()
    finally:
        running.kill()
    assert result.returncode == 5, result.stderr
    assert result.stdout.startswith("ended by request\n\nstep ")


def test_lines_of_rates(network):
    command = ["watch", "--interval", "0.1", "--count", 3, "--devices", "eth0"]
    text = run(*command, prefix=network.inside("sender"))
    assert text.returncode == 0, text.stderr
    assert len(text.stdout.splitlines()) == 3
    assert all(" eth0 sent " in line and line.isascii() for line in text.stdout.splitlines())
    lines = run(*command, "--json", prefix=network.inside("sender")).stdout.splitlines()
    assert len(lines) == 3
    for line in map(json.loads, lines):
        assert line["seconds"] == pytest.approx(0.1, abs=0.2)
        assert [one["name"] for one in line["devices"]] == ["eth0"]
        assert line["devices"][0]["kind"] == "interface"
        assert line["devices"][0]["pauses_sent"] is None


def test_a_device_that_goes_costs_one_line(network):
    network.run("sender", "ip", "link", "add", "name", "gone0", "type", "veth", "peer", "name", "gone1")
    command = ["watch", "--interval", "0.1", "--json", "--devices", "eth0,gone0"]
    running = Running(*command, prefix=network.inside("sender"))
    try:
        assert {one["name"] for one in json.loads(running.line())["devices"]} == {"eth0", "gone0"}
        network.run("sender", "ip", "link", "del", "gone0")
        seen = [json.loads(running.line()) for _ in range(20)]
    finally:
        result = running.stop(signal.SIGINT)
    assert result.returncode == 0, result.stderr
    assert [note for line in seen for note in line["notes"]] == [
        "gone0 has gone; what it moved since the last reading is not counted"
    ]
    assert [one["name"] for one in seen[-1]["devices"]] == ["eth0"]


def picture(locale: str) -> str:
    """What a terminal gets."""
    main, other = pty.openpty()
    environment = {**os.environ, "LC_ALL": locale, "TERM": "xterm"}
    command = [str(BINARY), "watch", "--interval", "0.1", "--count", "5"]
    with subprocess.Popen(command, stdout=other, stderr=other, env=environment) as process:
        os.close(other)
        seen = b""
        while select.select([main], [], [], 20)[0]:
            try:
                part = os.read(main, 65536)
            except OSError:  # The other end is closed.
                break
            seen += part
        assert process.wait(20) == 0, seen
    os.close(main)
    return seen.decode()


def test_a_terminal_shows_a_table_with_blocks():
    seen = picture("C.UTF-8")
    assert seen.count("\x1b[H\x1b[J") == 5
    assert "device" in seen and "every 0.1 s; Ctrl-C ends" in seen
    assert any(block in seen for block in "▁▂▃▄▅▆▇█")
    assert picture("C").isascii()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--devices", "eth77"], ["no device with traffic counters is called 'eth77'", "name one of these"]),
        (["--interval", "0"], ["--interval is '0'", "seconds"]),
        (["--interval", "soon"], ["--interval is 'soon'"]),
        (["--interval", "1e9"], ["--interval is '1e9'"]),
        (["--per-iteration", "echo x"], ["--marker REGEX"]),
        (["--marker", "x"], ["--per-iteration CMD"]),
        (["--marker", "step (", "--per-iteration", "echo x"], ["'step (' is not a regular expression"]),
    ],
)
def test_bad_input_is_refused_before_anything_runs(arguments, words):
    fails(run("watch", "--count", 1, *arguments), *words)


def test_help_has_an_example():
    assert "--per-iteration -- torchrun" in run("watch", "--help").stdout
