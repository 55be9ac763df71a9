"""Two trainer ranks send what a `WeightSource` yields, by vLLM's own factory: `vllm_source.py full | local`.

An engine of this package stands in for vLLM, so that this runs with any release's trainer side. Prints
"equal" when it has got three versions of every tensor.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

import weightcast as wc
import weightcast.vllm as adapter

VERSIONS = 3
OWNED = hasattr(base, "Shard")  # From 0.33 on, a source says who owns what.
# Shape, owners and the dimension that they share: uneven rows, columns, a scalar, and one rank's own tensor.
LAYOUT: dict[str, tuple[tuple[int, ...], tuple[int, ...], int | None]] = {
    "both.rows": ((7, 5), (0, 1), 0),
    "both.columns": ((4, 9), (1, 0), 1),
    "both.few": ((1, 6), (0, 1), 0),
    "both.whole": ((3, 3), (0, 1), None),
    "both.scalar": ((), (0, 1), None),
    "second.whole": ((8, 2), (1,), None),
}


def value(name: str, version: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * version + list(LAYOUT).index(name))
    return torch.randn(LAYOUT[name][0], generator=generator)


def meta(name: str) -> Any:
    shape, owners, dim = LAYOUT[name]
    if not OWNED:
        return base.ParamMeta(name, torch.float32, shape)
    placements = None if dim is None else (base.Shard(dim),)
    return base.ParamMeta(name, torch.float32, shape, owners=owners, placements=placements)


class Whole:
    """What both releases' sources have in common. Each tensor is gone once the next is asked for."""

    def __init__(self, rank: int) -> None:
        self.rank, self.version = rank, 1

    def yielded(self, pieces: bool) -> Iterator[tuple[str, Any]]:
        scratch = torch.empty(64)
        for name, (_, owners, dim) in LAYOUT.items():
            if self.rank not in owners:
                if not OWNED:
                    yield name, None
                continue
            tensor = value(name, self.version)
            if pieces and dim is not None:
                parts = tensor.chunk(len(owners), dim)
                at = owners.index(self.rank)
                tensor = parts[at] if at < len(parts) else tensor.narrow(dim, 0, 0)
            kept = scratch[: tensor.numel()].view(tensor.shape)
            kept.copy_(tensor)
            yield name, kept


def source_class(mode: str) -> type:
    if not OWNED:

        class Of032(Whole, base.WeightSource):
            def metadata(self) -> list[Any]:
                return [meta(name) for name in LAYOUT]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                return self.yielded(pieces=False)

            def held_names(self) -> set[str]:
                return {name for name, (_, owners, _) in LAYOUT.items() if self.rank in owners}

        return Of032

    from functools import cached_property

    class Of033(Whole, base.WeightSource):
        @cached_property
        def metadata(self) -> list[Any]:
            return [meta(name) for name in LAYOUT]

        if mode == "full":

            def iter_full(self) -> Iterator[tuple[str, Any]]:
                return self.yielded(pieces=False)

        else:

            def iter_local(self) -> Iterator[tuple[str, Any]]:
                return self.yielded(pieces=True)

    return Of033


class Client:
    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


def main(mode: str) -> None:
    adapter.register()
    with (
        wc.Controller("127.0.0.1:0") as controller,
        wc.Inference(controller.address, engine="e") as engine,
    ):
        sources = [source_class(mode)(rank) for rank in (0, 1)]
        trainers = [
            WeightTransferTrainerFactory.trainer_init(
                adapter.TrainerInit(controller=controller.address, rank=rank, world_size=2, timeout=60),
                client=Client(),
                source=source,
            )
            for rank, source in enumerate(sources)
        ]
        got = {name: torch.zeros(shape) for name, (shape, _, _) in LAYOUT.items()}
        engine.register(got)
        for version in range(1, VERSIONS + 1):
            for source in sources:
                source.version = version
            threads = [threading.Thread(target=one.send_weights) for one in trainers]
            for one in threads:
                one.start()
            assert engine.wait(timeout=60).number == version
            for one in threads:
                one.join()
            for name, tensor in got.items():
                assert torch.equal(tensor, value(name, version)), f"{name}, version {version}"
        for one in trainers:
            one.shutdown()
    print("equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
