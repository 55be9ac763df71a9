"""A run on several nodes: the launchers' command lines, with a stand-in for `weightcast.rl`."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from cli import BINARY, ROOT
from netns import make_network
from processes import Process

LAUNCH = ROOT / "scripts" / "launch_all_nodes.sh"


def _environment(**more: object) -> dict[str, str]:
    """Programs and packages of this test run, and the stand-in."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WEIGHTCAST_TOKEN")
    }
    found = [BINARY.parent, pathlib.Path(sys.executable).parent, environment["PATH"]]
    packages = [ROOT / "tests" / "python", *filter(None, [environment.get("PYTHONPATH")])]
    ours = {
        "PATH": ":".join(map(str, found)),
        "PYTHONPATH": ":".join(map(str, packages)),
        "RL_MODULE": "rl_stand_in",
        "WEIGHTCAST_LEASE": 2,
    }
    return {**environment, **{name: str(value) for name, value in {**ours, **more}.items()}}


class Launch:
    """A launcher that runs; `end` waits for it."""

    def __init__(self, *arguments: object, logs: pathlib.Path | None = None, **environment: object) -> None:
        options = [] if logs is None else ["--logs", logs]
        command = [str(one) for one in (LAUNCH, *arguments, *options)]
        self.logs = logs
        self.process = Process(*command, environment=_environment(**environment))

    def end(self, timeout: float = 120) -> tuple[int, str, str]:
        """Exit status, standard output and error. Nothing that it made is left."""
        done = self.process.end(timeout)
        assert self.namespaces() == []
        return done.returncode, done.stdout, done.stderr

    def namespaces(self) -> list[str]:
        folder = pathlib.Path("/run/netns")
        return [one.name for one in folder.glob(f"wcl{self.process.pid}-*")] if folder.exists() else []

    def log(self, name: str) -> str:
        assert self.logs is not None
        path = self.logs / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, name: str, text: str, timeout: float = 60) -> None:
        self.process.wait_until(lambda: text in self.log(name), timeout)


@pytest.fixture
def namespaces() -> None:
    """Skips where they cannot be made."""
    pytest.importorskip("torch")
    make_network().close()


def _commands(*arguments: object, **environment: object) -> list[str]:
    environment = {"RL_MODULE": "weightcast.rl", **environment}
    status, out, err = Launch("--print", *arguments, **environment).end(20)
    assert status == 0, err
    return out.splitlines()


def test_the_commands_are_those_of_the_manual():
    lines = _commands("--model_name", "Qwen/Qwen2.5-0.5B", NODES="n0 n1 n2 n3", RANKS_PER_NODE=8)
    manual = (ROOT / "docs" / "operations.md").read_text()
    assert len(lines) == 1 + 2 + 8
    for line in lines[:4]:
        assert line.split(": ", 1)[1] in manual, line


def test_who_does_what():
    nodes = [line.split(":")[0] for line in _commands(NODES="a b")]
    assert nodes == ["a", "a", "b"]  # Controller, trainers, engine.
    nodes = [line.split(":")[0] for line in _commands(NODES="a b c d e")]
    assert nodes == ["d", "a", "b", "c", "e"]
    lines = _commands(NODES="a b c", TRAINER_NODES="c", INFERENCE_NODES="a b", CONTROLLER_NODE="c")
    assert [line.split(":")[0] for line in lines] == ["c", "c", "a", "b"]
    assert "--num_training 1 --num_inference 2" in lines[1]
    assert "--engine engine-1" in lines[3]


def test_options_come_through_as_they_were():
    assert _commands("--text", "it's a $HOME", NODES="a b")[1].endswith(r" --text it\'s\ a\ \$HOME")


def test_what_is_missing_is_said():
    for environment, words in (
        ({}, "NODES="),
        ({"NODES": "a"}, "at least two"),
        ({"NODES": "a b"}, "TOKEN_FILE"),
    ):
        status, _, err = Launch(**environment).end(20)
        assert status == 2 and words in err, err


@pytest.mark.parametrize("count", [2, 4])
def test_a_run_in_namespaces(tmp_path: pathlib.Path, namespaces: None, count: int):
    arguments = ["--test-mode", "--nodes", count, "--text", "it's a $HOME"]
    run = Launch(*arguments, logs=tmp_path, ENGINES_PER_NODE=2)
    status, out, err = run.end()
    assert status == 0, err
    assert out.endswith("done\n")
    node, trainers = f"10.97.0.{count}", max(1, count - 2)
    for number in (0, 1):
        text = run.log(f"{node}-engine-{number}")
        assert f"version 1: {sum(range(1, trainers + 1))}.0" in text
        assert "it's a $HOME" in text
        assert f"engine-{number} has been here" in run.log("10.97.0.1-trainer")


def test_the_loop_itself_in_namespaces(tmp_path: pathlib.Path, namespaces: None):
    options = ["--rl_iterations", 2, "--log", "tensorboard", "--output", tmp_path / "run"]
    logs = tmp_path / "logs"
    run = Launch("--test-mode", *options, "--max_gen_length", 4, logs=logs, RL_MODULE="weightcast.rl")
    status, _, err = run.end(200)
    assert status == 0, err
    lines = (tmp_path / "run" / "iterations.jsonl").read_text().splitlines()
    assert [json.loads(line)["version"] for line in lines] == [1, 2]
    assert [one["way"] for one in json.loads(lines[1])["transfers"]] == ["weightcast"]


def test_a_trainer_that_fails_ends_the_run(tmp_path: pathlib.Path, namespaces: None):
    run = Launch("--test-mode", "--misbehave", "trainer-fails", logs=tmp_path)
    status, _, err = run.end()
    assert status == 1
    assert re.search(r"10\.97\.0\.[12]-trainer ended with status 1; the end of its log:", err)


def test_an_engine_that_fails_is_named(tmp_path: pathlib.Path, namespaces: None):
    run = Launch(
        "--test-mode", "--nodes", 2, "--misbehave", "engine-fails", logs=tmp_path, WEIGHTCAST_JOIN_TIMEOUT=5
    )
    status, _, err = run.end()
    assert status == 1
    assert "trainer ended with status 1" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(tmp_path: pathlib.Path, namespaces: None, number: int):
    run = Launch("--test-mode", "--nodes", 2, "--misbehave", "engine-waits", logs=tmp_path)
    run.wait_for("10.97.0.2-engine-0", "waiting")
    inside = {pid for name in run.namespaces() for pid in _pids(name)}
    assert len(inside) >= 3
    run.process.send_signal(number)
    status, _, _ = run.end(30)
    assert status == 128 + number
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in inside)


def _pids(namespace: str) -> list[int]:
    shown = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True).stdout
    return [int(word) for word in shown.split()]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _here(tmp_path: pathlib.Path) -> dict[str, Any]:
    """Settings for a run whose nodes are addresses of this host."""
    token = tmp_path / "token"
    token.write_text("a-token-for-this-test-and-no-other\n")
    token.chmod(0o600)
    names = ("CONTROLLER_PORT", "QUEUE_PORT", "MASTER_PORT")
    return {"WEIGHTCAST_TOKEN_FILE": token, **dict(zip(names, _free_ports(3), strict=True))}


def test_by_ssh(tmp_path: pathlib.Path):
    """ssh hands its words, joined, to a shell of the other host, which has another environment."""
    pytest.importorskip("torch")
    shell = tmp_path / "ssh"
    shell.write_text('#!/bin/sh\nshift\nexec env -i HOME=/nowhere sh -c "$*"\n')
    shell.chmod(0o755)
    more = {"NODES": "127.0.0.1 127.0.0.2", "ENGINES_PER_NODE": 2, "SSH": shell, **_here(tmp_path)}
    run = Launch("--text", "it's a $HOME", logs=tmp_path, **more)
    status, out, err = run.end()
    assert status == 0, err
    for number in (0, 1):
        log = run.log(f"127.0.0.2-engine-{number}")
        assert f"version 1: 1.0, local rank {number}" in log and "it's a $HOME" in log


SRUN = """#!/usr/bin/env python3
import os, re, subprocess, sys
options = dict(one[2:].partition("=")[::2] for one in sys.argv[1:] if one.startswith("--"))
command = sys.argv[sys.argv.index("bash"):]
each = int(options["ntasks-per-node"])
assert int(options["ntasks"]) == each * int(options["nodes"]) == each * len(options["nodelist"].split(","))
tasks = [
    subprocess.Popen(command, env={**os.environ, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i % each),
                                   "SLURM_NODEID": str(i // each)})
    for i in range(int(options["ntasks"]))
]
import signal
signal.signal(signal.SIGTERM, lambda *_: [one.terminate() for one in tasks])
sys.exit(max(abs(one.wait()) for one in tasks))
"""


def test_under_slurm(tmp_path: pathlib.Path):
    """With an srun that starts the tasks here."""
    pytest.importorskip("torch")
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\nprintf '127.0.0.1\\n127.0.0.2\\n'\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    more = {"SLURM_SUBMIT_DIR": ROOT, "SLURM_JOB_NODELIST": "two", "SLURM_JOB_ID": 1, "RANKS_PER_NODE": 2}
    environment = _environment(**more, **_here(tmp_path))
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    command = ["bash", str(ROOT / "examples" / "slurm" / "rl.sbatch"), "--text", "it's a $HOME"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("version 1: 3.0") == 2
    assert run.stdout.count("it's a $HOME") == 4
    assert "engine-0 has been here" in run.stdout and "engine-1 has been here" in run.stdout


def test_shell_scripts_are_sound():
    for path in (LAUNCH, ROOT / "scripts" / "rl_commands.sh", ROOT / "examples" / "slurm" / "rl.sbatch"):
        subprocess.run(["bash", "-n", path], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", "-x", "-S", "warning", path], check=True, cwd=ROOT)
