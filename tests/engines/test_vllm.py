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
    landing: str = "spare"

    @property
    def verified(self) -> bool:
        """Whether each update is, too."""
        return self.trainers == 1 or self.kind == "moe"

    def __str__(self) -> str:
        return f"{self.kind}-tp{self.tp}-{self.trainers}trainers-{self.landing}"


CASES = [
    Case("dense", 1, 1, "live"),
    Case("moe", 1, 2),
    Case("tied", 1, 2),
    Case("dense", 2, 2),
    Case("tied", 2, 1),
    Case("moe", 2, 1),
]


# TP=2 makes each of its fresh engines in worker processes, which takes minutes.
@pytest.fixture(
    params=[
        pytest.param(one, marks=[pytest.mark.long] if one.tp > 1 or one.kind == "tied" else [])
        for one in CASES
    ],
    ids=str,
)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def trainers(controller: str, tmp_path: pathlib.Path) -> Iterator[Any]:
    """Makes Trainers, which a test that fails leaves behind."""
    made: list[Trainers] = []

    def make(kind: str, world: int, client: Client, landing: str = "spare") -> Trainers:
        made.append(Trainers(kind, world, controller, client, tmp_path, landing))
        return made[-1]

    yield make
    for one in made:
        one.close()


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
    case: Case, trainers: Any, start: Any, tmp_path: pathlib.Path
) -> None:
    save(make_model(case.kind), tmp_path / "v0")
    env = {"WEIGHTCAST_COMPARE": "1", "WEIGHTCAST_LOG_LEVEL": "info"} if case.verified else {}
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True, tp=case.tp, env=env).ready()
    job = trainers(case.kind, case.trainers, Client(engine), case.landing)
    compared = sorted({*random.Random(str(case)).sample(range(1, UPDATES), 3), UPDATES})
    answers, before = {}, make_model(case.kind)
    for version in range(1, UPDATES + 1):
        job.train(version)
        engine.call("begin", PROMPTS[:3], 12)
        assert engine.call("steps", 4) == 3, "the requests ended before the update"
        job.send()
        assert engine.call("end") == 3 * 12
        whole = job.whole()
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
    job.close()
    engine.end()
    verified = engine.log.count("the forward pass uses what the trainers sent")
    assert verified == (UPDATES * case.tp if case.verified else 0)
    fresh = start("fresh", fresh=True, tp=case.tp).ready()
    for version, got in answers.items():
        want = fresh.call("answers", str(tmp_path / f"v{version}"), PROMPTS, TOKENS, timeout=600)
        assert [one["tokens"] for one in got] == [one["tokens"] for one in want], f"version {version}"
        print(f"{case} version {version}: smallest top-1 margin {min(one['margin'] for one in want):.4f}")
    assert len({str(got) for got in answers.values()}) == len(answers)


def test_another_model_is_refused_and_the_engine_goes_on(
    trainers: Any, start: Any, tmp_path: pathlib.Path
) -> None:
    save(make_model("dense"), tmp_path / "v0")
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True).ready()
    before = engine.call("generate", PROMPTS[:1], 4)
    with pytest.raises(RemoteError, match=r"mlp\.gate.*start the engine with the model of these weights"):
        trainers("moe", 1, Client(engine))
    assert engine.call("generate", PROMPTS[:1], 4) == before


def test_processing_that_fails_half_way(trainers: Any, start: Any, tmp_path: pathlib.Path) -> None:
    """Never an answer of two versions; the next version repairs it."""
    save(make_model("dense"), tmp_path / "v0")
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True).ready()
    job = trainers("dense", 1, Client(engine))

    def fails_at(version: int) -> None:
        job.train(version)
        engine.call("plant", 5)
        with pytest.raises(RemoteError, match="planted"):
            job.send()
        engine.call("plant", -1)

    fails_at(1)
    job.train(2)
    job.send()
    [one] = engine.call("generate", PROMPTS[:1], TOKENS)
    expected = transformers_logprobs(job.model, PROMPTS[0], one["tokens"])
    assert distance(one["logprobs"], expected) < TOLERANCE
    fails_at(3)
    with pytest.raises(RemoteError, match="no whole version"):
        engine.call("generate", PROMPTS[:1], TOKENS)


def test_a_wrong_row_is_found(trainers: Any, start: Any, tmp_path: pathlib.Path) -> None:
    """The setting `compare` looks at what the forward pass uses, which on CPU is a packed copy."""
    save(make_model("dense"), tmp_path / "v0")
    env = {"WEIGHTCAST_COMPARE": "1"}
    engine = start("engine", path=str(tmp_path / "v0"), weightcast=True, env=env).ready()
    job = trainers("dense", 1, Client(engine))
    layer = "model.layers.1.self_attn.qkv_proj"
    for wrong, row, named in ((1, 70, "q_proj.weight[70, 0]"), (3, 130, "k_proj.weight[2, 0]")):
        job.train(wrong)
        engine.call("plant_row", layer, row)
        with pytest.raises(RemoteError) as raised:
            job.send()
        assert f"model.layers.1.self_attn.{named} and 127 more elements" in str(raised.value)
        engine.call("plant_row", layer, -1)
        job.train(wrong + 1)
        job.send()
    [one] = engine.call("generate", PROMPTS[:1], TOKENS)
    expected = transformers_logprobs(job.model, PROMPTS[0], one["tokens"])
    assert distance(one["logprobs"], expected) < TOLERANCE
