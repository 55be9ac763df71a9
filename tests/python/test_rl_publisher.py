"""A trainer's side of moving weights."""

import math
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.rl import publisher as publisher_module  # noqa: E402
from weightcast.rl.collectives import Roles, Way  # noqa: E402
from weightcast.rl.publisher import Changes, WaysPublisher, WeightcastPublisher  # noqa: E402
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


def one_of_three(rank: int, store: str, who_changes: int) -> str:
    """What a trainer says when it publishes after one of the three has changed a weight by itself."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    torch.manual_seed(0)
    module = torch.nn.Linear(64, 64)
    changes = Changes(module, replicas=dist.group.WORLD)
    changes.count()
    with torch.no_grad():
        module.weight.add_(1)
        if rank == who_changes:
            module.weight[3, 5] += 1e-3
    try:
        changes.count()
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
            assert "weight of trainer 2 differs from that of trainer 0" in one.value()


def test_a_version_that_no_living_engine_has_is_found_lost(controller):
    with wc.Trainer(controller, settings=FAST) as trainer:
        publisher = WeightcastPublisher(trainer, torch.nn.Linear(2, 2))
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


class Slowly:
    """A trainer whose engines take `seconds` for an update."""

    def __init__(self, seconds: float) -> None:
        self._end, self._seconds = math.inf, seconds

    def register(self, module) -> None:
        pass

    def publish(self, version: int) -> "Slowly":
        self._end = time.monotonic() + self._seconds
        return self

    def wait(self, timeout: float):
        if time.monotonic() + timeout < self._end:
            time.sleep(timeout)
            raise wc.TimedOut("not yet")
        time.sleep(self._end - time.monotonic())
        return SimpleNamespace(seconds=1e9, bytes=8, receivers=[])

    def engines(self) -> list:
        states = {"a": (7, "SERVING"), "b": (6, "UPDATING"), "gone": (6, "SERVING")}
        return [
            SimpleNamespace(
                name=name, incarnation=int(name != "gone"), version=SimpleNamespace(number=n), state=state
            )
            for name, (n, state) in states.items()
        ]


def test_a_long_transfer_shows_its_progress(monkeypatch):
    monkeypatch.setattr(publisher_module, "INTERVAL", 0.05)
    said: list[str] = []
    one = WeightcastPublisher(Slowly(0.18), torch.nn.Linear(2, 2), said.append)
    one.publish(7)
    assert len(one.wait(10)) == 1
    assert said == ["version 7 after 0 s, at most 10 (--timeout): 1 of 2 engines have it; b is UPDATING"] * 3
    one.publish(8)
    with pytest.raises(wc.TimedOut):
        one.wait(0.1)


class Slow(Way):
    """Moves a byte, and waits."""

    name = "slow"

    def send(self, weights) -> int:
        for number in range(4):
            time.sleep(0.06)
            self.progress(number + 1, 4)
        return 4


def test_every_way_is_timed_by_one_clock_from_one_event_to_another(monkeypatch):
    """From when all are ready until all are again, whatever a way says of itself; and shows its progress."""
    monkeypatch.setattr(publisher_module, "INTERVAL", 0.05)
    said: list[str] = []
    waited: list[str] = []

    def ready() -> None:
        waited.append("")
        time.sleep(0.1 if len(waited) % 2 == 0 else 0)  # The last engine is late.

    module = torch.nn.Linear(1, 1)
    weightcast = WeightcastPublisher(Slowly(0.01), module)
    way = Slow(Roles([0], [1, 2], ["a"] * 3))
    ways = WaysPublisher([way], module, ready, 2, first=weightcast, show=said.append)
    ways.publish(3)
    first, second = ways.wait(10)
    assert ways.wait(10) == [] and len(waited) == 4
    assert (first.way, second.way) == ("weightcast", "slow")
    assert 0.11 <= first.seconds < 1 and 0.34 <= second.seconds < 2
    assert second.bytes == 2 * 4
    assert said == ["version 3 by slow: 0.0 of 0.0 MB"] * 4
