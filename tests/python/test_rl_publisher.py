"""A trainer's side of moving weights."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.rl.publisher import CastPublisher  # noqa: E402


def test_a_version_that_no_living_engine_has_is_found_lost(controller):
    with wc.Trainer(controller, settings=FAST) as trainer:
        publisher = CastPublisher(trainer, torch.nn.Linear(2, 2))
        with wc.Inference(controller, engine="a", settings=FAST) as engine:
            engine.register(torch.nn.Linear(2, 2))
            publisher.publish(1)
            engine.wait(timeout=30)
            publisher.wait(30)
            for _ in range(5):
                publisher.check()
        with wc.Inference(controller, engine="b", settings=FAST) as late:
            late.register(torch.nn.Linear(2, 2))
            publisher.check()
            publisher.check()
            with pytest.raises(wc.Unavailable, match="no engine that lives has version 1"):
                publisher.check()
            publisher.publish(2)
            for _ in range(5):
                publisher.check()  # It is on its way.
            late.wait(timeout=30)
            publisher.check()
