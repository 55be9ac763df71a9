"""examples/trl_grpo.py as a user runs it: TRL's GRPOTrainer learns from what two engines generate."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def test_trl_learns_with_engines_that_weightcast_updates():
    example = [sys.executable, str(ROOT / "examples" / "trl_grpo.py")]
    done = subprocess.run(example, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) versions to 2 engines, median .* reward ([\d.]+) -> ([\d.]+)", done.stdout)
    assert found, done.stdout
    # The weights are random at first: an engine that got none, or another's, would teach nothing.
    assert int(found[1]) == 60 and float(found[2]) < 0.2 and float(found[3]) > float(found[2]) + 0.2
