"""`python -m weightcast.vllm check`: the mapping without weights, as the ranks of an engine find it."""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from vllm_models import make_model, save
from vllm_processes import environment


def check(folder: pathlib.Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weightcast.vllm", "check", *options],
        env=environment(folder), text=True, capture_output=True, timeout=600,
    )  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in ("dense", "moe"):
        save(make_model(kind), folder / kind)
    return folder


def test_the_mapping_of_two_ranks(models: pathlib.Path) -> None:
    done = check(models, "--model", str(models / "dense"), "--tp", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["model"], found["tp"], found["unwanted"]) == ("Qwen2ForCausalLM", 2, [])
    name = "model.layers.0.self_attn.v_proj.weight"
    boxes = [
        (one["rank"], one["offset"], one["size"], one["parameter"], one["start"])
        for one in found["places"]
        if one["tensor"] == name
    ]
    qkv = "model.layers.0.self_attn.qkv_proj.weight"
    # Each rank has 2 of 4 heads of q and 1 of 2 heads of k and v, of 32 rows each.
    assert boxes == [(0, [0, 0], [32, 128], qkv, 96 * 128), (1, [32, 0], [32, 128], qkv, 96 * 128)]
    whole = ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight")
    places = [one for one in found["places"] if one["tensor"] in whole]
    elements = {
        name: sum(math.prod(one["size"]) for one in places if one["tensor"] == name) for name in whole
    }
    assert list(elements.values()) == [512 * 128, 128 * 256, 2 * 128]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--model", "dense", "--tp", "3"), "attention heads (4) must be divisible"),
        (("--model", "dense", "--weights", "moe"), "start the engine with the model of these weights"),
        (("--model", "nothing"), "nothing has no *.safetensors"),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)
def test_what_an_engine_would_refuse(models: pathlib.Path, options: tuple[str, ...], named: str) -> None:
    paths = [str(models / one) if one in ("dense", "moe", "nothing") else one for one in options]
    done = check(models, *paths)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = [line for line in done.stderr.splitlines() if line.startswith("weightcast: ")]
    assert named in line


def test_a_version_that_was_never_tried(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """One warning, and vLLM's processing gets copies: it might keep or change what it is given."""
    import vllm
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    from weightcast.vllm import supported

    method = UnquantizedLinearMethod()
    assert supported.only_reads(method)
    monkeypatch.setattr(vllm, "__version__", "0.99.0")
    assert not supported.only_reads(method)
    for _ in range(2):
        supported.warn_if_untested("0.99.0")
    assert len([one for one in caplog.records if "this is 0.99.0" in one.getMessage()]) == 1
