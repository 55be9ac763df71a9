"""One trainer in this process, or two FSDP2 ranks of which this process is the first."""

from __future__ import annotations

import multiprocessing as mp
import pathlib
from typing import Any

import torch

from vllm_models import make_model, train


def _engine(model: Any, controller: str, rank: int, world: int, client: Any, landing: str = "spare") -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    import weightcast.vllm as adapter

    adapter.register()
    init = adapter.TrainerInit(
        controller=controller, rank=rank, world_size=world, timeout=300, landing=landing
    )
    return WeightTransferTrainerFactory.trainer_init(init, client=client, source=model)


def _shard(model: Any, rank: int, meeting: pathlib.Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _second(kind: str, controller: str, meeting: pathlib.Path, orders: Any) -> None:
    model = make_model(kind)
    _shard(model, 1, meeting)
    engine = _engine(model, controller, 1, 2, None)
    while True:
        order = orders.recv()
        if order == "send":
            engine.send_weights()
        elif order == "whole":
            _gathered(model)
        else:
            train(model, order)


def _gathered(model: Any) -> dict[str, torch.Tensor]:
    full = ((name, one.full_tensor()) for name, one in model.named_parameters())
    return {name: one.detach().clone() for name, one in full}


class Trainers:
    """world: 1, or 2 for FSDP2. All hold FP32; the engine's BF16 is cast on the way."""

    def __init__(
        self, kind: str, world: int, controller: str, client: Any, folder: pathlib.Path, landing: str
    ) -> None:
        self._kind, self._orders, self._child = kind, None, None
        self.model = make_model(kind)
        if world == 2:
            spawn = mp.get_context("spawn")
            self._orders, theirs = spawn.Pipe()
            meeting = folder / "meeting"
            self._child = spawn.Process(target=_second, args=(kind, controller, meeting, theirs), daemon=True)
            self._child.start()
            _shard(self.model, 0, meeting)
        self._engine: Any = None
        try:
            self._engine = _engine(self.model, controller, 0, world, client, landing)
        except BaseException:
            self.close()
            raise

    def train(self, step: int) -> None:
        self._tell(step)
        train(self.model, step)

    def send(self) -> None:
        self._tell("send")
        self._engine.send_weights()

    def whole(self) -> Any:
        """The model as one process has it."""
        if self._orders is None:
            return self.model
        self._tell("whole")
        whole = make_model(self._kind)
        whole.load_state_dict(_gathered(self.model), strict=self._kind != "tied")
        return whole

    def close(self) -> None:
        """Also after an error, and again."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = None
            torch.distributed.destroy_process_group()

    def _tell(self, order: Any) -> None:
        if self._orders is not None:
            self._orders.send(order)
