"""What controller and workers tell Prometheus."""

import pathlib
import socket
import urllib.error
import urllib.request

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_an_update_is_counted_everywhere():
    port = free_port()
    settings = {**FAST, "metrics": f"127.0.0.1:{port}"}
    weights, live = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    with (
        wc.Controller("127.0.0.1:0", settings=settings) as controller,
        wc.Trainer(controller.address, settings=settings) as trainer,
        wc.Inference(controller.address, engine="e", settings=settings) as engine,
    ):
        trainer.register({"w": weights})
        engine.register({"w": live})
        update = trainer.publish(7)
        engine.wait(timeout=60)
        update.wait(60)
        found = scrape(port)
        prefix = "weightcast_"
        assert found[prefix + 'control_version{model="policy"}'] == 7
        assert found[prefix + 'control_engine_version{model="policy",engine="e"}'] == 7
        assert found[prefix + 'control_engine_state{model="policy",engine="e",state="SERVING"}'] == 1
        assert found[prefix + 'control_workers{model="policy",role="trainer"}'] == 1
        assert found[prefix + 'inference_version{model="policy",engine="e",rank="0"}'] == 7
        assert found[prefix + 'trainer_version{model="policy",rank="0"}'] == 7
        for name in ("control_bytes_total", "inference_bytes_total", "sender_bytes_total"):
            assert found[prefix + name] >= 4000, name
        for name in ("control_updates_committed_total", "control_update_seconds_count"):
            assert found[prefix + name] >= 1, name
        assert found[prefix + "inference_writing_seconds_sum"] > 0
        assert found[prefix + 'control_update_seconds_bucket{le="+Inf"}'] >= 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
    with pytest.raises(urllib.error.URLError):
        scrape(port)


def test_every_metric_is_explained_there_and_in_the_docs():
    port = free_port()
    settings = {**FAST, "metrics": f"127.0.0.1:{port}"}
    weights = np.arange(10, dtype=np.float32)
    with (
        wc.Controller("127.0.0.1:0", settings=settings) as controller,
        wc.Trainer(controller.address, settings=settings) as trainer,
        wc.Inference(controller.address, engine="e", settings=settings) as engine,
    ):
        trainer.register({"w": weights})
        engine.register({"w": np.zeros(10, np.float32)})
        update = trainer.publish(1)
        engine.wait(timeout=60)
        update.wait(60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    families = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert {f"weightcast_{name}" for name in ("control_update_seconds", "sender_bytes_total")} <= families
    assert families == {line.split()[2] for line in lines if line.startswith("# HELP ")}
    docs = (ROOT / "docs" / "operations.md").read_text()
    missing = {name for name in families if name.removeprefix("weightcast_") not in docs}
    assert not missing


def test_an_address_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(wc.Unavailable, match=rf"127\.0\.0\.1:{port}"):
            wc.Controller("127.0.0.1:0", settings={"metrics": f"127.0.0.1:{port}"})
