"""The setting traffic_class on the wire: every packet of the data's connections, and of no others."""

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from cli import FAST, Running, fails, run, write_checkpoint
from netns import Network, make_network
from processes import Process

HERE = pathlib.Path(__file__).resolve().parent
TENSORS = {f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(4)}  # 8 MiB
PORT = 29750
AF31, LE = 26, 1


class Seen(NamedTuple):
    source: str
    target: str
    dscp: int
    packets: int
    bytes: int


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network()
    try:
        made.add_host("trainer", "10.99.0.1/24", "fd00:99::1/64")
        made.add_host("engine", "10.99.0.2/24", "fd00:99::2/64")
        yield made
    finally:
        made.close()


def seen_during_an_update(
    network: Network, tmp_path: pathlib.Path, family: str, **classes: str
) -> list[Seen]:
    """What crosses the wire while the trainer, beside the controller, gives the engine its weights."""
    trainer, engine = {"v4": ("10.99.0.1", "10.99.0.2"), "v6": ("[fd00:99::1]", "[fd00:99::2]")}[family]
    write_checkpoint(tmp_path / "ckpt", tensors=TENSORS)
    running: list[Running] = []

    def start(host: str, *arguments: object, **environment: str) -> Running:
        whole = [*arguments, *FAST]
        running.append(Running(*whole, prefix=network.inside(host), env=environment))
        return running[-1]

    def data(name: str, address: str) -> list[object]:
        own = ["--traffic-class", classes[name]] if name in classes else []
        where = ["--controller", f"{trainer}:{PORT}", "--transport", "tcp"]
        return [*where, "--bind", address.strip("[]"), *own]

    sniff = [*network.inside("trainer"), sys.executable, HERE / "sniffer.py", network.interfaces["trainer"]]
    with Process(*sniff, stdin=subprocess.PIPE) as sniffer:
        try:
            sniffer.hear("ready")
            start("trainer", "controller", "--listen", f"{trainer}:{PORT}").line()
            source = ["--rank", 0, "--world-size", 1, "--checkpoint", tmp_path / "ckpt", "--version", 1]
            start("trainer", "trainer", *source, *data("trainer", trainer))
            sink = ["--engine", "e", "--like", tmp_path / "ckpt", "--versions", 1]
            ended = start("engine", "inference", *sink, *data("engine", engine)).end(60)
            assert ended.returncode == 0, ended.stderr
        finally:
            for one in running:
                one.kill()
        out = sniffer.end().stdout
    return [Seen(*flow) for flow in json.loads(out)]


def connections(seen: list[Seen]) -> dict[frozenset[str], list[Seen]]:
    found: dict[frozenset[str], list[Seen]] = {}
    for flow in seen:
        found.setdefault(frozenset((flow.source, flow.target)), []).append(flow)
    return found


def is_of(flow: Seen, host: str) -> bool:
    return flow.source.startswith(
        ("10.99.0.1 ", "fd00:99::1 ") if host == "trainer" else ("10.99.0.2 ", "fd00:99::2 ")
    )


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_every_packet_of_the_data_has_the_class_and_no_other_has(tmp_path, network, family):
    seen = seen_during_an_update(network, tmp_path, family, trainer="af31", engine="AF31")
    marked = {name: flows for name, flows in connections(seen).items() if any(flow.dscp for flow in flows)}
    # From the SYN and its answer on, in both directions.
    assert {flow.dscp for flows in marked.values() for flow in flows} == {AF31}, seen
    assert all({is_of(flow, "trainer") for flow in flows} == {True, False} for flows in marked.values()), seen
    assert len(marked) == 2, "the lanes"
    assert sum(flow.bytes for flows in marked.values() for flow in flows) >= 8 << 20
    rest = [flow for name, flows in connections(seen).items() if name not in marked for flow in flows]
    assert any(f"port {PORT}" in flow.target for flow in rest), "the controller's stream"
    assert sum(flow.bytes for flow in rest) < 1 << 20, rest


def test_each_side_marks_its_own_packets(tmp_path, network):
    seen = seen_during_an_update(network, tmp_path, "v4", engine="le")
    marked = {name: flows for name, flows in connections(seen).items() if any(flow.dscp for flow in flows)}
    assert len(marked) == 2
    for flow in (flow for flows in marked.values() for flow in flows):
        assert flow.dscp == (0 if is_of(flow, "trainer") else LE), seen


def test_without_the_setting_nothing_is_marked(tmp_path, network):
    seen = seen_during_an_update(network, tmp_path, "v6")
    assert {flow.dscp for flow in seen} == {0}


@pytest.mark.parametrize("wrong", ["gold", "256", "cs8", "af44", "-1"])
def test_a_wrong_class_is_refused_with_the_names(wrong):
    names = "cs0 to cs7, af11 to af13, af21 to af23, af31 to af33, af41 to af43, ef, le"
    fails(run("info", f"--traffic-class={wrong}"), f"'{wrong}'", "0 to 255", names)
