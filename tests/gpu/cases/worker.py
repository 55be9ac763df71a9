"""The processes of one run with weights on GPUs: a trainer, or an engine. Driven by cluster.py over a pipe.

Each order is (name, arguments); the answer is ("ok", value) or ("failed", why).
"""

import time
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from gpu import Gpu, Shape, open_gpu
from products import Products


@dataclass
class Role:
    kind: str  # "trainer" or "engine"
    rank: int
    world: int
    device: int
    controller: str
    shapes: list[Shape]
    dtype: str = "bfloat16"
    landing: str = "in_place"
    cast: bool = False  # What arrives was FP32.
    settings: dict[str, str] = field(default_factory=dict)


class Worker:
    """What both kinds have."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.gpu: Gpu = open_gpu(role.device)
        self.tensors = [self.gpu.make(shape, role.dtype) for shape in role.shapes]
        self.addresses = [self.gpu.address(one) for one in self.tensors]
        self.settings = {"bind": "127.0.0.1", **role.settings}

    def named(self) -> dict[str, Any]:
        return {f"w{index}": one for index, one in enumerate(self.tensors)}

    def digest(self) -> list[str]:
        return [str(one.digest) for one in self.side.digest()]

    def close(self) -> None:
        self.gpu.wait()
        self.side.close()


class TrainerWorker(Worker):
    def __init__(self, role: Role) -> None:
        super().__init__(role)
        import weightcast as wc

        self.side = wc.Trainer(role.controller, rank=role.rank, world_size=role.world, settings=self.settings)
        self.side.register(self.named())
        self._products: Products | None = None

    def products(self, seconds: float) -> float:
        """Mean milliseconds of a matrix product beside nothing."""
        self._products = Products(self.role.device)
        return self._products.run_for(seconds)

    def begin_products(self) -> None:
        assert self._products is not None
        self._products.begin()

    def end_products(self) -> float:
        assert self._products is not None
        return self._products.end()

    def write(self, version: int, wait: bool) -> None:
        """wait: until the GPU has; else the kernels are still to run when this returns."""
        if not wait:
            self.gpu.delay()
        for index, one in enumerate(self.tensors):
            self.gpu.write(one, version, index)
        if wait:
            self.gpu.wait()

    def announce(self, version: int) -> None:
        self.side.announce(version)

    def publish(self, version: int, timeout: float = 120) -> tuple[float, float]:
        """When it began, and the seconds that weightcast counts itself."""
        began = time.monotonic()
        update = self.side.publish(version, stream=self.gpu.stream)
        self._last = update
        update.wait_sources(timeout)
        return began, float(update.wait(timeout).seconds)

    def explain(self) -> dict[str, Any]:
        """The last update, as the controller tells it."""
        return self._last.explain()

    def write_and_publish(self, version: int) -> tuple[float, float]:
        self.write(version, wait=False)
        return self.publish(version)


class EngineWorker(Worker):
    def __init__(self, role: Role) -> None:
        super().__init__(role)
        import weightcast as wc

        self.side = wc.Inference(role.controller, engine=f"engine-{role.rank}", settings=self.settings)
        self.side.register(self.named(), landing=role.landing)
        self.replay: Any = None

    def begin(self) -> None:
        self.side.begin(stream=self.gpu.stream)

    def receive(self, timeout: float = 120) -> tuple[int, float]:
        """The version that is served now, and when it was."""
        version = self.side.receive(timeout)
        at = time.monotonic()
        self.side.finish()
        return int(version), at

    def take(self, version: int) -> tuple[int, float]:
        """As `receive`, up to this version: who has just joined may be given an older one first."""
        while (got := self.receive())[0] < version:
            self.begin()
        return got

    def check(self, version: int) -> None:
        """Every element, and that no tensor has moved."""
        equal = self.gpu.equal_cast if self.role.cast else self.gpu.equal
        wrong = [index for index, one in enumerate(self.tensors) if not equal(one, version, index)]
        if wrong:
            raise AssertionError(f"version {version}: the tensors {wrong[:5]} have other bytes")
        if self.addresses != [self.gpu.address(one) for one in self.tensors]:
            raise AssertionError("a tensor has another address")

    def capture(self) -> None:
        self.replay = self.gpu.capture(self.tensors)

    def replay_and_receive(self, runs: int) -> int:
        """The captured work runs while an update lands beside it; then the update is taken."""
        self.begin()
        for _ in range(runs):
            self.replay.run()
        self.gpu.wait()
        return self.receive()[0]

    def shows(self, version: int) -> None:
        self.replay.run()
        if not self.replay.shows(version):
            raise AssertionError(f"what was captured does not show version {version}")


def main(pipe: Connection, role: Role) -> None:
    """Until the order "close", or until nobody is there any more."""
    try:
        worker = (TrainerWorker if role.kind == "trainer" else EngineWorker)(role)
        pipe.send(("ok", None))
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send(("ok", getattr(worker, name)(*arguments)))
            except Exception as error:  # The parent decides what it means.
                pipe.send(("failed", f"{type(error).__name__}: {error}"))
            if name == "close":
                return
    except EOFError:
        return
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
