"""What cannot be updated is refused by name, before anything is written."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

import weightcast as wc
from weightcast.sglang import model as adapter

ARGS: dict[str, Any] = {
    "enable_eplb": False, "enable_lora": False, "lora_paths": None, "dp_size": 1, "pp_size": 1, "tp_size": 1,
    "ep_size": 1, "cpu_offload_gb": 0, "disaggregation_mode": "null",
}  # fmt: skip


class OneLayer(torch.nn.Module):
    """A model with a loader as SGLang's are; `method` is one of SGLang's."""

    def __init__(self, method: type) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(4, 4, bias=False)
        self.proj.quant_method = method.__new__(method)

    def load_weights(self, weights: Any) -> None:
        for _, tensor in weights:
            self.proj.weight.data.copy_(tensor)


def live_model(model: torch.nn.Module, monkeypatch: Any, selector: str = "all", **more: Any) -> Any:
    monkeypatch.setattr(adapter, "get_server_args", lambda: types.SimpleNamespace(**{**ARGS, **more}))
    config = types.SimpleNamespace(hf_text_config=types.SimpleNamespace(tie_word_embeddings=False))
    runner = types.SimpleNamespace(
        model=model, device="cpu", dtype=torch.bfloat16, model_config=config,
        weight_updater=types.SimpleNamespace(_assert_weight_cache_inactive=lambda operation: None),
    )  # fmt: skip
    manager = types.SimpleNamespace(
        tp_worker=types.SimpleNamespace(model_runner=runner), draft_worker=more.get("draft_worker")
    )
    return adapter.LiveModel(manager, selector)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("enable_eplb", True), ("enable_lora", True), ("lora_paths", ["a"]), ("dp_size", 2), ("pp_size", 2),
        ("cpu_offload_gb", 4), ("disaggregation_mode", "prefill"),
    ],
)  # fmt: skip
def test_settings(setting: str, value: Any, monkeypatch: Any) -> None:
    flag = "--" + setting.replace("_", "-")
    with pytest.raises(
        wc.InvalidArgument, match=rf"^SGLang's setting {setting} is .*{value}.*; start SGLang without {flag}$"
    ):
        live_model(OneLayer(UnquantizedLinearMethod), monkeypatch, **{setting: value})


def test_a_draft_model(monkeypatch: Any) -> None:
    model = OneLayer(UnquantizedLinearMethod)
    with pytest.raises(wc.InvalidArgument, match="draft model; give begin_weight_update selector=target"):
        live_model(model, monkeypatch, draft_worker=object())
    live_model(model, monkeypatch, "target", draft_worker=object())


def test_unknown_quantisation(monkeypatch: Any) -> None:
    offered = {"proj.weight": ("BF16", (4, 4))}
    live_model(OneLayer(UnquantizedLinearMethod), monkeypatch).map(offered)
    with pytest.raises(
        wc.InvalidArgument, match="^proj: weightcast has not been tried with Fp8LinearMethod on cpu"
    ):
        live_model(OneLayer(Fp8LinearMethod), monkeypatch).map(offered)


def test_a_loader_that_transposes(monkeypatch: Any) -> None:
    class Transposing(OneLayer):
        def load_weights(self, weights: Any) -> None:
            super().load_weights((name, tensor.t()) for name, tensor in weights)

    model = Transposing(UnquantizedLinearMethod)
    with pytest.raises(wc.InvalidArgument, match="^proj.weight: the model's code transposes it"):
        live_model(model, monkeypatch).map({"proj.weight": ("BF16", (4, 4))})


def test_weights_that_sglang_derives(monkeypatch: Any) -> None:
    model = OneLayer(UnquantizedLinearMethod)
    model._hc_attn_bf16_parts = object()
    with pytest.raises(wc.InvalidArgument, match="SGLANG_OPT_DEEPGEMM_HC_PRENORM=0"):  # SGLang's own reason.
        live_model(model, monkeypatch)
    model = OneLayer(UnquantizedLinearMethod)
    model.post_load_weights = lambda: None
    with pytest.raises(wc.InvalidArgument, match="OneLayer derives weights of its own"):
        live_model(model, monkeypatch)


def test_weights_that_are_packed_for_amx(monkeypatch: Any) -> None:
    model = OneLayer(UnquantizedLinearMethod)
    model.proj.use_intel_amx_backend = True
    with pytest.raises(wc.InvalidArgument, match="^proj: SGLang packs weights for AMX"):
        live_model(model, monkeypatch)


def test_a_version_of_sglang_that_was_never_tried(monkeypatch: Any, caplog: Any) -> None:
    adapter.warn_if_untested.cache_clear()
    monkeypatch.setattr(adapter.sglang, "__version__", "0.9.0")
    for _ in range(2):
        live_model(OneLayer(UnquantizedLinearMethod), monkeypatch)
    assert len([one for one in caplog.records if "this is 0.9.0" in one.getMessage()]) == 1


def test_a_loader_that_raises_half_way(monkeypatch: Any) -> None:
    """The tensor is named, and nothing is written: the loader runs without weights."""

    class Failing(OneLayer):
        def load_weights(self, weights: Any) -> None:
            for number, (_, tensor) in enumerate(weights):
                if number == 1:
                    raise RuntimeError("planted")
                self.proj.weight.data[:2].copy_(tensor)

    model = Failing(UnquantizedLinearMethod)
    before = model.proj.weight.detach().clone()
    offered = {name: ("BF16", (2, 4)) for name in ("proj.first", "proj.second")}
    with pytest.raises(wc.InvalidArgument, match=r"^proj.second: .*RuntimeError: planted"):
        live_model(model, monkeypatch).map(offered)
    assert torch.equal(model.proj.weight, before)
