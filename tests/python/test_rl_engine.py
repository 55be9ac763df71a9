"""An engine's loop."""

import threading
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("zmq")

import torch  # noqa: E402

from rl_desks import LEASE, PATIENCE, a_desk, clients_of, item  # noqa: E402
from weightcast.rl import engine  # noqa: E402
from weightcast.rl.desk_client import EndOfRun  # noqa: E402
from weightcast.rl.generation import Sampling  # noqa: E402
from weightcast.rl.timeline import Timeline  # noqa: E402


def test_an_engine_hears_the_end_of_the_run_while_it_generates(monkeypatch):
    generating = threading.Event()

    def generate(*_, between_tokens, **__):
        generating.set()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            between_tokens()
            time.sleep(0.01)
        raise AssertionError("it has heard nothing")

    def end() -> None:
        generating.wait(PATIENCE)
        desk.end("the disk is full")

    monkeypatch.setattr(engine, "generate", generate)
    with a_desk() as desk, clients_of(desk) as connect:
        client = connect("a")
        desk.offer([item(0)])
        one = engine.Engine(
            torch.nn.Linear(1, 1),
            engine.FixedWeights(),
            client,
            Sampling(max_new_tokens=1),
            Timeline("a", client.clock),
            lease=LEASE,
        )
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(EndOfRun, match="the disk is full"):
            one.run()
        ending.join()
