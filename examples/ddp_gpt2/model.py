"""GPT-2, as its authors published it: the shape, the initialisation, the tied head."""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 50257
    context: int = 1024
    width: int = 768
    layers: int = 12
    heads: int = 12
    dropout: float = 0.1


MODELS = {"gpt2": Shape(), "simple": Shape(vocabulary=256, context=256, width=128, layers=2, heads=4)}


class Block(nn.Module):
    """Attention over the tokens before, then two layers on each token; each behind a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.probability = shape.heads, shape.dropout
        self.attention_norm = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.attention_out = nn.Linear(shape.width, shape.width)
        self.mlp_norm = nn.LayerNorm(shape.width)
        self.mlp_in = nn.Linear(shape.width, 4 * shape.width)
        self.mlp_out = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.dropout(self.attention_out(self._attend(self.attention_norm(hidden))))
        inner = functional.gelu(self.mlp_in(self.mlp_norm(hidden)), approximate="tanh")
        return hidden + self.dropout(self.mlp_out(inner))

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        by_head = (one.unflatten(-1, (self.heads, -1)) for one in self.query_key_value(hidden).chunk(3, -1))
        query, key, value = (one.transpose(1, 2) for one in by_head)
        probability = self.probability if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=probability
        )
        return mixed.transpose(1, 2).flatten(2)


class GPT2(nn.Module):
    """`forward` returns the mean cross-entropy, so that a wrapper such as DDP sees all of the step."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)  # The head, too.
        self.positions = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for module in self.modules():
            _initialise(module, 0.02)
        for block in self.blocks:  # What is added to the residual stream.
            for module in (block.attention_out, block.mlp_out):
                _initialise(module, 0.02 / math.sqrt(2 * shape.layers))

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch, sequence]; returns [batch, sequence, vocabulary]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


def _initialise(module: nn.Module, deviation: float) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=deviation)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def parameter_count(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())
