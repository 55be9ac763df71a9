"""The controller as a process of its own."""

import os
import signal

import pytest

import weightcast as wc
from weightcast.rl import controller
from weightcast.rl.controller import OwnController


def test_it_ends_when_it_is_told_to():
    one = OwnController("127.0.0.1:0", {})
    assert one.address.startswith("127.0.0.1:")
    one.stop()
    assert one._process.returncode == 0


def test_one_that_cannot_start_says_so_and_leaves_nothing(capfd):
    with pytest.raises(wc.Unavailable, match="its own words are above"):
        OwnController("nowhere", {})
    assert "weightcast.rl.controller: " in capfd.readouterr().err


@pytest.mark.timeout(30)
def test_one_that_says_nothing_is_not_waited_for(monkeypatch, tmp_path):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(controller.sys, "executable", str(silent))
    monkeypatch.setattr(controller, "_START", 0.5, raising=False)
    with pytest.raises(wc.Unavailable, match=r"within 0\.5 s"):
        OwnController("127.0.0.1:0", {})


def test_one_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(controller, "_PATIENCE", 0.2)
    one = OwnController("127.0.0.1:0", {})
    os.kill(one._process.pid, signal.SIGSTOP)
    one.stop()
    assert one._process.returncode == -signal.SIGKILL
