"""Models that are updated together, and the label of a version."""

import concurrent.futures

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

SHAPES = {"policy": (64, 32), "draft": (8, 32)}
GROUP = {"draft": 1, "policy": 1}


def fill(array: np.ndarray, version: int) -> np.ndarray:
    array[...] = np.random.default_rng(version).standard_normal(array.shape)
    return array


class Job:
    """A trainer and an engine's rank of each model; the tensors of both are called `w`."""

    def __init__(self, controller: str, transport: str) -> None:
        settings = {**FAST, "transport": transport}
        self.sources = {model: np.zeros(shape, np.float32) for model, shape in SHAPES.items()}
        self.live = {model: np.zeros(shape, np.float32) for model, shape in SHAPES.items()}
        self.trainers = {
            model: wc.Trainer(controller, model=model, commit_group=GROUP, settings=settings)
            for model in SHAPES
        }
        self.engine = {
            model: wc.Inference(controller, engine="e", model=model, commit_group=GROUP, settings=settings)
            for model in SHAPES
        }
        self._threads = concurrent.futures.ThreadPoolExecutor()

    def publish(self, version: int, label: str = "") -> list[wc.Update]:
        for array in self.sources.values():
            fill(array, version)
        return [trainer.publish(version, label=label) for trainer in self.trainers.values()]

    def wait(self, newer_than: int | None = None) -> list[concurrent.futures.Future]:
        return [self._threads.submit(rank.wait, newer_than, timeout=30) for rank in self.engine.values()]

    def serves(self, version: int) -> bool:
        want = {model: fill(np.empty(shape, np.float32), version) for model, shape in SHAPES.items()}
        return all(
            self.engine[model].version.number == version and np.array_equal(self.live[model], want[model])
            for model in SHAPES
        )

    def close(self) -> None:
        for worker in (*self.trainers.values(), *self.engine.values()):
            worker.close()
        self._threads.shutdown()


@pytest.fixture(params=["shm", "tcp"])
def job(request, controller):
    made = Job(controller, request.param)
    yield made
    made.close()


def test_models_of_a_group_are_served_together(job):
    for model, trainer in job.trainers.items():
        trainer.register({"w": job.sources[model]})
        job.engine[model].register({"w": job.live[model]}, landing="shadow")
    for version in (1, 2, 3):
        updates = job.publish(version, label=f"step-{version}0")
        served = [wait.result() for wait in job.wait(version - 1)]
        assert job.serves(version)
        assert [found.label for found in served] == [f"step-{version}0"] * 2
        for update in updates:
            assert update.wait(10).version == served[0]
    assert job.engine["draft"].offered(10) == {"w": ("F32", SHAPES["draft"])}
    assert job.engine["draft"].describe() == ["w: shadow"]


def test_a_model_that_refuses_keeps_the_other_from_the_version(job):
    refuses = []

    def switch(version):
        if version.number in refuses:
            raise ValueError("the draft does not fit")

    for model, trainer in job.trainers.items():
        trainer.register({"w": job.sources[model]})
        job.engine[model].register(
            {"w": job.live[model]}, landing="shadow", on_switch=switch if model == "draft" else None
        )
    job.publish(1)
    assert [wait.result().number for wait in job.wait()] == [1, 1]
    refuses.append(2)
    updates = job.publish(2)
    waits = job.wait(1)
    with pytest.raises(wc.Error, match="the draft does not fit"):
        waits[list(SHAPES).index("draft")].result()
    for update in updates:
        with pytest.raises(wc.UpdateAborted, match="the draft does not fit"):
            update.wait(10)
    assert not concurrent.futures.wait(waits, timeout=10).not_done
    assert job.engine["draft"].version.number == 1
    assert job.engine["policy"].version.number != 2
    job.publish(3)
    assert all(wait.result().number == 3 for wait in job.wait(2))
    assert job.serves(3)


def test_each_model_has_its_own_names_and_rules(controller):
    job = Job(controller, "shm")
    try:
        job.trainers["policy"].register({"w": job.sources["policy"]})
        job.trainers["draft"].register({"w": job.sources["draft"]}, rules=[{"rename": "w", "to": "draft_w"}])
        job.engine["policy"].register({"w": job.live["policy"]}, landing="shadow")
        job.engine["draft"].register(
            {"draft_w": job.live["draft"], "cache": np.zeros(3)}, landing="shadow", not_sent="cache"
        )
        job.publish(1)
        assert [wait.result().number for wait in job.wait()] == [1, 1]
        assert job.serves(1)
    finally:
        job.close()


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"draft": 1}, "model 'policy' is not in it"),
        ({"policy": 2, "draft": 1}, "world_size is 1"),
        ({"policy": 1, "a/b": 1}, "'a/b' cannot be the name"),
        ({"policy": 1, "draft": 0}, "'draft' has 0 ranks"),
    ],
)
def test_groups_that_cannot_be_are_refused(controller, group, said):
    for make in (wc.Trainer, lambda *a, **k: wc.Inference(*a, engine="e", **k)):
        with pytest.raises(wc.InvalidArgument, match=said):
            make(controller, commit_group=group, settings=FAST)


def test_an_engine_without_one_of_the_models_is_told_which_ranks_are_missing():
    settings = {**FAST, "join_timeout": 2}
    with wc.Controller("127.0.0.1:0", settings=settings) as running:
        rank = wc.Inference(running.address, engine="e", commit_group=GROUP, settings=settings)
        rank.register({"w": np.zeros(4, np.float32)})
        with pytest.raises(
            wc.Error, match=r"commit group draft\+policy: draft has ranks 0\.\.0, policy 1\.\.1"
        ):
            rank.wait(timeout=20)
        rank.close()


def test_a_label_reaches_engines_that_join_late(controller):
    source, first, late = (np.zeros((4, 4), np.float32) for _ in range(3))
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="first", settings=FAST) as engine,
    ):
        trainer.register({"w": source})
        engine.register({"w": first})
        trainer.publish(1, label="räumlich")
        assert engine.wait(timeout=30).label == "räumlich"
        trainer.close()
        with wc.Inference(controller, engine="late", settings=FAST) as other:
            other.register({"w": late})
            assert other.wait(timeout=30).label == "räumlich"


@pytest.mark.parametrize("label", ["x" * 257, "two\nlines", "é" * 200])
def test_labels_that_cannot_be_are_refused(controller, label):
    with wc.Trainer(controller, settings=FAST) as trainer:
        trainer.register({"w": np.zeros(4, np.float32)})
        with pytest.raises(wc.InvalidArgument, match="the label of a version"):
            trainer.publish(1, label=label)
        trainer.publish(1, label="fine")
