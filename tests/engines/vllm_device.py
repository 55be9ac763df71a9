"""A worker of vLLM whose model lies in the memory of a fake GPU: for functions in processes of their own.

vLLM's model, its loader, its reload and the whole adapter run as they are. Tensors of torch's CUDA build, and
vLLM's CUDA platform, are stood in for: the parts of them that are asked for while weights arrive.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform

from device_tensors import Cuda
from device_trainer import SETTINGS, DeviceTrainer, weights
from gpus import Machine
from weightcast import Controller
from weightcast.vllm import check
from weightcast.vllm.worker import WeightcastEngine

GPU = 1


class Worker:
    """trainer, engine (vLLM's weight transfer engine), model, cuda. A step of the model is `step()`."""

    def __init__(self, folder: pathlib.Path, controller: str, config: Any, cuda: Cuda) -> None:
        self.folder, self.cuda, self.config, self.controller = folder, cuda, config, controller
        self._expected = self._make_model()
        self.model = self._make_model()
        with torch.no_grad():
            _to_device(self.model, cuda)
        self.model.forward = lambda: "a step"
        self.addresses = self._addresses()
        self.begun = 0  # How often the engine has left its parameters to an update.
        self.trainer = DeviceTrainer(controller, folder)
        self.engine = WeightcastEngine(None, config, torch.device("cuda", GPU), self.model)

    def join(self, landing: str, **settings: Any) -> None:
        info: dict[str, Any] = {"controller": self.controller, "engine": "e", "landing": landing}
        info["settings"] = {**SETTINGS, **settings}
        self.engine.init_transfer_engine(self.engine.parse_init_info(info))
        begin = self.inference.begin

        def counted() -> None:
            begin()
            self.begun += 1

        self.inference.begin = counted

    @property
    def inference(self) -> Any:
        return self.engine._member._models[0].inference

    @property
    def reload(self) -> Any:
        return self.engine._member._models[0].reload

    def update(self, **info: Any) -> None:
        """As vLLM calls it, between two steps. From any thread."""
        with self.cuda:
            self.engine.start_weight_update()
            self.engine.update_weights(info)
            self.engine.finish_weight_update()

    def step(self) -> str:
        return self.model()

    def holds(self, version: int) -> bool:
        """Whether each parameter in the memory of the GPU is, bit by bit, what vLLM's loader makes of it."""
        made = weights(self.folder, version).items()
        self._expected.load_weights((name, torch.from_numpy(value).bfloat16()) for name, value in made)
        expected = dict(self._expected.named_parameters())
        landed = {name: self.cuda.read(one) for name, one in self.model.named_parameters()}
        assert landed.keys() == expected.keys()
        return all(torch.equal(landed[name], one) for name, one in expected.items())

    def is_in_place(self) -> bool:
        """A captured CUDA graph reads the parameters where they were."""
        return self._addresses() == self.addresses

    def close(self) -> None:
        self.engine.shutdown()
        self.trainer.kill()

    def _addresses(self) -> dict[str, int]:
        return {name: one.data_ptr() for name, one in self.model.named_parameters()}

    def _make_model(self) -> torch.nn.Module:
        self.config.compilation_config.static_forward_context.clear()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return initialize_model(self.config)
        finally:
            torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def worker(folder: str) -> Iterator[Worker]:
    """folder: a checkpoint, of which the headers and the configuration are read."""
    config = check._config(folder, 1, "bfloat16")
    with contextlib.ExitStack() as stack:
        stack.enter_context(check._one_process(config))
        controller = stack.enter_context(Controller("127.0.0.1:0", settings=SETTINGS))
        made = Worker(pathlib.Path(folder), controller.address, config, Cuda(Machine(), GPU))
        stack.callback(made.close)
        stack.enter_context(mock.patch.object(current_platform, "device_type", "cuda"))
        stack.enter_context(mock.patch.object(current_platform, "is_cpu", lambda: False))
        with made.cuda:
            yield made


def _to_device(model: torch.nn.Module, cuda: Cuda) -> None:
    """Parameters that are one and the same stay so."""
    moved: dict[int, Any] = {}
    for layer in model.modules():
        for name, one in list(layer._parameters.items()):
            if one is not None:
                layer._parameters[name] = moved.setdefault(id(one), cuda.parameter(one))
        for name, one in list(layer._buffers.items()):
            if one is not None:
                layer._buffers[name] = cuda.tensor(one)
