"""The examples run as a user runs them."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT
from test_p2p_signatures import TODAY

UCCL_STYLE = ROOT / "examples" / "uccl_style.py"
OURS, THEIRS = "from weightcast import p2p\n", "from uccl import p2p\n"


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


def torchrun(script: pathlib.Path, *arguments: str, **environment: str) -> str:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=4",
        "--standalone",
        str(script),
    ]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "WEIGHTCAST_PORT_RANGE": "20000-60000", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_uccl_style_with_the_import_it_was_written_with(tmp_path):
    """A module `uccl` stands for the other engine; a spare rank has the controller."""
    pytest.importorskip("torch")
    text = UCCL_STYLE.read_text()
    assert text.count(OURS) == 1
    (tmp_path / "script.py").write_text(text.replace(OURS, THEIRS))
    (tmp_path / "uccl").mkdir()
    (tmp_path / "uccl" / "__init__.py").write_text(OURS)
    path = os.pathsep.join(filter(None, [os.fspath(tmp_path), os.environ.get("PYTHONPATH")]))
    arguments = ["--num_inference", "1", "--rl_iterations", "2", "--hidden", "64"]
    shown = torchrun(tmp_path / "script.py", *arguments, PYTHONPATH=path)
    assert shown.count("GB/s") == 2
    assert "every parameter of 1 inference ranks is trainer 0's" in shown


def test_uccl_style():
    pytest.importorskip("torch")
    shown = torchrun(UCCL_STYLE, "--rl_iterations", "2", "--hidden", "64")
    assert "every parameter of 2 inference ranks is trainer 0's" in shown


def test_uccl_style_uses_only_what_the_other_engine_has():
    used = {
        node.attr
        for node in ast.walk(ast.parse(UCCL_STYLE.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self.ep", "p2p.Endpoint")
    }
    assert {"connect", "accept", "send", "recv"} <= used <= {one.values[0] for one in TODAY}
