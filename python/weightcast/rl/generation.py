"""Batched generation with a key-value cache: tokens, their log-probabilities and weight versions.

What comes out depends on the weights, the prompts and the seed, and on nothing else: one uniform number for
each token is drawn from a generator of the batch's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig

from .algorithms import token_log_probs
from .sequence import Sequence


@dataclass(frozen=True)
class Sampling:
    """How to generate. temperature: 0 takes the likeliest token, with its log-probability at 1."""

    max_new_tokens: int
    temperature: float = 1.0
    eos: int | None = None
    pad: int = 0


def item_seed(seed: int, purpose: str, iteration: int, number: int) -> int:
    """A seed of 63 bits that depends on all four, and not on who asks."""
    text = f"{seed}/{purpose}/{iteration}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


@torch.no_grad()
def generate(
    model: nn.Module,
    prompts: Rows[Rows[int]],
    sampling: Sampling,
    *,
    samples: int = 1,
    seed: int = 0,
    version: Callable[[], int] = lambda: 0,
    between_tokens: Callable[[], None] = lambda: None,
) -> list[Sequence]:
    """`samples` completions of each prompt, those of one prompt in succession.

    version: asked before each token, for the version of the weights that are about to make it.
    between_tokens: called between tokens; may change the weights, the cache stays.
    """
    decoder = _Decoder(model, prompts, sampling.pad)
    rows = len(prompts) * samples
    # In [0, 1), and in float64, so that tokens of small probability keep theirs.
    source = torch.Generator().manual_seed(seed)
    uniform = torch.rand(rows, sampling.max_new_tokens, dtype=torch.float64, generator=source)
    uniform = uniform.to(decoder.device)
    live = torch.ones(rows, dtype=torch.bool, device=decoder.device)
    steps: list[tuple[Tensor, Tensor]] = []
    versions = [version()]
    logits = decoder.prefill(samples)
    while True:
        token, logprob = _choose(logits, uniform[:, len(steps)], sampling.temperature)
        steps.append((token, logprob))
        if sampling.eos is not None:
            live &= token != sampling.eos
        if len(steps) == sampling.max_new_tokens or not live.any():
            return _sequences(prompts, samples, steps, versions, sampling.eos)
        between_tokens()
        versions.append(version())
        logits = decoder.forward(token.unsqueeze(1))


class _Decoder:
    """A model, its cache, and the prompts in it: padded on the left, where they differ in length."""

    def __init__(self, model: nn.Module, prompts: Rows[Rows[int]], pad: int) -> None:
        longest = max(map(len, prompts))
        self.device = next(model.parameters()).device
        self._model = model
        self._cache = DynamicCache(config=cast(PretrainedConfig, model.config))
        rows = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        self._ids = torch.tensor(rows, device=self.device)
        self._padding = torch.tensor([longest - len(prompt) for prompt in prompts], device=self.device)
        self._padded = any(len(prompt) != longest for prompt in prompts)

    def prefill(self, samples: int) -> Tensor:
        """Logits of the first token, `[rows, vocabulary]`; a prompt has `samples` rows from here on."""
        logits = self.forward(self._ids).repeat_interleave(samples, 0)
        self._cache.batch_repeat_interleave(samples)
        self._padding = self._padding.repeat_interleave(samples)
        return logits

    def forward(self, ids: Tensor) -> Tensor:
        """Logits after `ids[rows, tokens]`."""
        output = self._model(
            input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1, **self._places(ids)
        )
        return output.logits[:, -1].float()

    def _places(self, ids: Tensor) -> dict[str, Tensor]:
        """Mask and positions, which a batch without padding does not need."""
        if not self._padded:
            return {}
        before = self._cache.get_seq_length()
        columns = torch.arange(before + ids.shape[1], device=self.device)
        return {
            "attention_mask": (columns >= self._padding.unsqueeze(1)).long(),
            "position_ids": (columns[before:] - self._padding.unsqueeze(1)).clamp(min=0),
        }


def _choose(logits: Tensor, uniform: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token for each row, by inversion of the distribution function, and its log-probability."""
    if temperature == 0:
        token = logits.argmax(-1)
        return token, token_log_probs(logits, token)
    logits = logits / temperature
    summed = logits.softmax(-1).double().cumsum(-1)
    token = torch.searchsorted(summed, uniform.unsqueeze(1) * summed[:, -1:], right=True).squeeze(1)
    token = token.clamp(max=logits.shape[-1] - 1)
    return token, token_log_probs(logits, token)


def _sequences(
    prompts: Rows[Rows[int]],
    samples: int,
    steps: list[tuple[Tensor, Tensor]],
    versions: list[int],
    eos: int | None,
) -> list[Sequence]:
    tokens = torch.stack([token for token, _ in steps], 1).tolist()
    logprobs = torch.stack([logprob for _, logprob in steps], 1).tolist()
    made = []
    for row, its_tokens in enumerate(tokens):
        end = its_tokens.index(eos) + 1 if eos in its_tokens else len(its_tokens)
        prompt = list(prompts[row // samples])
        made.append(Sequence(prompt, its_tokens[:end], logprobs[row][:end], versions[:end]))
    return made
