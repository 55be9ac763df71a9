"""SGLang's release on the CPU takes versions from trainers while it has requests in flight.

The oracle is a fresh server on a checkpoint that was saved from the trainer, never the server's own reload.
"""

from __future__ import annotations

import copy
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import weightcast as wc
from oracle import distance, transformers_logprobs
from sglang_server import Flight, Server
from vllm_models import PROMPTS, make_model, save, train
from weightcast.sglang import Servers
from weightcast.torch import checkpoint_shards

UPDATES = 3
TOKENS = 16
LONG = 100  # Tokens of a request that is in flight through an update.
# Of log-probabilities, the median over the tokens: SGLang computes in BF16. Other versions are further off.
TOLERANCE = 0.15
FURTHER = 1.0


@dataclass(frozen=True)
class Case:
    kind: str
    tp: int

    def __str__(self) -> str:
        return f"{self.kind}-tp{self.tp}"


CASES = [Case("dense", 1), Case("moe", 2)]


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Any]:
    started: list[Server] = []

    def make(log: str, model: pathlib.Path, tp: int, **more: str) -> Server:
        started.append(Server(tmp_path / f"{log}.log", model, tp=tp, **more))
        return started[-1].ready()

    yield make
    for server in started:
        server.end()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_updates_with_requests_in_flight(
    case: Case, controller: str, start: Any, tmp_path: pathlib.Path
) -> None:
    model = make_model(case.kind)
    save(model, tmp_path / "v0")
    engine = start(
        "engine", tmp_path / "v0", case.tp, WEIGHTCAST_CONTROLLER=controller, WEIGHTCAST_COMPARE="1"
    )
    servers = Servers(engine.url)
    with wc.Trainer(controller) as trainer:
        trainer.register(lambda: checkpoint_shards(model))
        for version in range(1, UPDATES + 1):
            before = copy.deepcopy(model)
            train(model, version)
            flight = Flight(engine, PROMPTS[:3], LONG)
            assert flight.started(), engine.tail()
            with servers.updating():
                update = trainer.publish(version, label=f"step-{version}")
            stats = update.wait(60)
            assert all(one.compared for one in stats.receivers)
            labels = {f"step-{version - 1}" if version > 1 else "default", f"step-{version}"}
            for answer in flight.end():
                assert len(answer["tokens"]) == LONG and set(answer["versions"]) == labels
            one = engine.generate(PROMPTS[0], TOKENS)
            off = distance(one["logprobs"], transformers_logprobs(model, PROMPTS[0], one["tokens"]))
            further = distance(one["logprobs"], transformers_logprobs(before, PROMPTS[0], one["tokens"]))
            print(f"{case} version {version}: {off:.3f} from its weights, {further:.3f} from those before")
            assert off < TOLERANCE and further > FURTHER, f"version {version}"
            assert one["versions"] == [f"step-{version}"]
        got = engine.tokens(PROMPTS, TOKENS)
        sleep_and_wake(engine, servers, got)
    engine.end()
    save(model, tmp_path / "last")
    fresh = start("fresh", tmp_path / "last", case.tp)
    want = [fresh.generate(prompt, TOKENS) for prompt in PROMPTS]
    print(f"{case}: smallest top-1 margin {min(one['margin'] for one in want):.4f}")
    assert got == [one["tokens"] for one in want]
    with pytest.raises(wc.InvalidArgument, match="runs without weightcast"):
        Servers(fresh.url).begin()
    assert fresh.tokens(PROMPTS[:1], TOKENS) == got[:1], "it did not go on after the refusal"


def sleep_and_wake(engine: Server, servers: Servers, tokens: list[list[int]]) -> None:
    # Waits until it is idle, as SGLang's scheduler ends if it is to release memory before.
    engine.post("/flush_cache?timeout=120", {})
    engine.post("/release_memory_occupation", {"tags": ["weights"]})
    with pytest.raises(wc.Error, match="resume_memory_occupation"):
        servers.begin()
    engine.post("/resume_memory_occupation", {"tags": ["weights"]})
    assert engine.tokens(PROMPTS, TOKENS) == tokens
