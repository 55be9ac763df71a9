"""Trainers and engines with weights in the memory of GPUs, on the fake driver."""

import concurrent.futures
import contextlib
import time

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE
from gpus import Face, Machine

SHAPES = {"a": (512, 1024), "b": (4096,), "c": (3, 640)}
A_WHILE = 0.2
SETTINGS = {"lease": 5, "connect_timeout": 20, "timeout": 60}


def weights(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def digests(side, stream=None) -> dict[str, str]:
    return {one.name: str(one.digest) for one in side.digest(stream=stream)}


class Job:
    """A trainer on GPU 0 and an engine on GPU 1, whose memory is full of other bytes at first."""

    def __init__(self, transport: str = "shm", **settings) -> None:
        self.machine = Machine()
        self.settings = {**SETTINGS, "transport": transport, **settings}
        self._stack = contextlib.ExitStack()
        controller = self._stack.enter_context(wc.Controller("127.0.0.1:0", settings=SETTINGS))
        self.controller = controller.address
        self.trainer = self.enter(wc.Trainer(controller.address, settings=self.settings))
        self.engine = self.enter(wc.Inference(controller.address, engine="e", settings=self.settings))
        self.sources = {name: self.machine.array(value, 0) for name, value in weights(0).items()}
        self.live = {
            name: self.machine.array(np.ones(shape, np.float32), 1) for name, shape in SHAPES.items()
        }

    def enter(self, worker):
        return self._stack.enter_context(worker)

    def set(self, version: int) -> None:
        for name, value in weights(version).items():
            self.machine.write(self.sources[name], value)

    def check(self, version: int, arrays=None) -> None:
        for name, array in (arrays or self.live).items():
            assert np.array_equal(self.machine.read(array), weights(version)[name]), (name, version)

    def close(self) -> None:
        self._stack.close()


def landings(landing: str, transport: str) -> None:
    """Each landing; offered, describe, digest; versions one after another."""
    job = Job(transport)
    switched = []
    on_switch = switched.append if landing == "loader" else None
    job.trainer.register(job.sources)
    assert job.engine.offered(PATIENCE) == {name: ("F32", shape) for name, shape in SHAPES.items()}
    job.engine.register(job.live, landing=landing, on_switch=on_switch)
    assert sorted(job.engine.describe()) == [f"{name}: {landing}" for name in SHAPES]
    for version in (1, 2, 3):
        job.set(version)
        update = job.trainer.publish(version)
        assert job.engine.wait(version - 1 or None, timeout=PATIENCE).number == version
        update.wait_sources(PATIENCE)
        update.wait(PATIENCE)
        job.check(version)
        assert len(switched) == (version if on_switch else 0)
        if landing != "loader":
            assert digests(job.engine) == digests(job.trainer)
    job.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("landing", ["in_place", "shadow", "loader"])
def test_landings(gpus, landing, transport):
    gpus(landings, landing, transport).value(2 * PATIENCE)


def streams(landing: str) -> None:
    """publish comes behind its stream without waiting for it; wait and begin behind theirs."""
    job = Job()
    machine = job.machine
    job.trainer.register(job.sources)
    job.engine.register(job.live, landing=landing)
    trains, serves = machine.stream(0), machine.stream(1)
    foreign = machine.stream(0)
    other = machine.array(np.zeros(4096, np.uint8), 0)
    job.trainer.publish(1)
    job.engine.wait(timeout=PATIENCE)
    with machine.held(foreign, 0), concurrent.futures.ThreadPoolExecutor() as threads:
        # What nobody named may wait for ever.
        machine.fill(other, 1, foreign)
        for version, (given, stream) in enumerate(((trains, trains), (None, 0)), 2):
            job.set(version)
            with machine.held(stream, 0):
                machine.fill(job.sources["b"], version, stream)
                update = job.trainer.publish(version, stream=given)
                served = threads.submit(job.engine.wait, version - 1, timeout=PATIENCE, stream=serves)
                with pytest.raises(wc.TimedOut):
                    update.wait_sources(A_WHILE)
                assert not served.done()
            assert served.result(PATIENCE).number == version
            update.wait(PATIENCE)
            assert (machine.read(job.live["b"]).view(np.uint8) == version).all()
            assert np.array_equal(machine.read(job.live["a"]), weights(version)["a"])
        assert machine.is_busy(foreign, 0)
    # The engine still computes with the old version: nothing lands before that is over.
    served = job.engine.version.number
    late = machine.late(trains, 0)
    machine.fill(job.sources["b"], 77, trains)
    early = digests(job.trainer, stream=trains)
    late.join()
    assert early == digests(job.trainer) != digests(job.engine)
    late = machine.late(serves, 1)
    machine.fill(job.live["b"], 77, serves)
    assert digests(job.engine, stream=serves) == early
    late.join()
    job.set(4)
    update = job.trainer.publish(4)
    held = machine.held(serves, 1)
    held.__enter__()
    machine.fill(job.live["c"], 5, serves)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        begun = threads.submit(job.engine.begin, stream=serves)
        time.sleep(A_WHILE)
        assert not begun.done() and job.engine.version.number == served
        held.__exit__(None, None, None)
        begun.result(PATIENCE)
    assert job.engine.receive(PATIENCE).number == 4
    job.engine.finish(PATIENCE)
    update.wait(PATIENCE)
    job.check(4)
    with pytest.raises(wc.InvalidArgument, match="give a CUDA stream"):
        job.trainer.publish(5, stream="fast")
    machine.capture(trains, True)
    with pytest.raises(wc.InvalidArgument, match="outside of the capture"):
        job.trainer.publish(5, stream=trains)
    machine.capture(trains, False)
    assert machine.calls("cuCtxSynchronize", "cuStreamSynchronize") == 0
    job.close()


@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_a_streams_unfinished_work_is_neither_read_nor_overtaken(gpus, landing):
    gpus(streams, landing).value(2 * PATIENCE)


def groups() -> None:
    """One bucket on the GPU takes group after group."""
    job = Job()
    size = max(int(np.prod(shape)) for shape in SHAPES.values())
    bucket = job.machine.array(np.zeros(size, np.float32), 1)
    job.trainer.register(job.sources)
    tensors = {name: Face(bucket, shape) for name, shape in SHAPES.items()}
    stream = job.machine.stream(1)
    job.engine.register(tensors, landing="loader", groups=list(SHAPES))
    for version in (1, 2):
        job.set(version)
        update = job.trainer.publish(version)
        job.engine.begin()
        taken, late = [], []
        for group in job.engine.receive_groups(PATIENCE, stream=stream):
            name = list(SHAPES)[group.group]
            assert np.array_equal(job.machine.read(tensors[name]), weights(version)[name])
            # The engine's kernels take it later: the next group must not land before.
            late.append(job.machine.late(stream, 1))
            job.machine.copy(job.live[name], tensors[name], stream)
            taken.append(name)
        job.engine.finish(PATIENCE)
        update.wait(PATIENCE)
        for timer in late:
            timer.join()
        job.machine.finish(stream, 1)
        job.check(version)
        assert taken == list(SHAPES)
    job.close()


def test_groups(gpus):
    gpus(groups).value(2 * PATIENCE)


def several_shards() -> None:
    """Trainer 1 is in host memory; the engine has the experts in another order, and a table twice."""
    machine = Machine()
    whole = np.random.default_rng(1).standard_normal((4, 64, 96)).astype(np.float32)
    table = np.random.default_rng(2).standard_normal((40, 24)).astype(np.float32)
    settings = dict(SETTINGS)
    with wc.Controller("127.0.0.1:0", settings=SETTINGS) as controller, contextlib.ExitStack() as stack:
        trainers = [
            stack.enter_context(wc.Trainer(controller.address, rank=rank, world_size=2, settings=settings))
            for rank in range(2)
        ]
        engine = stack.enter_context(wc.Inference(controller.address, engine="e", settings=settings))

        def parts(array, indices):
            return [wc.Shard(one, whole.shape, (i, 0, 0)) for one, i in zip(array, indices, strict=True)]

        halves = (
            [machine.array(whole[i : i + 1], 0) for i in (0, 1)],
            [whole[i : i + 1].copy() for i in (2, 3)],
        )
        transposed = machine.array(np.ascontiguousarray(table.T), 1)  # Not contiguous as it is registered.
        trainers[0].register(
            {"experts": parts(halves[0], (0, 1)), "table": Face(transposed, (40, 24), strides=(4, 160))}
        )
        trainers[1].register({"experts": parts(halves[1], (2, 3))})
        order = (3, 0, 2, 1)
        landed = [machine.array(np.zeros((1, 64, 96), np.float32), gpu) for gpu in (0, 1, 1, 0)]
        tables = [machine.array(np.zeros((40, 24), np.float16), 1), np.zeros((40, 24), np.float16)]
        engine.register(
            {"experts": parts(landed, order), "table": [*map(wc.Shard, tables)]},
            unwanted="ignore",
        )
        updates = [trainer.publish(1) for trainer in trainers]
        assert engine.wait(timeout=PATIENCE).number == 1
        for update in updates:
            update.wait(PATIENCE)
        for array, expert in zip(landed, order, strict=True):
            assert np.array_equal(machine.read(array)[0], whole[expert])
        half = table.astype(np.float16)
        assert np.array_equal(machine.read(tables[0]), half) and np.array_equal(tables[1], half)


def test_several_shards_casts_strides_and_host_memory_side_by_side(gpus):
    gpus(several_shards).value(2 * PATIENCE)


def sleep(landing: str, intact: bool) -> None:
    """Suspended, the memory may be written or freed; it is back at the same address when resumed."""
    job = Job()
    job.trainer.register(job.sources)
    job.engine.register(job.live, landing=landing)
    job.set(1)
    job.trainer.publish(1, hold=True)
    job.engine.wait(timeout=PATIENCE)
    for version in (2, 3):
        job.engine.suspend(PATIENCE)
        assert job.engine.state == "SUSPENDED"
        if not intact:
            for array in job.live.values():
                job.machine.write(array, np.full(array.__cuda_array_interface__["shape"], 7, np.float32))
        job.engine.resume(intact=intact)
        if intact:
            assert job.engine.version.number == version - 1
            assert digests(job.engine) == digests(job.trainer)
        job.set(version)
        update = job.trainer.publish(version, hold=True)
        while job.engine.version.number != version:
            job.engine.wait(timeout=PATIENCE)
        update.wait(PATIENCE)
        job.check(version)
    job.close()


@pytest.mark.parametrize("intact", [True, False])
@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_suspend_and_resume(gpus, landing, intact):
    gpus(sleep, landing, intact).value(2 * PATIENCE)


def commit_group() -> None:
    """Two models of one engine, one on each GPU, are served together."""
    machine = Machine()
    group = {"draft": 1, "policy": 1}
    settings = dict(SETTINGS)
    with wc.Controller("127.0.0.1:0", settings=SETTINGS) as controller, contextlib.ExitStack() as stack:
        common = {"commit_group": group, "settings": settings}
        trainers, ranks, sources, live = {}, {}, {}, {}
        for gpu, model in enumerate(group):
            trainers[model] = stack.enter_context(wc.Trainer(controller.address, model=model, **common))
            ranks[model] = stack.enter_context(
                wc.Inference(controller.address, engine="e", model=model, **common)
            )
            sources[model] = machine.array(np.zeros((64, 32), np.float32), gpu)
            live[model] = machine.array(np.ones((64, 32), np.float32), 1 - gpu)
            trainers[model].register({"w": sources[model]})
            ranks[model].register({"w": live[model]}, landing="shadow")
        with concurrent.futures.ThreadPoolExecutor() as threads:
            for version in (1, 2, 3):
                for model in group:
                    machine.write(sources[model], np.full((64, 32), version + len(model), np.float32))
                updates = [trainer.publish(version) for trainer in trainers.values()]
                waits = [
                    threads.submit(rank.wait, version - 1 or None, timeout=PATIENCE)
                    for rank in ranks.values()
                ]
                assert [wait.result().number for wait in waits] == [version] * 2
                for update in updates:
                    update.wait(PATIENCE)
                for model in group:
                    assert (machine.read(live[model]) == version + len(model)).all()
                    assert ranks[model].digest()[0].digest == trainers[model].digest()[0].digest


def test_commit_groups(gpus):
    gpus(commit_group).value(2 * PATIENCE)


def refusals() -> None:
    job = Job()
    job.trainer.register(job.sources)
    with pytest.raises(wc.InvalidArgument, match="mask"):
        job.engine.register({"a": Face(job.live["a"], mask=job.live["a"])})
    with pytest.raises(wc.InvalidArgument, match="beyond the end of their allocation"):
        job.engine.register({"a": Face(job.live["b"], SHAPES["a"])})
    address, _ = job.live["a"].__cuda_array_interface__["data"]
    with pytest.raises(wc.InvalidArgument, match="read-only"):
        job.engine.register({"a": Face(job.live["a"], data=(address, True))})
    checks = job.enter(wc.Inference(job.controller, engine="c", settings={**job.settings, "checksum": 1}))
    with pytest.raises(wc.InvalidArgument, match="checksum"):
        checks.register(job.live)
    job.close()


def test_refusals_are_named(gpus):
    gpus(refusals).value(PATIENCE)
