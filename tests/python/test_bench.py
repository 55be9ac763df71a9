"""Every script of bench/ starts: what it imports is there."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")  # rl_sync.py and those of GPUs need it.
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = sorted(one.name for one in BENCH.glob("*.py") if "ArgumentParser(" in one.read_text())


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_explains_itself(script):
    shown = subprocess.run(
        [sys.executable, BENCH / script, "--help"], capture_output=True, text=True, timeout=120, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "usage:" in shown.stdout
