"""EngineControl: an engine is paused before its tensors change, and gets no requests without a version."""

import asyncio
import contextlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import weightcast as wc
from cli import BINARY, run

SETTINGS = {"lease": 1, "connect_timeout": 5, "timeout": 20, "commit_timeout": 2}
SIZE = 4096


class Engine:
    """A rank that waits for versions, and a front end that writes down what is asked of it."""

    def __init__(
        self, controller: str, name: str, *, landing: str = "in_place", settings=SETTINGS, **steps
    ) -> None:
        self.live = np.zeros(SIZE, np.float32)
        self.said: list[str] = []
        self.seen: dict[str, tuple[str, int]] = {}
        self.changed = threading.Condition()
        self.stack = contextlib.ExitStack()
        self.worker = self.stack.enter_context(wc.Inference(controller, engine=name, settings=settings))
        calls = {
            "pause": lambda: self.say("pause"),
            "resume": lambda: self.say("resume"),
            "flush_caches": lambda: self.say("flush"),
            "set_version": lambda version: self.say(f"version {version.number}"),
            "admit": lambda: self.say("admit"),
            "drain": lambda reason: self.say("drain"),
        }
        self.controller, self.name, self.calls = controller, name, {**calls, **steps}
        self.start_control()
        self.worker.register({"w": self.live}, landing=landing)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def start_control(self) -> None:
        control = wc.EngineControl(self.controller, engine=self.name, settings=SETTINGS, **self.calls)
        self.control = self.stack.enter_context(control)

    def say(self, text: str) -> None:
        with self.changed:
            self.said.append(text)
            self.seen[text] = (self.worker.state, int(self.live[0]))
            self.changed.notify_all()

    def wait_until_said(self, text: str) -> list[str]:
        """The steps up to this one. What comes after it, perhaps before this thread runs again, is kept."""
        with self.changed:
            if self.changed.wait_for(lambda: text in self.said, 30):
                end = self.said.index(text) + 1
                said, self.said = self.said[:end], self.said[end:]
                return said
        pytest.fail(f"{text!r} was not said; said was {self.said}\n{self._info()}")

    def _info(self) -> str:
        """What the controller knows."""
        if not BINARY.exists():
            return f"no {BINARY} to ask the controller with"
        shown = run("info", "--controller", self.controller)
        return shown.stdout + shown.stderr

    def _serve(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(wc.Error):
                self.worker.wait(timeout=0.2)

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        self.stack.close()


@pytest.fixture
def cluster():
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(
            wc.Controller("127.0.0.1:0", settings={**SETTINGS, "policy": "each"})
        )
        trainer = stack.enter_context(wc.Trainer(controller.address, settings=SETTINGS))
        weights = np.zeros(SIZE, np.float32)
        trainer.register({"w": weights})

        def engine(name, **steps):
            made = Engine(controller.address, name, **steps)
            stack.callback(made.close)
            return made

        def publish(number):
            weights[...] = number
            return trainer.publish(number)

        yield engine, publish, trainer


def test_in_place_the_engine_is_paused_before_a_byte_is_written(cluster):
    make, publish, _ = cluster
    engine = make("a")
    for number in (1, 2):
        publish(number).wait(30)
        said = engine.wait_until_said("admit" if number == 1 else "resume")
        said = [step for step in said if step != "drain"]  # Before its first version nobody is let in.
        assert said[:4] == ["pause", "flush", f"version {number}", "resume"]
        assert engine.seen["pause"][1] == number - 1
        assert engine.seen[f"version {number}"] == ("COMMITTED", number)
        assert engine.seen["resume"] == ("SERVING", number)
    assert engine.control.admitted and not engine.control.paused
    assert engine.control.version == engine.worker.version


def test_into_a_spare_buffer_it_runs_until_the_switch(cluster):
    make, publish, _ = cluster
    engine = make("a", landing="shadow")
    publish(1).wait(30)
    engine.wait_until_said("admit")
    publish(2).wait(30)
    assert engine.wait_until_said("resume") == ["pause", "flush", "version 2", "resume"]
    assert engine.seen["pause"] == ("READY", 1)


def test_an_engine_that_does_not_pause_goes_on_with_what_it_has(cluster):
    make, publish, trainer = cluster
    go_on, held = threading.Event(), threading.Event()

    def pause():
        engine.say("pause")
        if held.is_set():
            go_on.wait(30)

    engine, other = make("a", pause=pause), make("b")
    publish(1).wait(30)
    engine.wait_until_said("admit")
    held.set()
    stats = publish(2).wait(30)
    [outcome] = [one for one in stats.engines if one.engine == "a"]
    assert not outcome.committed and "the control of engine a has not answered" in outcome.reason
    assert engine.worker.version.number == 1 and int(engine.live[0]) == 1
    assert other.worker.version.number == 2
    held.clear()
    engine.said.clear()
    go_on.set()
    engine.wait_until_said("resume")  # First with the old version, then it is given the new one.
    publish(3).wait(30)
    engine.wait_until_said("version 3")
    assert [state.state for state in trainer.engines()] == ["SERVING", "SERVING"]


def test_a_step_that_raises_is_told_to_the_publisher(cluster):
    make, publish, _ = cluster
    engine = make("a")
    publish(1).wait(30)
    engine.wait_until_said("admit")

    def broken():
        raise ValueError("no such cache")

    engine.control._flush_caches = broken
    with pytest.raises(wc.UpdateAborted, match="cannot activate: ValueError: no such cache"):
        publish(2).wait(30)
    assert engine.wait_until_said("drain") == ["pause", "drain"]
    assert engine.worker.version.number == -1 and not engine.control.admitted
    engine.control._flush_caches = None
    publish(3).wait(30)
    engine.wait_until_said("admit")
    assert engine.worker.version.number == 3


def test_without_its_control_an_engine_is_left_alone_until_there_is_another(cluster):
    make, publish, _ = cluster
    engine, other = make("a"), make("b")
    publish(1).wait(30)
    engine.wait_until_said("admit")
    engine.control.close()
    publish(2).wait(30)
    assert engine.worker.version.number == 1 and other.worker.version.number == 2
    engine.said.clear()
    engine.start_control()
    engine.wait_until_said("version 2")
    engine.wait_until_said("resume")


def test_steps_may_be_coroutines(cluster):
    make, publish, _ = cluster

    async def run():
        loop, ran = asyncio.get_running_loop(), []

        async def pause():
            ran.append(asyncio.get_running_loop())

        engine = make("a", pause=pause)
        await publish(1).wait_async(30)
        await asyncio.to_thread(engine.wait_until_said, "admit")
        assert ran == [loop]

    asyncio.run(run())


def test_a_script_may_end_without_closing_it(controller):
    script = "import sys, weightcast as wc; wc.EngineControl(sys.argv[1], engine='a', admit=print)"
    subprocess.run([sys.executable, "-c", script, controller], check=True, timeout=30)


def test_names_are_checked(cluster):
    with pytest.raises(wc.InvalidArgument, match="name of its engine"):
        wc.EngineControl("127.0.0.1:1", engine="")
