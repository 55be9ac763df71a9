"""TRL's AsyncGRPO trainer brings its weights to a vLLM server, which leads each update itself."""

from __future__ import annotations

import pathlib
import queue
from typing import Any

import datasets
import transformers
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer

import weightcast as wc
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process
from vllm_server import Server, write_tokenizer
from weightcast.trl import WeightTransfer

TOKENS = 16


class Worker:
    """Makes no rollouts, and notes what the trainer tells it."""

    def __init__(self, calls: list[str]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self._calls = calls

    def start(self) -> None:
        self._calls.append("start")

    def stop(self) -> None:
        self._calls.append("stop")

    def update_model_version(self, model_version: int) -> None:
        self._calls.append(f"version {model_version}")

    def check_health(self, stale_after_s: float) -> None:
        pass


class Noted(WeightTransfer):
    """Notes the calls, and what the server serves when each returns."""

    def __init__(self, controller: str, calls: list[str], server: Server) -> None:
        super().__init__(controller, timeout=120)
        self._calls, self._server = calls, server

    def _note(self, call: str) -> None:
        self._calls.append(f"{call} {self._server.ready()[1]['version']}")

    def pause(self) -> None:
        super().pause()
        self._note("pause")

    def send_weights(self, iterator: Any) -> None:
        super().send_weights(iterator)
        self._note("send")

    def resume(self) -> None:
        super().resume()
        self._note("resume")


def make_trainer(model: pathlib.Path, transfer: Any, worker: Any, folder: pathlib.Path) -> Any:
    arguments = AsyncGRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, dtype="float32", report_to=[], max_steps=3,
        per_device_train_batch_size=1,
    )  # fmt: skip
    return AsyncGRPOTrainer(
        model=str(model),
        args=arguments,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=datasets.Dataset.from_dict({"prompt": [[{"role": "user", "content": "w3"}]]}),
        processing_class=transformers.AutoTokenizer.from_pretrained(model),
        rollout_worker=worker,
        weight_transfer=transfer,
    )


def test_three_syncs(started: list[Any], tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    # TRL asks CUDA for this, to report utilisation.
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    save(make_model("dense"), tmp_path / "v0")
    write_tokenizer(tmp_path / "v0")
    calls: list[str] = []
    answers = []
    with wc.Controller("127.0.0.1:0") as controller:
        server = Server(tmp_path, tmp_path / "v0", controller.address, "rollout-0")
        started.append(server)
        server.up()
        transfer = Noted(controller.address, calls, server)
        trainer = make_trainer(tmp_path / "v0", transfer, Worker(calls), tmp_path / "out")
        transfer.init_weight_transfer()
        for version in (1, 2, 3):
            train(trainer.model, version)
            trainer._sync_weight()
            assert server.ready() == (200, {"ready": True, "version": version, "label": "", "reason": ""})
            answers.append([server.stream(prompt, TOKENS) for prompt in PROMPTS])
            whole = make_model("dense")
            whole.load_state_dict(trainer.model.state_dict())
            save(whole, tmp_path / f"v{version}")
        transfer.destroy()
    assert calls == [
        "pause None", "send 1", "resume 1", "version 1",
        "pause 1", "send 2", "resume 2", "version 2",
        "pause 2", "send 3", "resume 3", "version 3",
    ]  # fmt: skip
    assert len({str(one) for one in answers}) == 3
    server.end()
    fresh = Process(tmp_path, "fresh", fresh=True)
    started.append(fresh)
    fresh.ready()
    for version, got in enumerate(answers, 1):
        want = fresh.call("answers", str(tmp_path / f"v{version}"), PROMPTS, TOKENS, timeout=600)
        assert got == [one["tokens"] for one in want], f"version {version}"
