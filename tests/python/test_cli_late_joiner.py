"""An engine that joins late, on hosts with counters on every wire: its peers serve it, no trainer does."""

import pathlib
import time
from collections.abc import Iterator

import pytest

from cli import Running, only_json, run, write_checkpoint
from netns import Network, make_network

CONTROLLER = "10.99.0.1:29750"
ENGINES, TRAINERS = 4, 2
TENSORS = {f"layer.{i}.weight": ("BF16", [1024, 4096]) for i in range(4)}
UPDATE = 32 << 20
# What a worker that does nothing sends and receives in a second: heartbeats four times a lease, to the
# controller and over each connection. And once, what it is told of an engine that joins.
HEARTBEATS = 8 << 10
JOIN = 32 << 10


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network()
    try:
        names = ["controller", *(f"trainer{i}" for i in range(TRAINERS)), *(f"e{i}" for i in range(ENGINES))]
        for number, name in enumerate([*names, "late"], 1):
            made.add_host(name, f"10.99.0.{number}/24")
        yield made
    finally:
        made.close()


def test_a_late_joiner_is_served_by_its_peers_alone(tmp_path: pathlib.Path, network: Network):
    whole = write_checkpoint(tmp_path / "ckpt", seed=1, tensors=TENSORS)
    running: list[Running] = []

    def start(name: str, *arguments: object) -> Running:
        running.append(Running(*arguments, prefix=network.inside(name)))
        return running[-1]

    def engine(name: str) -> Running:
        files = ["--like", tmp_path / "ckpt", "--output", tmp_path / "out"]
        return start(name, "inference", "--controller", CONTROLLER, "--engine", name, *files)

    try:
        start("controller", "controller", "--listen", CONTROLLER, "--min-engines", ENGINES).line()
        for rank in range(TRAINERS):
            where = ["trainer", "--controller", CONTROLLER, "--checkpoint", tmp_path / "ckpt", "--version", 7]
            start(f"trainer{rank}", *where, "--rank", rank, "--world-size", TRAINERS)
        for served in [engine(f"e{i}") for i in range(ENGINES)]:
            assert served.line(60).startswith("version 7: ")
        trainers = [f"trainer{rank}" for rank in range(TRAINERS)]
        before = {name: network.counters(name) for name in ["late", *trainers]}
        began = time.monotonic()
        assert engine("late").line(60).startswith("version 7: ")
        moved = {name: network.moved(name, since) for name, since in before.items()}
        seconds = time.monotonic() - began
        command = ["info", "--controller", CONTROLLER, "--json"]
        view = only_json(run(*command, prefix=network.inside("controller")))["models"][0]
    finally:
        for one in running:
            one.kill()
    assert (tmp_path / "out" / "late" / "7" / "model.safetensors").read_bytes() == whole
    routes = [route for route in view["routes"] if route["engine"] == "late"]
    assert sum(route["bytes"] for route in routes) == UPDATE, view["routes"]
    assert {route["sender"] for route in routes} == {f"engine e{i} rank 0" for i in range(ENGINES)}
    assert moved["late"] > UPDATE
    for name in trainers:
        assert moved[name] < JOIN + HEARTBEATS * seconds, moved
