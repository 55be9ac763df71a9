"""What a fleet does where a part of an update fails.

The rows of "Handle Partial Failure" in NVIDIA Dynamo's guide "Distribute and Update Rollout Weights", which
leaves them to the framework. All engines switch together here, but for those that fail.
"""

import contextlib
import pathlib
import sys
import threading
import time

import numpy as np
import pytest

import weightcast as wc
from test_engine_control import SETTINGS, SIZE, Engine

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from relay import Relay  # noqa: E402


class Fleet:
    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.controller = stack.enter_context(wc.Controller("127.0.0.1:0", settings=SETTINGS)).address
        self.trainer = stack.enter_context(wc.Trainer(self.controller, settings=SETTINGS))
        self._weights = np.zeros(SIZE, np.float32)
        self.trainer.register({"w": self._weights})

    def engine(self, name: str, **options) -> Engine:
        made = Engine(self.controller, name, **options)
        self._stack.callback(made.close)
        return made

    def publish(self, number: int) -> wc.Update:
        self._weights[...] = number
        return self.trainer.publish(number)

    def states(self) -> dict[str, str]:
        return {one.name: one.state for one in self.trainer.engines()}

    def begin(self, engines: int = 2) -> None:
        """Version 1, at all engines."""
        self.publish(1).wait(30)
        self.until(lambda: list(self.states().values()) == ["SERVING"] * engines)

    def until(self, what) -> None:
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline, self.states()
            time.sleep(0.01)


class Hook:
    """One of an engine's, which raises while `broken` is set."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self.broken = threading.Event()

    def __call__(self) -> None:
        if self.broken.is_set():
            raise RuntimeError(self._reason)


@pytest.fixture
def fleet():
    with contextlib.ExitStack() as stack:
        yield Fleet(stack)


def serves(engine: Engine, number: int) -> None:
    assert engine.worker.version.number == number and (engine.live == number).all()


def fails(update: wc.Update, reason: str) -> None:
    """The publisher hears of it, though the others have switched."""
    with pytest.raises(wc.UpdateAborted, match=reason):
        update.wait(30)


def test_membership_changes_before_the_transfer(fleet):
    """Dynamo: refresh the target set and rebuild groups. Here: there is no group to rebuild."""
    stays, leaves = fleet.engine("stays"), fleet.engine("leaves")
    fleet.begin()
    leaves.close()
    joins = fleet.engine("joins")
    fleet.until(lambda: "joins" in fleet.states())
    stats = fleet.publish(2).wait(30)
    assert sorted(one.engine for one in stats.engines if one.committed) == ["joins", "stays"]
    serves(stays, 2)
    serves(joins, 2)


def test_a_pause_fails(fleet):
    """Dynamo: do not transfer to or admit the worker. Here: the same; it serves on what it has."""

    pause = Hook("the scheduler is stuck")
    engine, other = fleet.engine("a", pause=pause), fleet.engine("b")
    fleet.begin()
    engine.wait_until_said("admit")
    pause.broken.set()
    fails(fleet.publish(2), "the scheduler is stuck")
    serves(engine, 1)
    serves(other, 2)
    pause.broken.clear()
    fleet.publish(3).wait(30)
    serves(engine, 3)
    serves(other, 3)


def test_one_transfer_fails_after_a_peer_has_every_byte(fleet):
    """Dynamo: keep the fleet gated. Here: nobody switches before all can."""
    relay = Relay()
    engine = fleet.engine("a", landing="shadow")
    other = fleet.engine("b", landing="shadow", settings={**SETTINGS, **relay.settings})
    fleet.begin()
    relay.stop_after(1000)
    update = fleet.publish(2)
    assert relay.stopped.wait(30)
    serves(engine, 1)  # Also when it has every byte: all switch together.
    serves(other, 1)
    fails(update, "engine b")
    for one in (engine, other):  # What had every byte was to be b's next source, so it may be out as well.
        assert one.worker.version.number in (1, 2)
        serves(one, one.worker.version.number)
    relay.go_on()
    fleet.publish(3).wait(30)
    serves(engine, 3)
    serves(other, 3)
    relay.close()


def test_a_cache_reset_fails(fleet):
    """Dynamo: exclude the worker even if its transfer succeeded. Here: the same."""

    flush = Hook("blocks are in use")
    engine, other = fleet.engine("a", flush_caches=flush), fleet.engine("b")
    fleet.begin()
    engine.wait_until_said("admit")
    flush.broken.set()
    fails(fleet.publish(2), "blocks are in use")
    engine.wait_until_said("drain")
    assert not engine.control.admitted and other.control.admitted
    serves(other, 2)


def test_the_version_differs(fleet):
    """Dynamo: do not reopen a synchronous fleet. Here: the engine that says so is not admitted."""

    def set_version(version):
        if version.number == 2:
            raise RuntimeError("the engine reports version 1")

    engine, other = fleet.engine("a", set_version=set_version), fleet.engine("b")
    fleet.begin()
    engine.wait_until_said("admit")
    fails(fleet.publish(2), "the engine reports version 1")
    engine.wait_until_said("drain")
    assert not engine.control.admitted and other.control.version.number == 2
    fleet.publish(3).wait(30)
    engine.wait_until_said("admit")
    serves(engine, 3)


def test_a_resume_fails(fleet):
    """Dynamo: keep the worker out of the pool, keep diagnostics. Here: the same, with the reason."""

    def drain(reason):
        reasons.append(reason)
        engine.say("drain")

    reasons = []
    resume = Hook("the first step failed")
    engine = fleet.engine("a", resume=resume, drain=drain)
    other = fleet.engine("b")
    fleet.begin()
    engine.wait_until_said("admit")
    reasons.clear()
    resume.broken.set()
    fleet.publish(2).wait(30)
    engine.wait_until_said("drain")
    assert not engine.control.admitted and other.control.admitted and reasons
    resume.broken.clear()
    fleet.publish(3).wait(30)
    engine.wait_until_said("admit")
    serves(engine, 3)
