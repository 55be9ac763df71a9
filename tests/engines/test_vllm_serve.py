"""`vllm serve`: the front end leads each update; trainers make no call to vLLM."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

import weightcast as wc
import weightcast.torch
from documented import block
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process
from vllm_server import Flight, Server, write_tokenizer

TOKENS = 1800  # Enough that three updates end before them, also on a busy machine.
POSITIONS = 2048


def same_as_fresh(got: list[list[int]], model: Any, started: list[Any], folder: pathlib.Path) -> bool:
    save(model, folder / "last")
    fresh = Process(folder, "fresh", fresh=True)
    started.append(fresh)
    want = fresh.ready().call("answers", str(folder / "last"), PROMPTS, 16, timeout=600)
    return got == [one["tokens"] for one in want]


def test_streams_go_on_through_updates(
    controller: str, started: list[Any], tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    """By the documented lines of a trainer, which take the controller from its environment."""
    monkeypatch.setenv("WEIGHTCAST_CONTROLLER", controller)
    model = make_model("dense", positions=POSITIONS)
    save(model, tmp_path / "v0")
    write_tokenizer(tmp_path / "v0")
    more = ["--max-model-len", str(POSITIONS)]
    server = Server(tmp_path, tmp_path / "v0", controller, "rollout-0", options=more)
    started.append(server)
    server.up()
    status, answer = server.ready()
    assert status == 503 and answer["version"] is None and answer["reason"]
    train(model, 1)
    names = {"wc": wc, "weightcast": wc, "model": model, "rank": 0, "world": 1, "step": 1}
    exec(block("vLLM", "python", 1), names)
    with names["trainer"] as trainer:
        assert server.ready() == (200, {"ready": True, "version": 1, "label": "", "reason": ""})
        flight = Flight(server, PROMPTS[:6], TOKENS)
        for version in (2, 3, 4):
            assert flight.reached(10 * version), flight.results
            train(model, version)
            trainer.publish(version, label=f"step-{version}").wait(60)
            assert max(flight.progress.values()) < TOKENS, "the requests ended before the update"
        results = flight.end()
        assert [len(results[number]) for number in range(6)] == [TOKENS] * 6, results
        assert server.ready()[1]["label"] == "step-4"
        got = [server.stream(prompt, 16) for prompt in PROMPTS]
    server.end()
    assert same_as_fresh(got, model, started, tmp_path)


@pytest.mark.long
def test_a_trainer_that_calls_the_server(controller: str, started: list[Any], tmp_path: pathlib.Path) -> None:
    """By the documented lines, with vLLM's own client and its developer routes."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

    model = make_model("dense")
    save(model, tmp_path / "v0")
    write_tokenizer(tmp_path / "v0")
    server = Server(tmp_path, tmp_path / "v0", "", "server", leads=False, VLLM_SERVER_DEV_MODE="1")
    started.append(server)
    server.up()
    steps = iter(range(1, 4))
    names = {
        "client": HTTPVLLMWeightSyncClient(server.url), "model": model, "rank": 0, "world": 1, "steps": 3,
        "train_one_step": lambda model: train(model, next(steps)),
    }  # fmt: skip
    exec(block("vLLM", "python").replace("127.0.0.1:29750", controller), names)
    got = [server.stream(prompt, 16) for prompt in PROMPTS]
    names["engine"].shutdown()
    server.end()
    assert same_as_fresh(got, model, started, tmp_path)
