"""The package's calls one by one: a trainer, an engine and a controller in this process."""

import asyncio
import contextlib
import gc
import importlib.resources
import os
import pickle

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST


@pytest.fixture
def trainer(controller):
    with wc.Trainer(controller, settings=FAST) as worker:
        worker.register({"w": np.arange(1000, dtype=np.float32)})
        yield worker


@pytest.fixture
def engine(controller):
    with wc.Inference(controller, engine="e", settings=FAST) as worker:
        worker.live = np.zeros(1000, np.float32)
        yield worker


def serve(trainer, engine, version=1, landing="in_place"):
    """One whole version."""
    engine.register({"w": engine.live}, landing=landing)
    update = trainer.publish(version)
    assert engine.wait(timeout=30).number == version
    return update.wait(30)


def test_statistics_name_who_sent_and_who_received(trainer, engine):
    stats = serve(trainer, engine)
    assert (stats.version.number, stats.bytes) == (1, 4000)
    assert [(rank.name, rank.bytes) for rank in stats.senders] == [("trainer 0", 4000)]
    assert [(rank.name, rank.bytes) for rank in stats.receivers] == [("engine e rank 0", 4000)]
    (route,) = stats.routes
    assert (route.sender, route.receiver, route.bytes) == ("trainer 0", "engine e rank 0", 4000)
    assert route.seconds > 0
    assert stats.gb_per_s > 0
    np.testing.assert_array_equal(engine.live, np.arange(1000))


def test_engines_and_connections_are_shown(trainer, engine):
    serve(trainer, engine)
    (state,) = trainer.engines()
    assert (state.name, state.state, state.version.number, state.last_error) == ("e", "SERVING", 1, "")
    assert state.incarnation != 0
    assert engine.state == "SERVING"
    assert "engine e rank 0" in "\n".join(trainer.connection_map())
    assert "trainer 0" in "\n".join(engine.connection_map())
    assert engine.describe() == ["w: in_place"]


def test_cancel_aborts_and_the_old_version_is_served(trainer, engine, controller):
    with wc.Inference(controller, engine="idle", settings=FAST) as idle:
        idle.register({"w": np.zeros(1000, np.float32)}, landing="in_place")
        engine.register({"w": engine.live}, landing="shadow")
        update = trainer.publish(1)
        assert [one.wait(timeout=30).number for one in (idle, engine)] == [1, 1]
        update.wait(30)
        update = trainer.publish(2)  # Not committed before `idle` asks for it.
        update.cancel()
        with pytest.raises(wc.Cancelled):
            update.wait(30)
        assert engine.version.number == 1
    np.testing.assert_array_equal(engine.live, np.arange(1000))


def test_abort_after_receive_ends_the_update_by_name(trainer, engine):
    engine.register({"w": engine.live})
    update = trainer.publish(1)
    engine.begin()
    engine.receive(30)
    engine.abort()
    assert (engine.state, engine.version.number) == ("FAILED", -1)
    with pytest.raises(wc.UpdateAborted, match="engine e") as error:
        update.wait(30)
    assert (error.value.version, error.value.engine, error.value.rank) == (1, "e", 0)
    copy = pickle.loads(pickle.dumps(error.value))
    assert (type(copy), str(copy), vars(copy)) == (
        wc.UpdateAborted,
        str(error.value),
        vars(error.value),
    )
    with pytest.raises(wc.Error):
        engine.check()


def test_held_versions_reach_engines_that_join_later(trainer, engine, controller):
    engine.register({"w": engine.live})
    update = trainer.publish(1, hold=True)
    engine.wait(timeout=30)
    update.wait(30)
    late_live = np.zeros(1000, np.float32)
    with wc.Inference(controller, engine="late", settings=FAST) as late:
        late.register({"w": late_live})
        assert late.wait(timeout=30).number == 1
    np.testing.assert_array_equal(late_live, np.arange(1000))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_a_late_engine_gets_the_served_version_from_another(trainer, engine, controller, landing, transport):
    serve(trainer, engine, landing=landing)
    trainer.close()  # Nobody but the engine has the bytes.
    late_live = np.zeros(1000, np.float32)
    with wc.Inference(controller, engine="late", settings={**FAST, "transport": transport}) as late:
        late.register({"w": late_live}, landing=landing)
        assert late.wait(timeout=30).number == 1
    np.testing.assert_array_equal(late_live, np.arange(1000))
    assert engine.version.number == 1


def test_an_engine_may_keep_its_tensors_to_itself(trainer, engine, controller):
    engine.register({"w": engine.live}, shares=False)
    update = trainer.publish(1)
    engine.wait(timeout=30)
    update.wait(30)
    trainer.close()
    with wc.Inference(controller, engine="late", settings=FAST) as late:
        late.register({"w": np.zeros(1000, np.float32)})
        with pytest.raises(wc.TimedOut):
            late.wait(timeout=2)


def test_rules_rename(controller):
    fused = np.zeros((6, 2), np.float32)
    parts = {name: np.full((2, 2), i, np.float32) for i, name in enumerate(["q", "k", "v"])}
    with (
        wc.Trainer(controller, settings=FAST) as trainer,
        wc.Inference(controller, engine="e", settings=FAST) as engine,
    ):
        trainer.register(parts, rules=[{"fuse": ["q", "k", "v"], "to": "qkv"}])
        engine.register({"qkv": fused})
        update = trainer.publish(1)
        engine.wait(timeout=30)
        update.wait(30)
    np.testing.assert_array_equal(fused, np.repeat(np.arange(3, dtype=np.float32), 2)[:, None] * [1, 1])


def test_registering_other_memory_serves_nothing_until_filled(trainer, engine):
    serve(trainer, engine)
    moved = np.zeros(1000, np.float32)
    engine.register({"w": moved})
    assert engine.version.number == -1
    update = trainer.publish(2)
    assert engine.wait(timeout=30).number == 2
    update.wait(30)
    np.testing.assert_array_equal(moved, np.arange(1000))


def test_asyncio_forms(trainer, engine):
    async def both():
        update = trainer.publish(1)
        version, _, stats = await asyncio.gather(
            engine.wait_async(timeout=30), update.wait_sources_async(30), update.wait_async(30)
        )
        return version.number, stats.bytes, [state.name for state in await trainer.engines_async()]

    engine.register({"w": engine.live})
    assert asyncio.run(both()) == (1, 4000, ["e"])


def test_a_cancelled_asyncio_wait_has_ended(trainer, engine):
    serve(trainer, engine)

    async def wait_in_vain():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.wait_async(newer_than=1), 0.3)

    asyncio.run(wait_in_vain())
    # Nobody is left inside who could let the next version into tensors that are being read.
    trainer.publish(2)
    engine.begin()
    assert engine.receive(30).number == 2
    engine.finish(30)


def test_a_time_out_is_the_callers_own(trainer, engine):
    engine.register({"w": engine.live})
    update = trainer.publish(1)
    with pytest.raises(wc.TimedOut):
        update.wait(0.2)
    assert engine.wait(timeout=30).number == 1
    assert update.wait(30).bytes == 4000
    with pytest.raises(wc.TimedOut):
        engine.wait(newer_than=1, timeout=0.2)


def test_an_engine_that_does_not_come_is_an_abort_not_a_time_out():
    settings = {**FAST, "grant_timeout": 1}
    with (
        wc.Controller("127.0.0.1:0", settings=settings) as controller,
        wc.Trainer(controller.address, settings=settings) as trainer,
        wc.Inference(controller.address, engine="e", settings=settings) as engine,
    ):
        trainer.register({"w": np.zeros(10, np.float32)})
        engine.register({"w": np.zeros(10, np.float32)})
        with pytest.raises(wc.UpdateAborted, match="engine e rank 0 has not granted"):
            trainer.publish(1).wait(30)


def test_an_unclosed_worker_leaves_when_it_is_collected(controller):
    trainer = wc.Trainer(controller, settings=FAST)
    trainer.register({"w": np.zeros(10, np.float32)})
    del trainer
    gc.collect()
    with wc.Trainer(controller, settings=FAST) as again:  # Its rank is free.
        again.register({"w": np.zeros(10, np.float32)})


def test_a_forked_child_gets_errors_and_ends(trainer, engine):
    serve(trainer, engine)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            for call in (lambda: trainer.publish(9), lambda: engine.wait(timeout=1)):
                try:
                    call()
                    os.write(writer, b"done ")
                except wc.Error as error:
                    os.write(writer, error.code.encode() + b" ")
            gc.collect()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        assert answers.read() == "internal internal "
    assert os.waitpid(child, 0)[1] == 0
    update = trainer.publish(2)  # The parent goes on.
    assert engine.wait(newer_than=1, timeout=30).number == 2
    update.wait(30)


def test_rank_and_world_size_from_torchrun(controller, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with wc.Trainer.from_env(controller, settings=FAST) as trainer:
        trainer.register({"w": np.zeros(10, np.float32)})
    monkeypatch.delenv("RANK")
    with pytest.raises(wc.InvalidArgument, match="RANK"):
        wc.Trainer.from_env(controller, settings=FAST)


def test_log_levels_are_checked():
    wc.set_log_level("warning")
    with pytest.raises(wc.InvalidArgument, match="loud"):
        wc.set_log_level("loud")


def test_the_package_is_typed():
    files = importlib.resources.files(wc)
    assert (files / "py.typed").is_file()
    assert "class CoreTrainer" in (files / "_weightcast.pyi").read_text()
