"""The examples run as a user runs them."""

import subprocess
import sys

import pytest

from conftest import ROOT


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_minimal():
    assert "bit-exact: 6 versions checked by 2 engines" in run("minimal.py")


def test_key_value_blocks():
    assert run("key_value_blocks.py").rstrip().endswith("bit-exact: 64 blocks")


def test_train_and_publish():
    pytest.importorskip("torch")
    assert run("train_and_publish.py").rstrip().endswith("done")
