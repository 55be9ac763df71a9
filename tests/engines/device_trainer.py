"""A trainer whose FP32 weights lie in the memory of a fake GPU, in a process of its own."""

from __future__ import annotations

import multiprocessing
import pathlib
import zlib
from typing import Any

import numpy as np

import weightcast as wc
from weightcast.vllm.headers import offered_by

GPU = 0
PATIENCE = 60
SETTINGS = {"lease": 5, "connect_timeout": 20, "timeout": 60}

_spawn = multiprocessing.get_context("spawn")


def weights(folder: pathlib.Path, version: int) -> dict[str, np.ndarray]:
    """Of this version, with names and shapes of a checkpoint."""
    return {
        name: np.random.default_rng([version, zlib.crc32(name.encode())])
        .standard_normal(shape)
        .astype(np.float32)
        for name, (_, shape) in offered_by(folder).items()
    }


def _run(controller: str, folder: pathlib.Path, orders: Any) -> None:
    from gpus import Machine

    machine = Machine(rank=1)
    with wc.Trainer(controller, settings=SETTINGS) as trainer:
        sources = {name: machine.array(value, GPU) for name, value in weights(folder, 0).items()}
        trainer.register(sources)
        orders.send("registered")
        while True:
            version = orders.recv()
            for name, value in weights(folder, version).items():
                machine.write(sources[name], value)
            orders.send("written")
            orders.recv()
            update = trainer.publish(version)
            orders.send("published")
            try:
                update.wait(PATIENCE)
                orders.send("served")
            except wc.Error as error:
                orders.send(str(error))


class DeviceTrainer:
    def __init__(self, controller: str, folder: pathlib.Path) -> None:
        self._orders, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_run, args=(controller, folder, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._answer() == "registered"

    def write(self, version: int) -> None:
        """To its GPU; `publish` offers it."""
        self._orders.send(version)
        assert self._answer() == "written"

    def publish(self, version: int | None = None) -> None:
        """None: what was written last."""
        if version is not None:
            self.write(version)
        self._orders.send(None)
        assert self._answer() == "published"

    def wait(self) -> None:
        """Until the version is served."""
        answer = self._answer()
        assert answer == "served", answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def _answer(self) -> str:
        assert self._orders.poll(PATIENCE), "the trainer does not answer"
        return self._orders.recv()
