"""What SGLang answers when trainers are of another model, or are killed in the middle of an update."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import weightcast as wc
from documented import block
from oracle import distance, transformers_logprobs
from relay import Relay
from sglang_server import HTTPError, Server
from vllm_models import PROMPTS, make_model, save, train
from weightcast.sglang import Servers

TOKENS = 16
TOLERANCE = 0.15
FAST = {"lease": 3, "connect_timeout": 5}

_spawn = multiprocessing.get_context("spawn")


@dataclass
class Job:
    controller: str
    relay: Relay  # Before the engine.
    engine: Server
    servers: Servers


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("sglang")
    save(make_model("dense"), folder / "v0")
    with wc.Controller("127.0.0.1:0", settings=FAST) as controller, contextlib.ExitStack() as stack:
        relay = Relay()
        stack.callback(relay.close)
        settings = {"controller": controller.address, "engine": "rollout-0", **FAST, **relay.settings}
        env = {f"WEIGHTCAST_{name.upper()}": str(value) for name, value in settings.items()}
        engine = Server(folder / "engine.log", folder / "v0", **env)
        stack.callback(engine.end)
        yield Job(controller.address, relay, engine.ready(), Servers(engine.url))


def test_what_does_not_fit_is_named_and_the_engine_goes_on(job: Job) -> None:
    before = job.engine.tokens(PROMPTS[:2], TOKENS)
    name = "model.layers.1.mlp.up_proj.weight"
    model = {key: tensor.detach() for key, tensor in make_model("dense").state_dict().items()}
    other = {key: tensor.detach() for key, tensor in make_model("moe").state_dict().items()}
    for tensors, named in (
        ({**model, name: model[name].repeat(2, 1)}, name),  # SGLang's loader would take the first half.
        ({key: one for key, one in model.items() if key != name}, "model.layers.1.mlp.gate_up_proj.weight"),
        ({**model, "model.layers.1.mlp.extra.weight": model[name]}, "model.layers.1.mlp.extra.weight"),
        (other, "qkv_proj.bias of SGLang's model"),
    ):
        with wc.Trainer(job.controller, settings=FAST) as trainer:
            trainer.register(tensors)
            with pytest.raises(wc.Error, match=named.replace(".", r"\.")):
                job.servers.begin()
        assert job.engine.tokens(PROMPTS[:2], TOKENS) == before


def train_and_publish(controller: str, first: int, count: int, registered: Any, step: Any) -> None:
    """A process: publishes `count` versions, each when `step` says so."""
    model = make_model("dense")
    for version in range(1, first):
        train(model, version)
    with wc.Trainer(controller, settings=FAST) as one:
        one.register(model)
        registered.set()
        for version in range(first, first + count):
            step.acquire()
            train(model, version)
            published = one.publish(version)
            with contextlib.suppress(wc.Error):
                published.wait(60)
        time.sleep(60)


def test_a_trainer_killed_after_its_first_byte(job: Job) -> None:
    """No request is answered until the next trainer's version has landed; then all of it is there."""
    step = _spawn.Semaphore(0)
    with contextlib.ExitStack() as stack:

        def start(first: int, count: int) -> Any:
            registered = _spawn.Event()
            process = _spawn.Process(
                target=train_and_publish, args=(job.controller, first, count, registered, step)
            )
            process.start()
            stack.callback(process.kill)
            assert registered.wait(600)
            return process

        killed = start(1, 2)
        with job.servers.updating():
            step.release()
        holds(job.engine, 1)

        threads = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        waiting = threads.submit(job.engine.generate, PROMPTS[1], 200)  # In flight through all of it.
        job.servers.begin()
        job.relay.stop_after(100_000)
        step.release()
        update = threads.submit(job.servers.end)
        assert job.relay.stopped.wait(60)
        killed.kill()  # A part of version 2 is in the live parameters.
        with pytest.raises(wc.Error, match="trainer 0"):
            update.result(300)
        for answer in (waiting.result, lambda: job.engine.generate(PROMPTS[0], 4)):
            with pytest.raises(HTTPError, match="no whole version") as refused:
                answer()
            assert refused.value.status == 503

        job.relay.go_on()
        start(3, 1)
        with job.servers.updating():
            step.release()
        holds(job.engine, 3)


def test_trainers_that_come_with_another_model(job: Job) -> None:
    """The joined engine goes on with what it has, and takes the next version of its own model."""
    before = job.engine.tokens(PROMPTS[:1], TOKENS)
    name = "model.layers.1.mlp.up_proj.weight"
    model = {key: tensor.detach() for key, tensor in make_model("dense").state_dict().items()}
    with wc.Trainer(job.controller, settings=FAST) as other:
        other.register({**model, name: model[name].repeat(2, 1)})
        with pytest.raises(wc.Error, match=name.replace(".", r"\.")), job.servers.updating():
            other.publish(1)
    assert job.engine.tokens(PROMPTS[:1], TOKENS) == before
    same = make_model("dense")
    train(same, 1)
    with wc.Trainer(job.controller, settings=FAST) as trainer:
        trainer.register(same)
        with job.servers.updating():
            update = trainer.publish(1)
        update.wait(60)
        holds(job.engine, 1)


def test_the_documented_loop(job: Job, monkeypatch: Any) -> None:
    """The lines of docs/adapters.md as they are, but for the server's address."""
    for name, value in {"controller": job.controller, **FAST}.items():
        monkeypatch.setenv(f"WEIGHTCAST_{name.upper()}", str(value))
    steps = iter(range(1, 3))
    names = {
        "wc": wc, "weightcast": wc, "model": make_model("dense"), "rank": 0, "world": 1, "steps": 2,
        "train_one_step": lambda model: train(model, next(steps)),
    }  # fmt: skip
    exec(block("SGLang", "python").replace("http://host:30000", job.engine.url), names)
    names["trainer"].close()
    holds(job.engine, 2, "1")


def holds(engine: Server, version: int, label: str = "") -> None:
    """Whether it serves the weights of this step, under this label."""
    model = make_model("dense")
    for step in range(1, version + 1):
        train(model, step)
    one = engine.generate(PROMPTS[0], TOKENS)
    assert one["versions"] == [label or str(version)]
    assert distance(one["logprobs"], transformers_logprobs(model, PROMPTS[0], one["tokens"])) < TOLERANCE
