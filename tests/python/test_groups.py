"""Engines without memory for a second model: an update comes in groups of tensors."""

import asyncio

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

LAYERS = 4
SHAPES = {
    f"layers.{i}.{part}": shape for i in range(LAYERS) for part, shape in {"w": (64, 32), "b": (64,)}.items()
}
GROUPS = [f"layers.{i}.{{*}}" for i in range(LAYERS)]


def weights(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


class Engine:
    """Computes with all layers; one bucket, as large as a layer, takes what lands."""

    def __init__(self) -> None:
        self.live = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        self.bucket = {"w": np.zeros((64, 32), np.float32), "b": np.zeros(64, np.float32)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: self.bucket[name.rsplit(".", 1)[1]] for name in SHAPES}

    def hand_on(self, group: int) -> None:
        for part, landed in self.bucket.items():
            self.live[f"layers.{group}.{part}"][...] = landed

    def is_of(self, version: int) -> bool:
        return all(np.array_equal(self.live[name], value) for name, value in weights(version).items())


@pytest.fixture(params=["shm", "tcp"])
def job(controller, request):
    settings = {**FAST, "transport": request.param}
    arrays = weights(0)
    with (
        wc.Trainer(controller, settings=settings) as trainer,
        wc.Inference(controller, engine="e", settings=settings) as inference,
    ):
        trainer.register(arrays)

        def publish(version: int) -> wc.Update:
            for name, value in weights(version).items():
                arrays[name][...] = value
            return trainer.publish(version)

        yield publish, inference


def take(inference: wc.Inference, engine: Engine) -> list[wc.ReceivedGroup]:
    groups = []
    inference.begin()
    for group in inference.receive_groups(30):
        assert inference.state in ("UPDATING", "READY")  # Out of routing from the first to the last.
        engine.hand_on(group.group)
        groups.append(group)
    inference.finish(30)
    return groups


def test_each_group_lands_in_the_same_memory(job):
    publish, inference = job
    engine = Engine()
    inference.register(engine.tensors(), landing="loader", groups=GROUPS)
    for version in (1, 2, 3):
        update = publish(version)
        groups = take(inference, engine)
        assert [group.group for group in groups] == [0, 1, 2, 3]
        assert [group.last for group in groups] == [False, False, False, True]
        assert all(group.version.number == version for group in groups)
        assert engine.is_of(version) and inference.version.number == version
        update.wait(10)


def test_one_that_is_given_up_leaves_no_version(job):
    publish, inference = job
    engine = Engine()
    inference.register(engine.tensors(), landing="loader", groups=GROUPS)
    update = publish(1)
    take(inference, engine)
    update.wait(10)
    update = publish(2)
    inference.begin()
    with pytest.raises(RuntimeError, match="no such layer"):
        for group in inference.receive_groups(30):
            engine.hand_on(group.group)
            if group.group == 1:
                raise RuntimeError("no such layer")
    inference.abort()
    assert inference.state == "FAILED" and inference.version.number == -1
    with pytest.raises(wc.UpdateAborted):
        update.wait(10)
    update = publish(3)
    take(inference, engine)
    assert engine.is_of(3) and inference.state == "SERVING"
    update.wait(10)


def test_in_a_coroutine(job):
    publish, inference = job
    engine = Engine()
    inference.register(engine.tensors(), landing="loader", groups=GROUPS)

    async def run() -> None:
        inference.begin()
        while True:
            group = await inference.receive_group_async(30)
            engine.hand_on(group.group)
            if group.last:
                break
        await inference.finish_async(30)

    update = publish(1)
    asyncio.run(run())
    assert engine.is_of(1)
    update.wait(10)


def publish_first(controller: str) -> None:
    trainer = wc.Trainer(controller, settings=FAST)
    trainer.register(weights(1))
    trainer.publish(1).wait(60)


def test_a_trainer_killed_between_two_groups(controller, spawn):
    """The engine serves nothing until another trainer publishes."""
    engine = Engine()
    child = spawn(publish_first, controller)
    with wc.Inference(controller, engine="e", settings=FAST) as inference:
        inference.register(engine.tensors(), landing="loader", groups=GROUPS)
        inference.begin()
        engine.hand_on(inference.receive_group(30).group)
        child.process.kill()
        child.process.join()
        with pytest.raises(wc.Error):
            for _ in inference.receive_groups(30):
                pass
        inference.abort()
        assert inference.version.number == -1
        with wc.Trainer(controller, settings=FAST) as trainer:
            trainer.register(weights(2))
            update = trainer.publish(2)
            while inference.version.number < 0:
                try:
                    take(inference, engine)
                except wc.PeerDead:  # Told once: a new process has taken the trainer's place.
                    inference.abort()
            assert engine.is_of(2)
            update.wait(10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"groups": GROUPS[1:]}, "tensor layers.0.w is in no group"),
        ({"groups": [*GROUPS, "layers.0.w"]}, "tensor layers.0.w is in groups 0 and 4"),
        ({"groups": [*GROUPS, ["head"]]}, "group 4 names no tensor"),
        ({"groups": GROUPS, "landing": "shadow"}, "landing 'shadow', a spare copy"),
        ({"groups": GROUPS, "on_switch": print}, "on_switch cannot be used with groups"),
    ],
)
def test_what_cannot_be_is_refused(job, options, text):
    _, inference = job
    with pytest.raises(wc.InvalidArgument, match=text):
        inference.register(Engine().tensors(), **{"landing": "loader", **options})


def test_wait_and_receive_are_refused(job):
    _, inference = job
    inference.register(Engine().tensors(), landing="loader", groups=GROUPS)
    with pytest.raises(wc.InvalidArgument, match="cannot receive in 4 groups"):
        inference.wait(timeout=1)
    with pytest.raises(wc.InvalidArgument, match="in 4 groups"):
        inference.receive(1)
