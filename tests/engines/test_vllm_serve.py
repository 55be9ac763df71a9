"""`vllm serve`: the front end leads each update; trainers make no call to vLLM."""

from __future__ import annotations

import pathlib
from typing import Any

import weightcast as wc
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process
from vllm_server import Flight, Server, write_tokenizer
from weightcast.torch import checkpoint_shards

TOKENS = 200


def test_streams_go_on_through_updates(controller: str, started: list[Any], tmp_path: pathlib.Path) -> None:
    model = make_model("dense")
    save(model, tmp_path / "v0")
    write_tokenizer(tmp_path / "v0")
    server = Server(tmp_path, tmp_path / "v0", controller, "rollout-0")
    started.append(server)
    server.up()
    status, answer = server.ready()
    assert status == 503 and answer["version"] is None and answer["reason"]
    with wc.Trainer(controller) as trainer:
        trainer.register(lambda: checkpoint_shards(model))
        train(model, 1)
        trainer.publish(1).wait(60)
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
    save(model, tmp_path / "v4")
    fresh = Process(tmp_path, "fresh", fresh=True)
    started.append(fresh)
    want = fresh.ready().call("answers", str(tmp_path / "v4"), PROMPTS, 16, timeout=600)
    assert got == [one["tokens"] for one in want]
