"""Trainers give the adapter a `WeightSource`, whose interface changed with 0.33.

There is no build of 0.33 for CPUs, but its files of the trainer's side run on one.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from vllm_processes import CALL, HERE, environment

ROOT = HERE.parents[1]


def run(mode: str, folder: pathlib.Path, path: list[str]) -> str:
    env = environment(folder)
    env["PYTHONPATH"] = os.pathsep.join([*path, env["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_source.py"), mode],
        env=env, text=True, capture_output=True, timeout=CALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def test_a_source_whose_ranks_hold_different_tensors(tmp_path: pathlib.Path) -> None:
    assert run("full", tmp_path, []) == "equal"


@pytest.mark.long
@pytest.mark.parametrize("mode", ["full", "local"])
def test_a_source_of_0_33(mode: str, tmp_path: pathlib.Path) -> None:
    subprocess.run([ROOT / "tests" / "engines" / "environment", "vllm", "0.33.0"], check=True, timeout=CALL)
    assert run(mode, tmp_path, [str(ROOT / ".engines" / "vllm-0.33.0")]) == "equal"
