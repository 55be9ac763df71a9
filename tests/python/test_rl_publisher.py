"""A trainer's side of moving weights."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.rl.publisher import CastPublisher, Changes  # noqa: E402
from weightcast.rl.sharding import cast_tensors  # noqa: E402


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)
        self.other.weight = self.one.weight


def test_what_is_tied_is_cast_once():
    made = cast_tensors(Tied(), torch.bfloat16)
    assert {one.dtype for one in made.values()} == {torch.bfloat16}
    assert made["one.weight"] is made["other.weight"]


def test_changes_are_those_that_engines_see():
    module = torch.nn.Linear(4, 4)
    exact, rounded = Changes(module), Changes(module, torch.bfloat16)
    assert exact.count() == rounded.count() == 2
    with torch.no_grad():
        module.weight.fill_(1)
        module.bias.fill_(1)
    assert exact.count() == rounded.count() == 2
    with torch.no_grad():
        module.weight.fill_(1 + 1e-4)
    assert (exact.count(), rounded.count()) == (1, 0)


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
