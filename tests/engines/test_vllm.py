"""vLLM's CPU release takes versions from trainers while it has requests in flight.

The oracle is a fresh engine on a checkpoint that was saved from the trainers, never the engine's own reload.
"""

from __future__ import annotations

import copy
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import weightcast as wc
from oracle import distance, transformers_logprobs
from trainers import Trainers
from vllm_models import PROMPTS, make_model, save
from vllm_processes import Client, Process, RemoteError

UPDATES = 20
TOKENS = 16
# Of log-probabilities, the median over the tokens: vLLM computes in BF16, and where two experts are near a
# tie a token may take the other one. Other versions are further off.
TOLERANCE = 0.15
FURTHER = 1.0


@dataclass(frozen=True)
class Case:
    kind: str
    tp: int
    trainers: int

    def __str__(self) -> str:
        return f"{self.kind}-tp{self.tp}-{self.trainers}trainers"


CASES = [Case("dense", 1, 1), Case("moe", 1, 2)]


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def controller() -> Iterator[str]:
    with wc.Controller("127.0.0.1:0") as running:
        yield running.address


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Any]:
    """Starts processes; `ready()` waits for one."""
    started: list[Process] = []

    def make(log: str, **options: Any) -> Process:
        started.append(Process(tmp_path, log, **options))
        return started[-1]

    yield make
    for process in started:
        process.end()


def test_updates_with_requests_in_flight(
    case: Case, controller: str, start: Any, tmp_path: pathlib.Path
) -> None:
    save(make_model(case.kind), tmp_path / "v0")
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True, tp=case.tp)
    engine.ready()
    trainers = Trainers(case.kind, case.trainers, controller, Client(engine), tmp_path)
    compared = sorted({*random.Random(str(case)).sample(range(1, UPDATES), 3), UPDATES})
    answers, before = {}, make_model(case.kind)
    for version in range(1, UPDATES + 1):
        trainers.train(version)
        engine.call("begin", PROMPTS[:3], 12)
        assert engine.call("steps", 4) == 3, "the requests ended before the update"
        trainers.send()
        assert engine.call("end") == 3 * 12
        whole = trainers.whole()
        [one] = engine.call("generate", PROMPTS[:1], TOKENS)
        expected = transformers_logprobs(whole, PROMPTS[0], one["tokens"])
        off = distance(one["logprobs"], expected)
        others = transformers_logprobs(before, PROMPTS[0], one["tokens"])
        further = distance(one["logprobs"], others)
        print(f"{case} version {version}: {off:.3f} from its weights, {further:.3f} from those before")
        assert off < TOLERANCE and further > FURTHER, f"version {version}"
        before = copy.deepcopy(whole)
        if version in compared:
            save(whole, tmp_path / f"v{version}")
            answers[version] = engine.call("generate", PROMPTS, TOKENS)
    trainers.close()
    engine.end()
    fresh = start("fresh", fresh=True, tp=case.tp).ready()
    for version, got in answers.items():
        want = fresh.call("answers", str(tmp_path / f"v{version}"), PROMPTS, TOKENS, timeout=240)
        assert [one["tokens"] for one in got] == [one["tokens"] for one in want], f"version {version}"
        print(f"{case} version {version}: smallest top-1 margin {min(one['margin'] for one in want):.4f}")
    assert len({str(got) for got in answers.values()}) == len(answers)


def test_another_model_is_refused_and_the_engine_goes_on(
    controller: str, start: Any, tmp_path: pathlib.Path
) -> None:
    save(make_model("dense"), tmp_path / "v0")
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True).ready()
    before = engine.call("generate", PROMPTS[:1], 4)
    with pytest.raises(RemoteError, match=r"mlp\.gate.*do the trainers train the same model"):
        Trainers("moe", 1, controller, Client(engine), tmp_path)
    assert engine.call("generate", PROMPTS[:1], 4) == before


def test_processing_that_fails_half_way(controller: str, start: Any, tmp_path: pathlib.Path) -> None:
    """Never an answer of two versions; the next version mends it."""
    save(make_model("dense"), tmp_path / "v0")
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True).ready()
    trainers = Trainers("dense", 1, controller, Client(engine), tmp_path)

    def fails_at(version: int) -> None:
        trainers.train(version)
        engine.call("plant", 5)
        with pytest.raises(RemoteError, match="planted"):
            trainers.send()
        engine.call("plant", -1)

    fails_at(1)
    trainers.train(2)
    trainers.send()
    [one] = engine.call("generate", PROMPTS[:1], TOKENS)
    expected = transformers_logprobs(trainers.model, PROMPTS[0], one["tokens"])
    assert distance(one["logprobs"], expected) < TOLERANCE
    fails_at(3)
    with pytest.raises(RemoteError, match="no whole version"):
        engine.call("generate", PROMPTS[:1], TOKENS)
    trainers.close()
