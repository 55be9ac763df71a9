"""`vllm serve` is killed in each phase of an update, and started again by the same name."""

from __future__ import annotations

import contextlib
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import weightcast as wc
from relay import Relay
from vllm_models import PROMPTS, make_model, save, train
from vllm_processes import Process
from vllm_server import Server, write_tokenizer
from weightcast.torch import checkpoint_shards

FAST = {"lease": 10, "connect_timeout": 20, "timeout": 120}
WAIT = 300  # Seconds, on a machine that others use as well.
# Granted: no byte may reach it. Transfer: a part has. Ready: all have, nothing has switched. Processing: some
# of its layers have. Serving: it has answered.
PHASES = ["granted", "transfer", "ready", "processing", "serving"]


class Other:
    """An engine of the same job that is not vLLM; each version that it serves is compared."""

    def __init__(self, controller: str, model: Any) -> None:
        self._worker = wc.Inference(controller, engine="other", settings=FAST)
        # In BF16, as vLLM has them: the engines of a job hold the same dtypes.
        self._tensors = {
            name: torch.zeros_like(one, dtype=torch.bfloat16) for name, one in model.state_dict().items()
        }
        self._worker.register(self._tensors, landing="shadow")
        self._over = threading.Event()
        self._changed = threading.Condition()
        self.sums: dict[int, float] = {}
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def has(self, version: int, model: Any) -> bool:
        """Waits for the version, and says whether it is the model's weights."""
        with self._changed:
            assert self._changed.wait_for(lambda: version in self.sums, WAIT), self.sums
        sent = {name: one.bfloat16() for name, one in model.state_dict().items()}
        return self.sums[version] == _sum(sent)

    def _serve(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(wc.Error):
                version = self._worker.wait(timeout=0.2)
                with self._changed:
                    self.sums[version.number] = _sum(self._tensors)
                    self._changed.notify_all()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._worker.close()


def _sum(tensors: Any) -> float:
    return sum(float(one.detach().double().sum()) for one in tensors.values())


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as closes:
        yield closes


def start(folder: pathlib.Path, controller: str, phase: str, relay: Relay | None) -> Server:
    plugin = folder / "names" / "phases-1.0.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: phases\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\nphases = phases:register\n")
    settings = {f"WEIGHTCAST_{name}".upper(): str(value) for name, value in FAST.items()}
    if relay is not None:
        settings |= {f"WEIGHTCAST_{name}".upper(): value for name, value in relay.settings.items()}
    return Server(
        folder, folder / "v0", controller, "rollout-0", log=phase or "last", VLLM_PLUGINS="weightcast,phases",
        PHASE_HOLD=phase, PHASE_FILE=str(folder / (phase or "last")), **settings,
    )  # fmt: skip


def reach(phase: str, folder: pathlib.Path, relay: Relay, publish: Any, server: Server) -> None:
    """Publishes, and returns when the server is in this phase of the update."""
    (folder / f"{phase}.armed").touch()
    if phase in ("granted", "transfer"):
        relay.stop_after(1 if phase == "granted" else 100_000)
        publish()
        assert relay.stopped.wait(WAIT)
    elif phase == "serving":
        publish().wait(WAIT)
        assert server.ready()[0] == 200
    else:
        publish()
        deadline = time.monotonic() + WAIT
        while not (folder / f"{phase}.reached").exists():
            assert time.monotonic() < deadline, server.log.read_text(errors="replace")[-4000:]
            time.sleep(0.01)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_server_killed_in_each_phase(stack: contextlib.ExitStack, tmp_path: pathlib.Path) -> None:
    model = make_model("dense")
    save(model, tmp_path / "v0")
    write_tokenizer(tmp_path / "v0")
    controller = stack.enter_context(wc.Controller("127.0.0.1:0", settings=FAST)).address
    trainer = stack.enter_context(wc.Trainer(controller, settings=FAST))
    trainer.register(lambda: checkpoint_shards(model))
    other = Other(controller, model)
    stack.callback(other.close)

    def publish(version: int) -> wc.Update:
        train(model, version)
        return trainer.publish(version, hold=True)

    publish(1).wait(WAIT)
    for version, phase in enumerate(PHASES, 2):
        relay = Relay()
        stack.callback(relay.close)
        server = start(tmp_path, controller, phase, relay)
        stack.callback(server.end)
        server.up()
        assert server.admitted() == version - 1, phase
        reach(phase, tmp_path, relay, lambda version=version: publish(version), server)
        server.end()
        assert other.has(version, model), phase
    last = start(tmp_path, controller, "", None)
    stack.callback(last.end)
    last.up()
    assert last.admitted() == version
    got = [last.stream(prompt, 16) for prompt in PROMPTS]
    last.end()
    save(model, tmp_path / "last-version")
    fresh = Process(tmp_path, "fresh", fresh=True)
    stack.callback(fresh.end)
    want = fresh.ready().call("answers", str(tmp_path / "last-version"), PROMPTS, 16, timeout=400)
    assert got == [one["tokens"] for one in want]
