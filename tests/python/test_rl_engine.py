"""An engine's loop."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch  # noqa: E402

from rl_queues import LEASE, PATIENCE, a_queue, clients_of, item, outcome  # noqa: E402
from weightcast.rl import engine, models  # noqa: E402
from weightcast.rl.options import Options  # noqa: E402
from weightcast.rl.rollout_client import EndOfRun, RolloutClient  # noqa: E402
from weightcast.rl.timeline import Timeline  # noqa: E402


def an_engine(client) -> engine.Engine:
    return engine.Engine(
        torch.nn.Linear(1, 1),
        engine.Weights(),
        client,
        models.ByteTokenizer(),
        Timeline("a", client.clock),
        Options(max_gen_length=1, lease=LEASE),
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
        queue.end("the disk is full")

    monkeypatch.setattr(engine, "generate", generate)
    with a_queue() as queue, clients_of(queue) as connect:
        client = connect("a")
        queue.offer([item(0)])
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
    with a_queue() as queue, clients_of(queue) as connect:
        address = f"127.0.0.1:{queue.port}"
        client = RolloutClient(address, name="a", role="inference", lease=LEASE, timeout=PATIENCE)
        queue.offer([item(0)])
        with client, ThreadPoolExecutor() as pool:
            running = pool.submit(an_engine(client).run)
            try:
                while queue._waiting:
                    time.sleep(0.01)
                other = connect("b")
                other.ask(0, {})
                assert other.next(2 * LEASE) is None
                assert queue.take(1, 0, PATIENCE)[0] == outcome(item(0))
            finally:
                queue.end()
            running.result(PATIENCE)


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen"])
def test_an_engine_with_another_dtype_is_the_model_that_trainers_of_this_dtype_have(name):
    own = models.load(name, dtype=torch.float32, seed=3).model
    trainer = models.load(name, dtype=torch.bfloat16, seed=3).model
    engine._cast(own, torch.bfloat16)
    ids = torch.randint(0, 256, (2, 200), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(own(input_ids=ids).logits, trainer(input_ids=ids).logits)
    for cast, loaded in zip(own.buffers(), trainer.buffers(), strict=True):
        assert cast.dtype == loaded.dtype
    assert len(list(own.parameters())) == len(list(trainer.parameters()))  # Tied ones are tied.


def test_a_buffer_that_the_trainers_send_is_cast_too():
    module = torch.nn.Module()
    module.register_buffer("sent", torch.ones(1))
    module.register_buffer("count", torch.ones(1, dtype=torch.int64))
    module.register_buffer("own", torch.ones(1), persistent=False)
    engine._cast(module, torch.bfloat16)
    assert [one.dtype for one in module.buffers()] == [torch.bfloat16, torch.int64, torch.float32]
