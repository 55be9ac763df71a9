"""A policy and its draft are updated together: the draft goes on guessing what the policy says."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import weightcast as wc
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process
from vllm_server import Server, write_tokenizer
from weightcast.torch import checkpoint_shards

TOKENS = 16
GUESSES = 2
GROUP = {"policy": 1, "draft": 1}


def guessed(server: Server) -> tuple[int, int]:
    """How many tokens the draft has guessed, and how many of them the policy has taken."""
    text = server.text("/metrics")
    found = [
        float(re.search(rf"^vllm:spec_decode_num_{name}_tokens_total{{.*}} (\S+)$", text, re.MULTILINE)[1])
        for name in ("draft", "accepted")
    ]
    return int(found[0]), int(found[1])


@pytest.mark.long
def test_policy_and_draft_change_together(started: list[Any], tmp_path: pathlib.Path) -> None:
    """Both have the same weights, so every guess is right; with a draft of another version few are."""
    models = {name: make_model("dense") for name in GROUP}
    for name, model in models.items():
        save(model, tmp_path / name)
        write_tokenizer(tmp_path / name)
    with wc.Controller("127.0.0.1:0") as controller:
        server = Server(
            tmp_path, tmp_path / "policy", controller.address, "rollout-0",
            options=["--speculative-config",
                     f'{{"method": "draft_model", "model": "{tmp_path / "draft"}", '
                     f'"num_speculative_tokens": {GUESSES}}}'],
            WEIGHTCAST_VLLM_DRAFT="draft",
        )  # fmt: skip
        started.append(server)
        server.up()
        trainers = {name: wc.Trainer(controller.address, model=name, commit_group=GROUP) for name in GROUP}
        try:
            for name, trainer in trainers.items():
                trainer.register(lambda name=name: checkpoint_shards(models[name]))
            for version in (1, 2, 3):
                for model in models.values():
                    train(model, version)
                updates = [trainer.publish(version) for trainer in trainers.values()]
                for update in updates:
                    update.wait(120)
                assert server.admitted() == version
                before = guessed(server)
                got = [server.stream(prompt, TOKENS) for prompt in PROMPTS]
                guesses, right = (now - had for now, had in zip(guessed(server), before, strict=True))
                assert guesses > 0 and right > 0.9 * guesses, f"version {version}: {right} of {guesses}"
            # The draft alone publishes nothing that is served: the group waits for the policy.
            train(models["draft"], 4)
            late = trainers["draft"].publish(4)
            with pytest.raises(wc.TimedOut):
                late.wait(2)
            assert server.ready()[1]["version"] == 3
            late.cancel()
        finally:
            for trainer in trainers.values():
                trainer.close()
    server.end()
    save(models["policy"], tmp_path / "last")
    fresh = Process(tmp_path, "fresh", fresh=True)
    started.append(fresh)
    want = fresh.ready().call("answers", str(tmp_path / "last"), PROMPTS, TOKENS, timeout=600)
    assert got == [one["tokens"] for one in want]
