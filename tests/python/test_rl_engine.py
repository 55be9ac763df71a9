"""An engine's loop."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch  # noqa: E402

from rl_desks import LEASE, PATIENCE, a_desk, clients_of, item, outcome  # noqa: E402
from weightcast.rl import engine  # noqa: E402
from weightcast.rl.desk_client import DeskClient, EndOfRun  # noqa: E402
from weightcast.rl.generation import Sampling  # noqa: E402
from weightcast.rl.timeline import Timeline  # noqa: E402


def an_engine(client) -> engine.Engine:
    return engine.Engine(
        torch.nn.Linear(1, 1),
        engine.Weights(),
        client,
        Sampling(max_new_tokens=1),
        Timeline("a", client.clock),
        lease=LEASE,
    )


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
        one = an_engine(client)
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(EndOfRun, match="the disk is full"):
            one.run()
        ending.join()


def test_an_engine_is_heard_of_while_one_step_takes_longer_than_the_lease(monkeypatch):
    def generate(*_, between_tokens, **__):
        time.sleep(3 * LEASE)
        between_tokens()
        return outcome(item(0))

    monkeypatch.setattr(engine, "generate", generate)
    with a_desk() as desk, clients_of(desk) as connect:
        address = f"127.0.0.1:{desk.port}"
        client = DeskClient(address, name="a", role="inference", lease=LEASE, timeout=PATIENCE)
        desk.offer([item(0)])
        with client, ThreadPoolExecutor() as pool:
            running = pool.submit(an_engine(client).run)
            try:
                while desk._waiting:
                    time.sleep(0.01)
                other = connect("b")
                other.ask(0, {})
                assert other.next(2 * LEASE) is None
                assert desk.take(1, 0, PATIENCE)[0] == outcome(item(0))
            finally:
                desk.end()
            running.result(PATIENCE)
