"""The live page of a controller that runs in this process. Its server: tests/security/page_test.py."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST


def get(controller: wc.Controller, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{controller.http_address}{path}", timeout=10) as answer:
        return answer.read()


def test_a_controller_in_this_process_serves_its_page():
    with (
        wc.Controller("127.0.0.1:0", settings=FAST, http="127.0.0.1:0") as controller,
        wc.Trainer(controller.address, settings=FAST) as trainer,
        wc.Inference(controller.address, engine="e", settings=FAST) as engine,
    ):
        trainer.register({"w": np.arange(1000, dtype=np.float32)})
        engine.register({"w": np.zeros(1000, np.float32)})
        update = trainer.publish(7)
        engine.wait(timeout=60)
        stats = update.wait(60)
        (shown,) = json.loads(get(controller, "/api/updates"))["updates"]
        assert (shown["version"]["number"], shown["bytes"]) == (7, stats.bytes)
        assert shown["seconds"] == pytest.approx(stats.seconds)
        assert b"<title>weightcast</title>" in get(controller, "/")
        address = controller.http_address
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://{address}/", timeout=10)


def test_without_http_there_is_no_page():
    with wc.Controller("127.0.0.1:0", settings=FAST) as controller:
        assert controller.http_address == ""


def test_beyond_loopback_a_page_needs_a_token(monkeypatch):
    monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE")
    with pytest.raises(
        wc.Permission, match=r"without a job token option http \(--http\) listens on loopback only"
    ):
        wc.Controller("127.0.0.1:0", settings=FAST, http="0.0.0.0:0")
