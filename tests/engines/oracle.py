"""What the trainers' weights give by transformers, apart from any engine."""

from __future__ import annotations

import copy
import statistics
from typing import Any

import torch


def transformers_logprobs(model: Any, prompt: list[int], tokens: list[int]) -> list[float]:
    """What transformers gives these tokens after `prompt`, with the trainers' weights rounded to BF16."""
    with torch.no_grad():
        logits = copy.deepcopy(model).bfloat16().float()(torch.tensor([prompt + tokens])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, tokens, strict=True)]


def distance(one: list[float], other: list[float]) -> float:
    return statistics.median(abs(a - b) for a, b in zip(one, other, strict=True))
