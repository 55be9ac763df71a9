"""What vLLM answers when trainers are of another model, or are killed in the middle of an update."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

import weightcast as wc
from relay import Relay
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process, RemoteError

TOKENS = 16
FAST = {"lease": 3, "connect_timeout": 5}

_spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def engine(tmp_path: pathlib.Path) -> Iterator[Process]:
    save(make_model("dense"), tmp_path / "v0")
    process = Process(tmp_path, "engine", path=str(tmp_path / "v0"), weightcast=True).ready()
    yield process
    process.end()


def tokens(engine: Process, prompts: list[list[int]] = PROMPTS, count: int = TOKENS) -> list[list[int]]:
    return [one["tokens"] for one in engine.call("generate", prompts, count)]


def update(engine: Process) -> None:
    engine.call("start_weight_update")
    engine.call("update_weights", {})
    engine.call("finish_weight_update", None)


def test_what_does_not_fit_is_named_and_the_engine_goes_on(engine: Process) -> None:
    before = tokens(engine, PROMPTS[:2])
    name = "model.layers.1.mlp.up_proj.weight"
    model = {key: tensor.detach() for key, tensor in make_model("dense").state_dict().items()}
    for tensors, named in (
        ({**model, name: model[name].repeat(2, 1)}, name),  # vLLM's loader would take the first half.
        ({key: one for key, one in model.items() if key != name}, "model.layers.1.mlp.gate_up_proj.weight"),
        ({**model, "model.layers.1.mlp.extra.weight": model[name]}, "model.layers.1.mlp.extra.weight"),
    ):
        with (
            wc.Controller("127.0.0.1:0", settings=FAST) as controller,
            wc.Trainer(controller.address, settings=FAST) as trainer,
        ):
            trainer.register(tensors)
            place = {"controller": controller.address, "settings": FAST}
            with pytest.raises(RemoteError, match=named.replace(".", r"\.")):
                engine.call("init_weight_transfer_engine", place)
        assert tokens(engine, PROMPTS[:2]) == before
    refuses_options(engine)
    assert tokens(engine, PROMPTS[:2]) == before


def refuses_options(engine: Process) -> None:
    """What vLLM may have been started with: set in its configuration, as a CPU does not start so."""
    layer = "model.layers.0.self_attn.qkv_proj"
    with wc.Controller("127.0.0.1:0", settings=FAST) as controller:
        place = {"controller": controller.address, "settings": FAST}
        for section, name in (("parallel_config", "enable_eplb"), ("model_config", "enable_sleep_mode")):
            flag = "--" + name.replace("_", "-")
            with pytest.raises(RemoteError, match=f"{name}.*start vLLM without {flag}"):
                engine.call("refuse", section, name, True, place)
        with wc.Trainer(controller.address, settings=FAST) as trainer:
            trainer.register(make_model("dense"))
            with pytest.raises(RemoteError, match=f"{layer}: quantisation by NewMethod"):
                engine.call("plant_method", layer, place)
            half_way = "model.layers.1.mlp.down_proj"
            with pytest.raises(RemoteError, match=rf"{half_way}\.weight: the engine's loader .*planted"):
                engine.call("plant_loader", half_way, "weight", place)
            with (
                wc.Inference(controller.address, engine="e", rank=0, world_size=2, settings=FAST),
                pytest.raises(RemoteError, match="gives world_size 1 for engine e; those already here say 2"),
            ):
                engine.call("init_weight_transfer_engine", {**place, "engine": "e"})


def trainer(controller: str, first: int, count: int, step: Any, folder: str) -> None:
    """A process: publishes `count` versions, each when `step` says so; the checkpoints are in `folder`."""
    model = make_model("dense")
    with wc.Trainer(controller, settings=FAST) as one:
        one.register(model)
        for version in range(first, first + count):
            step.acquire()
            train(model, version)
            save(model, pathlib.Path(folder) / f"v{version}")
            published = one.publish(version)
            with contextlib.suppress(wc.Error):
                published.wait(60)
        time.sleep(60)


@pytest.mark.parametrize("landing", ["spare", pytest.param("live", marks=pytest.mark.long)])
def test_a_trainer_killed_after_its_first_byte(engine: Process, tmp_path: pathlib.Path, landing: str) -> None:
    """The old version's tokens, and the next trainer's version. Landing live: only the latter."""
    relay, step = Relay(), _spawn.Semaphore(1)
    with wc.Controller("127.0.0.1:0", settings=FAST) as controller, contextlib.ExitStack() as stack:
        stack.callback(relay.close)

        def start(first: int, count: int) -> Any:
            arguments = (controller.address, first, count, step, str(tmp_path))
            process = _spawn.Process(target=trainer, args=arguments)
            process.start()
            stack.callback(process.kill)
            return process

        killed = start(1, 2)
        settings = {**relay.settings, **FAST}
        place = {"controller": controller.address, "settings": settings, "landing": landing}
        engine.call("init_weight_transfer_engine", place)
        untrained = tokens(engine)
        update(engine)
        served = tokens(engine)
        assert served != untrained

        relay.stop_after(100_000)
        step.release()
        if landing == "spare":
            assert relay.stopped.wait(60)
            assert tokens(engine, PROMPTS[:1], 4) == [served[0][:4]]
        engine.call("start_weight_update")
        engine.send("update_weights", {})
        assert relay.stopped.wait(60)
        # A part of version 2 is in the engine's process. Its trainer is killed before a lease has passed.
        killed.kill()
        with pytest.raises(RemoteError, match="trainer 0"):
            engine.result()
        if landing == "spare":
            assert tokens(engine) == served

        relay.go_on()
        step.release()
        start(3, 1)
        update(engine)
        answers = tokens(engine)
        engine.end()
    fresh = Process(tmp_path, "fresh", fresh=True).ready()
    try:
        expected = fresh.call("answers", str(tmp_path / "v3"), PROMPTS, TOKENS, timeout=600)
        assert answers == [one["tokens"] for one in expected]
    finally:
        fresh.end()
