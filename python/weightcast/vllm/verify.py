"""Whether vLLM's forward pass uses what the trainers sent: what the setting `compare` adds in vLLM.

The core has compared the spare memory with the trainers, by digest. Here what the forward pass uses is
compared with the spare memory, bit by bit:

- tensors that the forward pass reads as they are;
- a linear layer that has a packed copy: multiplied with the identity matrix it gives its weight back;
- other layers that vLLM processes (experts): processed once more, which must give the same bits. Whether they
  are what the kernel needs, a probe shows: a few random rows through each expert, beside the same computed
  from the spare memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from ..capture import Landing
from ..errors import Corrupt
from .reload import Reload

_ROWS = 1024  # Of the identity matrix at once.
_PROBES = 4  # Random rows through each expert.
# Of the largest value of a row: sums of BF16 products, rounded twice on the way. A wrong layout is off by 1.
_PROBE_TOLERANCE = 0.05


@dataclass
class Verified:
    as_they_are: int = 0
    read_back: int = 0
    again: int = 0
    probed: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.as_they_are} parameters as they are, {self.read_back} read back, "
            f"{self.again} processed again, {self.probed} experts probed"
        )


def verify(reload: Reload) -> Verified:
    """Between a switch and the next step. Errors: Corrupt, naming tensors of the trainers and elements."""
    found = Verified()
    with reload.settled(), torch.no_grad():
        for path, spare in reload.by_layer().items():
            _verify_layer(found, reload, path, spare)
    if found.wrong:
        more = f", and {len(found.wrong) - 3} more" if len(found.wrong) > 3 else ""
        raise Corrupt(
            f"the forward pass does not use what the trainers sent: {'; '.join(found.wrong[:3])}{more}; "
            "update this model with vLLM's own loading, without weightcast"
        )
    return found


def _verify_layer(found: Verified, reload: Reload, path: str, spare: dict[str, torch.Tensor]) -> None:
    layer = reload.layer(path)
    packed = {}
    for name, expected in spare.items():
        live = getattr(layer, name)
        if reload.holds_bytes(f"{path}.{name}") or _is_lookup(layer):
            found.as_they_are += 1
            _compare(found, reload, f"{path}.{name}", live.to(expected.dtype), expected)
        if not reload.holds_bytes(f"{path}.{name}"):
            packed[name] = expected
    if not packed:
        return
    if list(packed) == ["weight"] and packed["weight"].dim() == 2:
        found.read_back += 1
        _compare(found, reload, f"{path}.weight", _read_back(layer, packed["weight"]), packed["weight"])
        return
    before = {name: getattr(layer, name).detach().clone() for name in packed}
    reload.process(path)
    for name, was in before.items():
        found.again += 1
        if not torch.equal(was, getattr(layer, name)):
            found.wrong.append(f"{path}.{name} is not what processing it once more gives")
    if _has_plain_experts(layer, packed):
        _probe_experts(found, path, layer, packed)


def _is_lookup(layer: torch.nn.Module) -> bool:
    """An embedding reads rows of its weight, whatever copy it has for a tied head."""
    return isinstance(layer, VocabParallelEmbedding)


def _read_back(layer: torch.nn.Module, like: torch.Tensor) -> torch.Tensor:
    """The weight that the layer multiplies with: exact, as each sum has one term that is not zero."""
    outputs, inputs = like.shape
    weight = torch.empty_like(like)
    device = layer.weight.device
    for first in range(0, inputs, _ROWS):
        rows = min(_ROWS, inputs - first)
        unit = torch.zeros(rows, inputs, dtype=like.dtype, device=device)
        unit[torch.arange(rows), torch.arange(first, first + rows)] = 1
        weight[:, first : first + rows] = layer.quant_method.apply(layer, unit, None)[:, :outputs].T
    return weight


def _has_plain_experts(layer: torch.nn.Module, packed: dict[str, torch.Tensor]) -> bool:
    """down(silu(gate(x)) * up(x)), no biases, every expert on this rank: what `_probe_experts` computes."""
    if getattr(layer.quant_method, "is_monolithic", False):  # Its kernel routes by itself, as in 0.29.
        return False
    activation = getattr(getattr(layer, "activation", None), "value", None)
    return set(packed) == {"w13_weight", "w2_weight"} and activation == "silu" and layer.expert_map is None


def _probe_experts(
    found: Verified, path: str, layer: torch.nn.Module, spare: dict[str, torch.Tensor]
) -> None:
    experts, inputs = len(spare["w13_weight"]), spare["w13_weight"].shape[2]
    random = torch.Generator().manual_seed(experts)
    rows = torch.randn(_PROBES, inputs, generator=random).to(layer.w13_weight)
    which = torch.arange(experts, dtype=torch.int32, device=rows.device).repeat_interleave(_PROBES)[:, None]
    whole = torch.ones(len(which), 1, device=rows.device)
    used = layer.quant_method.apply(layer, rows.repeat(experts, 1), whole, which, None, None)
    rows = rows.float()
    for expert, got in enumerate(used.view(experts, _PROBES, -1).float()):
        gate, up = (rows @ spare["w13_weight"][expert].to(rows).T).chunk(2, dim=1)
        wanted = (torch.nn.functional.silu(gate) * up) @ spare["w2_weight"][expert].to(rows).T
        off = float((got[:, : wanted.shape[1]] - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))
        found.probed += 1
        if not off <= _PROBE_TOLERANCE:
            found.wrong.append(
                f"{path}: expert {expert} computes something else than its weights say, off by {off:.2g} of "
                "the largest value"
            )


def _compare(found: Verified, reload: Reload, name: str, used: torch.Tensor, expected: torch.Tensor) -> None:
    """used: may be on a GPU, which the spare memory is not."""
    used = used.to(expected.device)
    if torch.equal(used, expected):
        return
    differs = torch.empty_strided(expected.shape, expected.stride(), dtype=torch.bool)
    differs.copy_(used != expected)
    for landing in reload.landings_in(name):
        part = landing.view(differs)
        if bool(part.any()):
            found.wrong.append(_where(landing, part, name))


def _where(landing: Landing, differs: torch.Tensor, name: str) -> str:
    first = differs.nonzero()[0].tolist()
    index = [a + b for a, b in zip(landing.offset, first, strict=True)]
    count = int(differs.sum())
    more = f" and {count - 1} more elements" if count > 1 else ""
    return f"{landing.source}{index}{more}, in {name}"
