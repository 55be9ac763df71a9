"""Whole updates through the Python package, with real processes."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

SHAPES = {"a": (300, 40), "b": (1000,), "c": (7, 5, 3), "scalar": ()}


def values(version: int, dtype=np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}


def zeros(dtype=np.float32) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, dtype) for name, shape in SHAPES.items()}


def train(controller, rank, world_size, versions, dtype="float32", settings=FAST):
    arrays = zeros(dtype)
    stats = []
    with wc.Trainer(controller, rank=rank, world_size=world_size, settings=settings) as trainer:
        trainer.register(arrays)
        for version in versions:
            for name, value in values(version, dtype).items():
                arrays[name][...] = value
            result = trainer.publish(version).wait(60)
            stats.append(
                (result.version.number, result.bytes, sorted(engine.engine for engine in result.engines))
            )
    return stats


def infer(controller, engine, last, landing, dtype="float32", settings=FAST):
    arrays = zeros(dtype)
    seen = []
    with wc.Inference(controller, engine=engine, settings=settings) as worker:
        worker.register(arrays, landing=landing)
        while worker.version.number < last:
            version = worker.wait(timeout=60)
            for name, value in values(version.number).items():
                np.testing.assert_array_equal(arrays[name], value.astype(dtype), err_msg=name)
            seen.append(version.number)
    return seen


def wait_for_phase(binary, controller, phase):
    deadline = time.monotonic() + 30
    while True:
        command = [binary, "info", "--controller", controller, "--json"]
        view = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        if view["models"][0]["phase"] == phase:
            return
        assert time.monotonic() < deadline, view


def signal_and_await(pid, how):
    """Until no thread of it runs any more: a stop begins only when one of them is scheduled."""
    os.kill(pid, how)
    deadline = time.monotonic() + 30
    while any(state_of(task) not in "TtZX" for task in pathlib.Path(f"/proc/{pid}/task").glob("*")):
        assert time.monotonic() < deadline, f"{pid} runs on"


def state_of(task):
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def test_an_engine_sleeps_and_wakes(controller):
    arrays, live = zeros(), zeros()
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="e", settings=FAST) as engine,
    ):
        trainer.register(arrays)
        engine.register(live)
        for version, intact in ((1, True), (2, False)):
            for name, value in values(version).items():
                arrays[name][...] = value
            update = trainer.publish(version)
            assert engine.wait(version - 1, timeout=60) == update.version
            update.wait(60)
            engine.suspend(timeout=60)
            assert (engine.state, engine.version.number) == ("SUSPENDED", -1)
            with pytest.raises(wc.InvalidArgument, match="resume"):
                engine.wait(timeout=1)
            [state] = trainer.engines()
            assert state.state == "SUSPENDED"
            engine.resume(intact=intact)
            assert engine.version.number == (version if intact else -1)


def test_an_engine_that_registered_anew_still_gives(controller):
    live, late = zeros(), zeros()
    with wc.Inference(controller, engine="first", settings=FAST) as first:
        first.register(live)
        with wc.Trainer(controller, settings=FAST) as trainer:
            trainer.register(values(1))
            update = trainer.publish(1)
            first.wait(timeout=30)
            update.wait(30)
        first.register(live)
        assert first.version.number == 1
        with wc.Inference(controller, engine="late", settings=FAST) as second:
            second.register(late)
            assert second.wait(timeout=30).number == 1
    for name, value in values(1).items():
        np.testing.assert_array_equal(late[name], value, err_msg=name)


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_replica_finishes_for_a_trainer_that_ends(spawn, controller, binary, transport, how):
    settings = {**FAST, "transport": transport}
    other = spawn(train, controller, 1, 2, [1, 2], "float32", settings)
    arrays, live = zeros(), zeros()
    with (
        wc.Trainer(controller, rank=0, world_size=2, settings=settings) as trainer,
        wc.Inference(controller, engine="e", settings=settings) as engine,
    ):
        trainer.register(arrays)
        engine.register(live)
        for version in (1, 2):
            for name, value in values(version).items():
                arrays[name][...] = value
            update = trainer.publish(version)
            if version == 2:  # Both have published; nothing is sent before the engine comes to wait.
                wait_for_phase(binary, controller, "granting")
                signal_and_await(other.process.pid, how)
            assert engine.wait(timeout=30).number == version
            stats = update.wait(30)
        senders = {sender.name: sender.bytes for sender in stats.senders}
        assert senders == {"trainer 0": stats.bytes, "trainer 1": 0}
    for name, value in values(2).items():
        np.testing.assert_array_equal(live[name], value, err_msg=name)


@pytest.mark.parametrize("landing", ["in_place", "shadow"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_versions_arrive_whole(spawn, landing, transport):
    settings = {**FAST, "transport": transport, "min_engines": 2}
    with wc.Controller("127.0.0.1:0", settings=settings) as controller:
        engines = [
            spawn(infer, controller.address, f"e{i}", 3, landing, "float32", settings) for i in range(2)
        ]
        trainers = [spawn(train, controller.address, r, 2, [1, 2, 3], "float32", settings) for r in range(2)]
        for trainer in trainers:
            stats = trainer.value()
            replica = sum(a.nbytes for a in zeros().values())
            assert stats == [(version, 2 * replica, ["e0", "e1"]) for version in (1, 2, 3)]
        assert [engine.value() for engine in engines] == [[1, 2, 3], [1, 2, 3]]


def test_parts_by_mesh_and_placements(controller):
    """Two trainers in a row each hold some columns; two ranks of an engine some rows; nobody gives a box."""
    whole = np.arange(7 * 10, dtype=np.float32).reshape(7, 10)
    placed = {"shape": whole.shape, "placements": ["replicate", 1]}
    live = [np.zeros((4, 10), np.float32), np.zeros((3, 10), np.float32)]
    with contextlib.ExitStack() as stack:
        trainers = [
            stack.enter_context(wc.Trainer(controller, rank=rank, world_size=2, settings=FAST))
            for rank in range(2)
        ]
        ranks = [
            stack.enter_context(wc.Inference(controller, engine="e", rank=rank, world_size=2, settings=FAST))
            for rank in range(2)
        ]
        for rank, trainer in enumerate(trainers):
            columns = whole[:, rank * 5 : rank * 5 + 5]  # Not contiguous: a view, with its strides.
            trainer.register({"x": wc.Shard(columns, mesh=wc.Mesh((1, 2), (0, rank)), **placed)})
        for rank, engine in enumerate(ranks):
            engine.register(
                {"x": wc.Shard(live[rank], whole.shape, mesh=wc.Mesh((2,), (rank,)), placements=[0])}
            )
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waits = [threads.submit(engine.wait, timeout=30) for engine in ranks]
            for trainer in trainers:
                trainer.publish(1)
            assert [wait.result().number for wait in waits] == [1, 1]
    np.testing.assert_array_equal(np.concatenate(live), whole)


def test_trainer_in_float32_engine_in_float16(spawn, controller):
    engine = spawn(infer, controller, "e", 2, "shadow", "float16")
    trainer = spawn(train, controller, 0, 1, [1, 2])
    trainer.value()
    assert engine.value()[-1] == 2


def phases(controller, rank, last):
    """One rank of a two-rank engine that holds half of `a` along dim 0 and all of the rest."""
    full = zeros()
    half = np.zeros((150, 40), np.float32)
    arrays = {**full, "a": wc.Shard(half, shape=(300, 40), offset=(150 * rank, 0))}
    seen = []
    with wc.Inference(controller, engine="tp", rank=rank, world_size=2, settings=FAST) as worker:
        worker.register(arrays)
        while worker.version.number < last:
            worker.begin()
            version = worker.receive(60)
            assert worker.version.number == -1, "nothing is served between receive and finish"
            expected = values(version.number)
            np.testing.assert_array_equal(half, expected["a"][150 * rank : 150 * (rank + 1)])
            np.testing.assert_array_equal(full["b"], expected["b"])
            worker.finish(60)
            assert worker.version == version and worker.state == "SERVING"
            seen.append(version.number)
    return seen


def test_engine_of_two_ranks_in_phases(spawn, controller):
    ranks = [spawn(phases, controller, rank, 2) for rank in range(2)]
    trainer = spawn(train, controller, 0, 1, [1, 2])
    trainer.value()
    assert [rank.value() for rank in ranks] == [[1, 2], [1, 2]]


def wait_only(controller, timeout):
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.register(zeros())
        begin = time.monotonic()
        with pytest.raises(wc.TimedOut):
            worker.wait(timeout=timeout)
        return time.monotonic() - begin


def test_wait_times_out(spawn, controller):
    assert 0.5 <= spawn(wait_only, controller, 0.5).value() < 5


def tell_when_waiting(ready):
    """Sets `ready` once the main thread is inside worker.wait."""
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code is not wc.Inference.wait.__code__:
        time.sleep(0.005)
    ready.set()


def wait_for_ctrl_c(controller, ready):
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.register(zeros())
        watcher = threading.Thread(target=tell_when_waiting, args=(ready,))
        watcher.start()
        with pytest.raises(KeyboardInterrupt):
            worker.wait(timeout=60)


def test_ctrl_c_ends_a_wait(spawn, controller):
    import multiprocessing as mp
    import os

    ready = mp.get_context("spawn").Event()
    child = spawn(wait_for_ctrl_c, controller, ready)
    assert ready.wait(30)
    begin = time.monotonic()
    os.kill(child.process.pid, signal.SIGINT)
    child.value(timeout=10)
    assert time.monotonic() - begin < 5


def engine_that_dies(controller, ready):
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.register(zeros())
        ready.set()
        worker.wait(timeout=60)
        signal.pause()


def publish_twice(controller, first_done, killed):
    arrays = zeros()
    with wc.Trainer(controller, settings=FAST) as trainer:
        trainer.register(arrays)
        trainer.publish(1).wait(30)
        first_done.set()
        assert killed.wait(30)
        update = trainer.publish(2)
        with pytest.raises(wc.UpdateAborted) as error:
            update.wait(15)
        return str(error.value)


def test_dead_engine_is_named(spawn, controller):
    import multiprocessing as mp

    context = mp.get_context("spawn")
    ready, first_done, killed = context.Event(), context.Event(), context.Event()
    engine = spawn(engine_that_dies, controller, ready)
    trainer = spawn(publish_twice, controller, first_done, killed)
    assert first_done.wait(30)
    engine.process.kill()
    engine.process.join(10)
    killed.set()
    assert "engine e" in trainer.value()


def trainer_with(controller, arrays):
    with wc.Trainer(controller, settings=FAST) as trainer:
        trainer.register(arrays)
        trainer.publish(1).wait(20)


def engine_with(controller, arrays):
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.register(arrays)
        worker.wait(timeout=20)


@pytest.mark.parametrize(
    ("held", "wanted", "words"),
    [
        ({"w": (4, 4)}, {"w": (4, 5)}, ["w", "[4, 4]", "[4, 5]"]),
        ({"w": (4,), "other": (2,)}, {"w": (4,)}, ["other"]),
        ({"w": (4,)}, {"w": (4,), "missing": (3,)}, ["missing"]),
    ],
)
def test_plans_that_cannot_be(spawn, controller, held, wanted, words):
    trainer = spawn(trainer_with, controller, {k: np.zeros(s, np.float32) for k, s in held.items()})
    engine = spawn(engine_with, controller, {k: np.zeros(s, np.float32) for k, s in wanted.items()})
    for child in (trainer, engine):
        kind, text = child.outcome(30)
        assert kind != "ok"
        for word in words:
            assert word in text


@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_an_announced_version_is_read_when_it_is_published(controller, landing):
    arrays, landed = zeros(), zeros()
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="e", settings=FAST) as engine,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        trainer.register(arrays)
        engine.register(landed, landing=landing)
        announced = trainer.announce(1, label="first")
        waiting = pool.submit(engine.wait, timeout=60)
        with pytest.raises(concurrent.futures.TimeoutError):
            waiting.result(0.3)
        for refused in (lambda: trainer.publish(2), lambda: trainer.publish(1, label="other")):
            with pytest.raises(wc.InvalidArgument, match="announced"):
                refused()
        for name, value in values(1).items():
            arrays[name][...] = value
        published = trainer.publish(1)
        version = waiting.result()
        assert (version.number, version.label) == (1, "first")
        for name, value in values(1).items():
            np.testing.assert_array_equal(landed[name], value, err_msg=name)
        assert announced.wait(60).version == published.wait(60).version == version


def test_an_update_that_is_late_names_the_engines_without_it(controller):
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="quick", settings=FAST) as quick,
        wc.Inference(controller, engine="slow", settings=FAST) as slow,
    ):
        trainer.register(values(1))
        for engine in (quick, slow):
            engine.register(zeros())
        with concurrent.futures.ThreadPoolExecutor() as pool:
            taken = pool.submit(quick.wait, timeout=30)
            update = trainer.publish(1)
            with pytest.raises(wc.TimedOut, match=r"not yet: .*slow \("):
                update.wait(1)
            with pytest.raises(wc.TimedOut) as looked:
                update.wait(0)
            assert "slow" not in str(looked.value)  # Who only looks does not wait for an answer.
            slow.wait(timeout=30)
            taken.result(30)
            assert update.wait(30).version.number == 1


def test_a_wait_keeps_its_timeout_while_the_controller_is_away():
    with wc.Controller("127.0.0.1:0") as controller:
        trainer = wc.Trainer(controller.address)
        engine = wc.Inference(controller.address, engine="a")
        trainer.register(values(1))
        engine.register(zeros())
        update = trainer.publish(1)
    began = time.monotonic()
    with pytest.raises(wc.TimedOut):
        update.wait(1)
    assert time.monotonic() - began < 5  # controller_timeout is 10 s
    engine.close()
    trainer.close()
