"""`rotary_embedding` in plain torch, in place as vLLM's is."""

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    cos, sin = cos_sin_cache[positions.flatten()].chunk(2, dim=-1)
    for part in (query, key):
        if part is not None:
            _rotate(part, head_size, cos, sin, is_neox)


def _rotate(part: torch.Tensor, head_size: int, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> None:
    heads = part.view(cos.shape[0], -1, head_size)
    width = 2 * cos.shape[-1]
    cos, sin = cos.unsqueeze(1).to(part.dtype), sin.unsqueeze(1).to(part.dtype)
    if is_neox:
        first, second = heads[..., :width].chunk(2, dim=-1)
    else:
        first, second = heads[..., 0:width:2], heads[..., 1:width:2]
    turned = first * cos - second * sin, second * cos + first * sin
    first.copy_(turned[0])
    second.copy_(turned[1])
