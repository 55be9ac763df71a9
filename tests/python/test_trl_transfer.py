"""`weightcast.trl.WeightTransfer` with engines of this package in the servers' place."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import weightcast as wc

torch = pytest.importorskip("torch")
from weightcast.trl import WeightTransfer  # noqa: E402

SIZE = 1000


def gathered(value: float) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor after the other in the same memory, as FSDP's gather has it."""
    memory = torch.empty(SIZE)
    for number, name in enumerate(("a", "b")):
        yield name, memory.fill_(value + number)


class Engine:
    """Takes versions until it is closed."""

    def __init__(self, controller: str, name: str) -> None:
        self.tensors = {name: np.zeros(SIZE, np.float32) for name in "ab"}
        self.versions: list[int] = []
        self._inference = wc.Inference(controller, engine=name)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._inference.offered(30)
        self._inference.register(self.tensors)
        try:
            while True:
                self.versions.append(self._inference.wait(timeout=30).number)
        except wc.Cancelled:
            pass

    def holds(self, value: float) -> bool:
        return all((self.tensors[name] == value + number).all() for number, name in enumerate("ab"))

    def wait(self, version: int) -> None:
        while version not in self.versions:
            self._thread.join(0.02)
            assert self._thread.is_alive()

    def close(self) -> None:
        self._inference.close()
        self._thread.join()


@pytest.fixture
def controller() -> Iterator[str]:
    with wc.Controller("127.0.0.1:0") as running:
        yield running.address


def test_each_version_is_served_when_send_weights_returns(controller: str) -> None:
    transfer = WeightTransfer(controller, engines=2, timeout=30)
    transfer.init_weight_transfer()
    engines = [Engine(controller, name) for name in ("e0", "e1")]
    for version in (1, 2, 3):
        transfer.pause()
        transfer.send_weights(gathered(10.0 * version))
        transfer.resume()
        assert all(engine.holds(10.0 * version) for engine in engines)
    late = Engine(controller, "late")
    late.wait(3)
    assert late.holds(30.0)
    transfer.destroy()
    for engine in (*engines, late):
        engine.close()


def test_without_a_server_the_error_says_what_to_start(controller: str) -> None:
    transfer = WeightTransfer(controller, timeout=0.5)
    with pytest.raises(wc.TimedOut, match=r"0 of 1 vLLM servers have joined within 0.5 s; start them"):
        transfer.send_weights(gathered(1.0))
    transfer.destroy()


def test_other_tensors_than_the_first_time_are_named(controller: str) -> None:
    transfer = WeightTransfer(controller, timeout=30)
    engine = Engine(controller, "e0")
    transfer.send_weights(gathered(1.0))
    with pytest.raises(wc.InvalidArgument, match="^c was not there"):
        transfer.send_weights(iter({"c": torch.zeros(1)}.items()))
    transfer.send_weights(gathered(2.0))
    assert engine.holds(2.0)
    transfer.destroy()
    engine.close()
