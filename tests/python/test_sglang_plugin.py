"""The parts of weightcast.sglang that need no SGLang: its import, its entry point, the trainers' side."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

import weightcast as wc
from weightcast.sglang import Servers

SCRIPT = """
import json, os, sys
import numpy
threads, files = len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
import weightcast.sglang
weightcast.sglang.register()
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")) - threads,
    "files": len(os.listdir("/proc/self/fd")) - files,
    "modules": [name for name in ("torch", "sglang") if name in sys.modules],
}))
"""


def test_without_a_controller_the_plugin_does_nothing() -> None:
    env = {name: value for name, value in os.environ.items() if name != "WEIGHTCAST_CONTROLLER"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True, env=env
    )
    assert json.loads(run.stdout) == {"threads": 0, "files": 0, "modules": []}


def test_the_package_names_the_plugin() -> None:
    found = [one for one in entry_points(group="sglang.srt.plugins") if one.name == "weightcast"]
    assert [one.value for one in found] == ["weightcast.sglang:register"]
    assert callable(found[0].load())


class Stub:
    """Answers as an SGLang server does. answers: of paths, (status, message); others succeed."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.asked: list[str] = []
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                path = self.path[1:]
                stub.asked.append(path)
                plugin = "weightcast: joined" if path.endswith("_weight_update") else ""
                status, message = answers.get(path, (200, plugin))
                body = json.dumps({"success": status == 200, "message": message}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def stub() -> Iterator[Any]:
    made: list[Stub] = []

    def make(**answers: tuple[int, str]) -> Stub:
        made.append(Stub(**answers))
        return made[-1]

    yield make
    for one in made:
        one.close()


ALL = ["pause_generation", "begin_weight_update", "end_weight_update", "flush_cache", "continue_generation"]


def test_the_calls_of_an_update(stub: Any) -> None:
    servers = [stub(), stub()]
    with Servers([one.url for one in servers]).updating():
        assert [one.asked for one in servers] == [ALL[:2]] * 2
    assert [one.asked for one in servers] == [ALL] * 2


def test_if_one_cannot_begin_all_go_on(stub: Any) -> None:
    good, bad = stub(), stub(begin_weight_update=(400, "enable_eplb moves experts"))
    with pytest.raises(wc.Error, match=rf"{bad.url} refused begin_weight_update: enable_eplb moves experts"):
        Servers([good.url, bad.url]).begin()
    assert good.asked == bad.asked == [*ALL[:2], "continue_generation"]


def test_if_one_cannot_end_it_goes_on_too(stub: Any) -> None:
    good, bad = stub(), stub(end_weight_update=(400, "trainer 0 is lost"))
    servers = Servers([good.url, bad.url])
    servers.begin()
    with pytest.raises(wc.Error, match="trainer 0 is lost"):
        servers.end()
    assert good.asked == ALL
    assert bad.asked == [*ALL[:3], "continue_generation"]


def test_if_nothing_was_published_the_servers_go_on(stub: Any) -> None:
    one = stub(end_weight_update=(400, "timed out"))
    with pytest.raises(ZeroDivisionError), Servers(one.url).updating():
        raise ZeroDivisionError
    assert one.asked == [*ALL[:3], "continue_generation"]


def test_a_server_without_the_plugin_is_noticed(stub: Any) -> None:
    plain = stub(begin_weight_update=(200, "Success"))
    with pytest.raises(wc.InvalidArgument, match="runs without weightcast"):
        Servers(plain.url).begin()
    assert plain.asked[-1] == "continue_generation"


def test_a_server_that_is_not_there(stub: Any) -> None:
    gone = stub()
    gone._server.server_close()
    with pytest.raises(wc.Unavailable, match="no answer from the SGLang server"):
        Servers(gone.url).begin()


def test_no_server() -> None:
    with pytest.raises(wc.InvalidArgument, match="at least one"):
        Servers([])
