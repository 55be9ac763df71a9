"""What `compare` finds in layers that an engine's test does not reach: experts, and a tied embedding."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

from vllm_models import make_model, save
from vllm_processes import CALL, HERE, environment

EXPERTS = "model.layers.1.mlp.experts.routed_experts.w2_weight"
PROBED = 0 if os.environ.get("ENGINE_VERSION") == "0.29.0" else 16  # Its kernel of experts routes by itself.
EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize(
    ("kind", "parameter", "right", "wrong"),
    [
        (
            "moe",
            EXPERTS,
            f"4 processed again, {PROBED} experts probed",
            f"{EXPERTS} is not what processing it once more gives",
        ),
        pytest.param(
            "moe",
            "unprepared",
            "16 experts probed",
            "mlp.experts.routed_experts: expert 0 computes something else",
            marks=pytest.mark.skipif(PROBED == 0, reason="vLLM 0.29 has no call for one expert"),
        ),
        ("tied", EMBEDDING, "0 processed again, 0 experts probed", f"{EMBEDDING}[0, 5], in {EMBEDDING}"),
    ],
    ids=["experts", "unprepared", "tied"],
)
def test_one_wrong_element(kind: str, parameter: str, right: str, wrong: str, tmp_path: pathlib.Path) -> None:
    save(make_model(kind), tmp_path / "model")
    done = subprocess.run(
        [sys.executable, str(HERE / "vllm_switch.py"), str(tmp_path / "model"), parameter],
        env=environment(tmp_path), text=True, capture_output=True, timeout=CALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = [line for line in done.stdout.splitlines() if line.startswith("verified: ")]
    assert before.endswith(right)
    assert wrong in after
    assert re.search(r"^spare: 0 of \d+ tensors changed, 0 kept$", done.stdout, re.MULTILINE), done.stdout
