"""Tiny models whose versions differ in greedy tokens, and checkpoints of them."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

VOCABULARY = 512
PROMPTS = [[(7 * i + 11 * j + 3) % VOCABULARY for j in range(5 + i)] for i in range(8)]


def make_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float32, positions: int = 256) -> Any:
    """kind: "dense", "tied" (Qwen2, with bias) or "moe" (Qwen3-MoE, 8 experts). positions: of a request."""
    import transformers

    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": positions,
        "initializer_range": 0.2, "tie_word_embeddings": kind == "tied", "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    if kind == "moe":
        config: Any = transformers.Qwen3MoeConfig(
            **shared, head_dim=32, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
            decoder_sparse_step=1, norm_topk_prob=True,
        )  # fmt: skip
    else:
        config = transformers.Qwen2Config(**shared)
    config.torch_dtype = torch.bfloat16
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


@torch.no_grad()
def train(model: Any, step: int) -> None:
    """Stands in for a training step: every tensor changes, and the tokens with them. Steps do not add up."""
    for sign, seed in ((-1, step - 1), (1, step)):
        if seed == 0:
            continue
        generator = torch.Generator().manual_seed(1000 + seed)
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.add_(torch.randn(local.shape, generator=generator), alpha=sign * 0.05)


def save(model: Any, folder: pathlib.Path) -> None:
    """A checkpoint in BF16, as transformers writes it."""
    import copy

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
