"""vLLM's adapter with a model in the memory of a GPU, of the fake driver (tests/fake_cuda)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vllm_models import make_model, save
from vllm_processes import environment

COPIES = ("cuMemcpyBatchAsync", "cuMemcpyAsync", "cuLaunchKernel")  # How a device is given copies.
HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 60


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models")
    for kind in ("dense", "tied"):
        save(make_model(kind), folder / kind)
    return folder


@pytest.fixture
def alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Calls a function of this file in a process of its own, which has a machine of fake GPUs."""
    monkeypatch.syspath_prepend(HERE.parent / "python")
    from gpus import GPUS, LIBRARY

    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built; run `make test-cpp` first")
    machine = tmp_path / "machine"
    machine.mkdir()
    for name, value in environment(
        tmp_path,
        WEIGHTCAST_CUDA_LIBRARY=os.fspath(LIBRARY),
        FAKE_CUDA=f"dir={machine},gpus={GPUS}",
        WEIGHTCAST_BIND="127.0.0.1",
    ).items():
        monkeypatch.setenv(name, value)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        yield lambda *call: pool.submit(_call, *call).result(10 * PATIENCE)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except BaseException as error:
        raise AssertionError("".join(traceback.format_exception(error))) from None


def lands(folder: str, landing: str, compare: int, special: tuple[str, ...]) -> None:
    from vllm_device import worker

    with worker(folder) as one:
        one.join(landing, compare=compare)
        every = {name for name, _ in one.model.named_parameters()}
        spare = {f"{path}.{name}" for path, names in one.reload.by_layer().items() for name in names}
        assert spare == (set(special) if landing == "live" else every | set(special))
        for version in (1, 2, 3):
            one.trainer.publish(version)
            # The trainer is far ahead of the engine, which takes steps: live, nothing may land.
            assert version == 1 or one.holds(version - 1)
            one.update()
            one.trainer.wait()
            assert one.holds(version) and one.is_in_place()
            assert one.step() == "a step"


@pytest.mark.parametrize("compare", [0, 1])
@pytest.mark.parametrize("landing", ["live", "spare"])
def test_parameters_get_what_the_loader_makes(
    alone: Any, models: pathlib.Path, landing: str, compare: int
) -> None:
    """Landing live, no parameter has a spare copy."""
    alone(lands, str(models / "dense"), landing, compare, ())


def test_tied_parameters_keep_a_spare_copy(alone: Any, models: pathlib.Path) -> None:
    tied = ("model.embed_tokens.weight", "lm_head.weight")
    alone(lands, str(models / "tied"), "live", 1, tied)


def captures(folder: str) -> None:
    from vllm_device import worker

    with worker(folder) as one:
        machine = one.cuda.machine
        before = machine.disturbing()
        one.join("live")
        for version in (1, 2):
            one.trainer.publish(version)
            one.update()
            one.trainer.wait()
        assert machine.disturbing() == before
        assert one.holds(2)


def test_no_call_of_an_update_disturbs_a_capture(alone: Any, models: pathlib.Path) -> None:
    alone(captures, str(models / "dense"))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def loses_its_trainer(folder: str, landing: str) -> None:
    import weightcast as wc
    from device_trainer import GPU as TRAINERS_GPU
    from device_trainer import DeviceTrainer
    from vllm_device import GPU, worker

    with worker(folder) as one, concurrent.futures.ThreadPoolExecutor() as threads:
        one.join(landing)
        one.trainer.publish(1)
        one.update()
        one.trainer.wait()
        with pytest.raises(wc.TimedOut):
            one.update(timeout=0.2)  # Nothing was published, so nothing has landed.
        assert one.holds(1) and one.step() == "a step"

        machine, held = one.cuda.machine, GPU if landing == "live" else TRAINERS_GPU
        one.trainer.write(2)
        update = threads.submit(one.update)
        wait_for(lambda: one.begun == 3)
        machine.hold(held)  # What copies into the parameters, or out of the trainer.
        before = machine.calls(*COPIES)
        one.trainer.publish()
        if landing == "live":
            wait_for(lambda: machine.calls(*COPIES) > before)
        one.trainer.kill()
        machine.release(held)
        with pytest.raises(wc.Error, match="trainer 0"):
            update.result(PATIENCE)
        if landing == "live":
            with pytest.raises(RuntimeError, match="no whole version is in this worker"):
                one.step()
        else:
            assert one.holds(1) and one.step() == "a step"

        one.trainer = DeviceTrainer(one.controller, one.folder)
        one.trainer.publish(3)
        one.update()
        one.trainer.wait()
        assert one.holds(3) and one.is_in_place() and one.step() == "a step"


@pytest.mark.parametrize("landing", ["live", "spare"])
def test_a_trainer_killed_in_the_middle(alone: Any, models: pathlib.Path, landing: str) -> None:
    """Landing live, the worker takes no step until a version has landed; else it has the old version."""
    alone(loses_its_trainer, str(models / "dense"), landing)


class Server:
    """vLLM's client of its engine, for the front end: notes what is asked for, and what is held then."""

    def __init__(self, one: Any) -> None:
        self.vllm_config, self._worker = one.config, one
        self.asked: list[str] = []
        self.resumed = 0

    def _note(self, what: str) -> None:
        version = next((number for number in (1, 2) if self._worker.holds(number)), -1)
        self.asked.append(f"{what}: {version}")

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        engine = self._worker.engine
        if method == "weightcast_join":
            return [await asyncio.to_thread(engine.lead, args[0], None)]
        self._note("switch from")
        await asyncio.to_thread(engine.switch, *args)
        self._note("switched to")
        return [None]

    async def pause_generation(self, mode: str) -> None:
        assert mode == "keep"
        self._note("pause")

    async def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        self._note("flush")
        return reset_running_requests

    async def reset_mm_cache(self) -> None: ...

    async def reset_encoder_cache(self) -> None: ...

    async def update_weight_version(self, version: str) -> None:
        self._note(f"version {version}")

    async def resume_generation(self) -> None:
        self._note("resume")
        self.resumed += 1


def leads(folder: str) -> None:
    from vllm_device import worker

    with worker(folder) as one:
        os.environ |= {
            "WEIGHTCAST_CONTROLLER": one.controller,
            "WEIGHTCAST_ENGINE": "e",
            "WEIGHTCAST_VLLM_LANDING": "live",
        }
        server = Server(one)
        one.config.weight_transfer_config = type("Config", (), {"backend": "weightcast"})()
        asyncio.run(lead(one, server))
        for version, before in ((1, -1), (2, 1)):
            mine = server.asked[: server.asked.index(f"resume: {version}") + 1]
            server.asked = server.asked[len(mine) :]
            assert mine == [
                f"pause: {before}",
                f"switch from: {before}",
                f"switched to: {version}",
                f"flush: {version}",
                f"version {version}: {version}",
                f"resume: {version}",
            ]


async def lead(one: Any, server: Server) -> None:
    from weightcast.vllm.server import FrontEnd

    front = FrontEnd()
    await front.init_state(server, None, None)
    try:
        for version in (1, 2):
            while front._control is None:
                assert not front._joining.done() or front._control is not None, front._why
                await asyncio.sleep(0.01)
            await asyncio.to_thread(one.trainer.publish, version)
            await asyncio.to_thread(one.trainer.wait)
            async with asyncio.timeout(PATIENCE):
                while server.resumed < version:
                    await asyncio.sleep(0.01)
    finally:
        if front._control is not None:
            await asyncio.to_thread(front._control.close)


def test_the_front_end_pauses_before_anything_lands(alone: Any, models: pathlib.Path) -> None:
    alone(leads, str(models / "dense"))


if __name__ == "__main__":
    sys.exit("run by pytest")
