"""What engines need that hold their tensors otherwise than trainers do."""

import concurrent.futures
import contextlib
import os
import signal

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

Q, K, V = (32, 16), (8, 16), (8, 16)


def weights(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in {"q": Q, "k": K, "v": V, "norm": (16,), "draft": (5,)}.items()
    }


class Engine:
    """Computes with one fused tensor, transposed; its loader knows how to make that of what has landed."""

    def __init__(self) -> None:
        self.spare = np.zeros((48, 16), np.float32)
        self.live = np.zeros((16, 48), np.float32)
        self.norm = np.zeros(16, np.float32)
        self.refuses: Exception | None = None
        self.switched: list[int] = []

    def tensors(self, norm: str | None = None) -> dict[str, wc.Shard]:
        places = {"q": slice(0, 32), "k": slice(32, 40), "v": slice(40, 48)}
        found = {name: wc.Shard(self.spare[rows]) for name, rows in places.items()}
        return {**found, "norm": wc.Shard(self.norm, landing=norm)}

    def switch(self, version: wc.Version) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.switched.append(version.number)
        self.live[...] = self.spare.T

    def is_of(self, version: int) -> bool:
        want = weights(version)
        fused = np.concatenate([want["q"], want["k"], want["v"]]).T
        return np.array_equal(self.live, fused) and np.array_equal(self.norm, want["norm"])


@pytest.fixture
def job(controller):
    arrays = weights(0)
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="e", settings=FAST) as inference,
    ):
        trainer.register(arrays)

        def publish(version: int) -> wc.Update:
            for name, value in weights(version).items():
                arrays[name][...] = value
            return trainer.publish(version)

        yield publish, inference


def test_the_engine_learns_what_trainers_have(job):
    _, inference = job
    offered = inference.offered(20)
    assert offered == {name: ("F32", value.shape) for name, value in weights(0).items()}


def test_the_loader_switches_and_an_error_keeps_the_old_version(job):
    publish, inference = job
    engine = Engine()
    inference.register(engine.tensors("shadow"), landing="loader", on_switch=engine.switch, unwanted="draft")
    assert sorted(inference.describe()) == ["k: loader", "norm: shadow", "q: loader", "v: loader"]
    update = publish(1)
    assert inference.wait(timeout=30).number == 1 and engine.is_of(1)
    update.wait(10)

    engine.refuses = ValueError("no such layer")
    update = publish(2)
    update.wait_sources(30)
    assert engine.is_of(1) and inference.version.number == 1  # All bytes are there, and nothing has changed.
    with pytest.raises(wc.Cancelled, match="on_switch raised ValueError: no such layer") as raised:
        inference.wait(1, timeout=30)
    assert raised.value.__cause__ is engine.refuses
    assert engine.is_of(1) and inference.version.number == 1 and inference.state == "SERVING"
    with pytest.raises(wc.UpdateAborted, match="engine e rank 0 could not switch.*no such layer"):
        update.wait(10)

    engine.refuses = None
    update = publish(3)
    assert inference.wait(1, timeout=30).number == 3 and engine.is_of(3)
    update.wait(10)
    assert engine.switched == [1, 3]


def test_one_tensor_in_place(job):
    """The rank then needs the pause, and loses its version with a switch that is refused."""
    publish, inference = job
    engine = Engine()
    inference.register(
        engine.tensors("in_place"), landing="loader", on_switch=engine.switch, unwanted="ignore"
    )
    publish(1)
    assert inference.wait(timeout=30).number == 1 and engine.is_of(1)
    engine.refuses = RuntimeError("out of memory")
    publish(2)
    with pytest.raises(wc.Cancelled, match="out of memory"):
        inference.wait(1, timeout=30)
    assert inference.version.number == -1 and inference.state == "FAILED"


def test_phases_with_commit_and_served(job):
    publish, inference = job
    engine = Engine()
    inference.register(engine.tensors(), landing="loader", unwanted="{**}")
    with pytest.raises(wc.InvalidArgument, match="was given no on_switch"):
        inference.wait(timeout=1)
    update = publish(1)
    inference.begin()
    version = inference.receive(30)
    engine.switch(version)
    with pytest.raises(wc.InvalidArgument, match="served was called without commit"):
        inference.served(0)
    inference.commit()
    inference.served(10)
    assert inference.version == version and engine.is_of(1)
    update.wait(10)


def test_one_rank_that_refuses_takes_the_engine_out(controller):
    """The other rank has switched by then or not: it never serves the new version."""
    arrays = weights(0)
    settings = {**FAST, "commit_timeout": 5}
    engines = [Engine(), Engine()]
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(wc.Trainer(controller, settings=settings))
        trainer.register(arrays)
        ranks = [
            stack.enter_context(
                wc.Inference(controller, engine="e", rank=rank, world_size=2, settings=settings)
            )
            for rank in range(2)
        ]
        for engine, rank in zip(engines, ranks, strict=True):
            rank.register(engine.tensors(), landing="loader", on_switch=engine.switch, unwanted="draft")
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waits = [threads.submit(rank.wait, timeout=30) for rank in ranks]
            trainer.publish(1)
            assert [wait.result().number for wait in waits] == [1, 1]
            engines[1].refuses = KeyError("layers.7")
            waits = [threads.submit(rank.wait, 1, timeout=30) for rank in ranks]
            update = trainer.publish(2)
            for wait in waits:
                with pytest.raises(wc.Error, match="layers.7"):
                    wait.result()
            with pytest.raises(wc.UpdateAborted, match="layers.7"):
                update.wait(10)
            assert ranks[1].version.number == 1 and ranks[1].state == "SERVING"
            assert ranks[0].version.number in (-1, 1)
            engines[1].refuses = None
            waits = [threads.submit(rank.wait, 1, timeout=30) for rank in ranks]
            for name, value in weights(3).items():
                arrays[name][...] = value
            trainer.publish(3)
            assert [wait.result().number for wait in waits] == [3, 3]
            assert all(engine.switched[-1] == 3 for engine in engines)


def receive_and_die(controller, phase):
    """An engine of a process of its own that ends by SIGKILL in this phase of the update to version 2."""
    engine = Engine()

    def switch(version):
        if phase == "switch" and version.number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        engine.switch(version)

    with wc.Inference(controller, engine="dies", settings=FAST) as inference:
        inference.register(engine.tensors(), landing="loader", on_switch=switch, unwanted="draft")
        assert inference.wait(timeout=30).number == 1
        inference.begin()
        if phase == "begun":
            os.kill(os.getpid(), signal.SIGKILL)
        inference.receive(30)
        if phase == "received":
            os.kill(os.getpid(), signal.SIGKILL)
        inference.commit()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("phase", ["begun", "switch", "received", "committed"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_engine_that_dies_harms_no_other(spawn, transport, phase):
    settings = {**FAST, "transport": transport, "min_engines": 2}
    arrays, engine = weights(1), Engine()
    with (
        wc.Controller("127.0.0.1:0", settings=settings) as controller,
        wc.Trainer(controller.address, settings=settings) as trainer,
        wc.Inference(controller.address, engine="lives", settings=settings) as inference,
    ):
        dying = spawn(receive_and_die, controller.address, phase)
        trainer.register(arrays)
        inference.register(engine.tensors(), landing="loader", on_switch=engine.switch, unwanted="draft")
        first = trainer.publish(1)
        assert inference.wait(timeout=30).number == 1
        first.wait(30)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            third = threads.submit(inference.wait, 2, timeout=60)
            for version in (2, 3):
                for name, value in weights(version).items():
                    arrays[name][...] = value
                update = trainer.publish(version)
                with contextlib.suppress(wc.UpdateAborted):  # With policy all the dead engine ends version 2.
                    update.wait(30)
                if version == 2:
                    dying.process.join(30)
                    assert dying.process.exitcode == -signal.SIGKILL
            assert third.result().number == 3 and engine.is_of(3)
