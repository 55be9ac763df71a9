"""A trainer's side of moving weights."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.rl.publisher import CastPublisher, Changes, Publishers  # noqa: E402
from weightcast.rl.sharding import cast_tensors  # noqa: E402


class Nowhere:
    def publish(self, version: int) -> None:
        pass


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


def one_of_three(rank: int, store: str, who_changes: int) -> str:
    """What a trainer says when it publishes after one of the three has changed a weight by itself."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64)
    publishers = Publishers([Nowhere()], Changes(module, replicas=dist.group.WORLD))
    publishers.publish(0)
    with torch.no_grad():
        module.weight.add_(1)
        if rank == who_changes:
            module.weight[3, 5] += 1e-3
    try:
        publishers.publish(1)
    except wc.Corrupt as error:
        return str(error)
    finally:
        dist.barrier()
        dist.destroy_process_group()
    return ""


@pytest.mark.parametrize("who_changes", [2, -1])
def test_replicas_that_have_diverged_are_not_published(spawn, tmp_path, monkeypatch, who_changes):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    said = [spawn(one_of_three, rank, str(tmp_path / "store"), who_changes) for rank in range(3)]
    for one in said:
        if who_changes == -1:
            assert one.value() == ""
        else:
            assert "weight of trainer 2 is another than that of trainer 0" in one.value()


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
            with pytest.raises(wc.Unavailable, match="no running engine has version 1"):
                publisher.check()
            publisher.publish(2)
            for _ in range(5):
                publisher.check()  # It is on its way.
            late.wait(timeout=30)
            publisher.check()
