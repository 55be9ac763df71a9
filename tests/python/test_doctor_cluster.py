"""`weightcast doctor --cluster` on four hosts made of namespaces: which host or link is slow."""

import json
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from cli import FAST, Running, fails, run, write_checkpoint
from netns import Network, make_network

TOKEN = {"WEIGHTCAST_TOKEN": "5d0c1b7a9e3f48620d1c7b5a9e3f4862"}
PATIENCE = 240
RATE = 120  # Mbit/s of each wire: far from what the processors do for two tests at once.
NAMES = ["node1", "node2", "node3", "node4"]


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network("tc", "nft", "unshare")
    try:
        for number, name in enumerate(NAMES, 1):
            made.add_host(name, f"10.99.0.{number}/24")
            made.limit(name, RATE)
        yield made
    finally:
        made.close()


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "hosts"
    lines = [f"10.99.0.{number} {name}\n" for number, name in enumerate(NAMES, 1)]
    path.write_text("127.0.0.1 localhost\n" + "".join(lines))
    return path


@pytest.fixture
def serving(network: Network, hosts: pathlib.Path) -> Iterator[dict[str, Running]]:
    running = {
        name: Running("doctor", "--serve", prefix=network.inside(name, hosts), env=TOKEN) for name in NAMES
    }
    try:
        for one in running.values():
            one.line()
        yield running
    finally:
        for one in running.values():
            one.kill()


@pytest.fixture
def cluster(network: Network, hosts: pathlib.Path, tmp_path: pathlib.Path):
    def ask(*arguments: object, names=NAMES, file: bool = True) -> dict:
        listed = tmp_path / "cluster"
        listed.write_text("# rack 1\n" + "".join(f"{name}\n" for name in names))
        chosen = ["--cluster", listed] if file else []
        result = run(
            *["doctor", "--json", *chosen, "--milliseconds", 500, *arguments],
            prefix=network.inside("node1", hosts),
            env={**os.environ, **TOKEN},
            timeout=PATIENCE,
        )
        assert result.stdout, result.stderr
        report = json.loads(result.stdout)
        assert result.returncode == (1 if report["worst"] == "fail" else 0), result.stderr
        return report

    return ask


def troubles(report: dict) -> list[dict]:
    return [one for one in report["findings"] if one["level"] in ("warn", "fail")]


def shape(network: Network, device: str, namespace: str, megabits: int, target: str) -> None:
    """What goes to one address gets a class of its own."""
    tc = ["tc", "-n", namespace]
    rate = ["rate", f"{megabits}mbit", "burst", "64k", "cburst", "64k", "quantum", "60000"]
    match = ["u32", "match", "ip", "dst", f"{target}/32", "flowid", "1:7"]
    for command in (
        ["class", "add", "dev", device, "parent", "1:", "classid", "1:7", "htb", *rate],
        ["qdisc", "add", "dev", device, "parent", "1:7", "handle", "70:", "bfifo", "limit", "100000"],
        ["filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", *match],
    ):
        subprocess.run([*tc, *command], check=True, capture_output=True, text=True)


def test_healthy_hosts(serving, cluster, tmp_path: pathlib.Path):
    page = tmp_path / "page.html"
    report = cluster("--html", page)
    assert troubles(report) == []
    assert report["rounds"] == 3
    assert len(report["pairs"]) == 6
    for source in range(4):
        for target in range(4):
            expected = None if source == target else pytest.approx(RATE / 1000, rel=0.5)
            assert report["gbit"][source][target] == expected, report["gbit"]
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "node4" in text and "<script" not in text and "http" not in text.replace("http-equiv", "")


def test_one_link_of_six_at_a_tenth(network: Network, serving, cluster):
    shape(network, "eth0", network.namespace("node2"), RATE // 10, "10.99.0.4")
    shape(network, "eth0", network.namespace("node4"), RATE // 10, "10.99.0.2")
    found = troubles(cluster())
    assert [one["check"] for one in found] == ["bandwidth"], found
    assert found[0]["level"] == "fail"
    assert sorted(found[0]["subject"].split(" <-> ")) == ["node2", "node4"]
    assert "the link between" in found[0]["text"]


def test_one_host_that_sends_slowly(network: Network, serving, cluster):
    change = ["tc", "class", "change", "dev", "eth0", "parent", "1:", "classid", "1:1", "htb", "rate"]
    network.run("node3", *change, f"{RATE // 8}mbit")
    found = troubles(cluster())
    slow = [one for one in found if one["check"] == "bandwidth"]
    assert len(slow) == 1, found
    assert slow[0]["subject"] == "node3"
    assert "the NIC of node3, what it sends" in slow[0]["text"]


def test_hosts_that_do_not_answer_and_lines_that_are_wrong(network: Network, serving, cluster, tmp_path):
    serving["node3"].stop()
    report = cluster(names=[*NAMES, "10.99.0.77", "10.99.0.1"])
    found = {one["subject"]: one for one in troubles(report)}
    assert "refused" in found["node3:29751"]["evidence"]
    assert found["10.99.0.77:29751"]["level"] == "fail"
    assert "same process as node1:29751" in found["10.99.0.1:29751"]["evidence"]
    assert len(report["pairs"]) == 3
    listed = tmp_path / "wrong"
    listed.write_text("node1\nno de\n")
    fails(run("doctor", "--cluster", listed, env={**os.environ, **TOKEN}), "wrong: line 2")
    fails(run("doctor", "--cluster", tmp_path / "none", env={**os.environ, **TOKEN}), "none")
    fails(run("doctor", "--html", tmp_path / "page"), "--html belongs to")


def test_the_hosts_of_a_controller(network: Network, hosts, serving, cluster, tmp_path: pathlib.Path):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    write_checkpoint(folder / "step-1", seed=1)
    address = "10.99.0.1:29750"
    running: list[Running] = []
    try:

        def start(name: str, *arguments: object) -> Running:
            inside = network.inside(name, hosts)
            running.append(Running(*arguments, *FAST, "--transport", "tcp", prefix=inside, env=TOKEN))
            return running[-1]

        start("node1", "controller", "--listen", address).line()
        start("node2", "trainer", "--controller", address, "--checkpoint", folder, "--watch")
        engine = ["--engine", "e", "--like", folder / "step-1", "--output", tmp_path / "out", "--versions", 9]
        start("node3", "inference", "--controller", address, *engine).line(60)
        report = cluster("--workers", "--controller", address, file=False)
        assert sorted(one["host"] for one in report["hosts"]) == ["node2", "node3"]
        assert len(report["pairs"]) == 1
        assert report["gbit"][0][1] > 0
    finally:
        for one in running:
            one.kill()


def test_text(serving, network: Network, hosts: pathlib.Path, tmp_path: pathlib.Path):
    listed = tmp_path / "cluster"
    listed.write_text("node1\nnode2\n")
    result = run(
        *["doctor", "--cluster", listed, "--milliseconds", 300],
        prefix=network.inside("node4", hosts),
        env={**os.environ, **TOKEN},
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Gbit/s from each host (row)" in result.stdout
    assert "   1 node1" in result.stdout
