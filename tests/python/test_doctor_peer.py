"""`weightcast doctor --serve` and `--peer` on hosts made of namespaces, with faults planted between them."""

import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from cli import Running, fails, run
from doctor_report import finding, troubles
from netns import Network, make_network
from processes import Process

TOKEN = {"WEIGHTCAST_TOKEN": "5d0c1b7a9e3f48620d1c7b5a9e3f4862"}
OTHER = {"WEIGHTCAST_TOKEN": "0f1e2d3c4b5a69788796a5b4c3d2e1f0"}
PATIENCE = 90
RATE = 200  # Mbit/s of each wire: far from what the processors do.


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network("tc", "nft", "unshare")
    try:
        for number in (1, 2, 3):
            made.add_host(f"node{number}", f"10.99.0.{number}/24")
            made.limit(f"node{number}", RATE)
        yield made
    finally:
        made.close()


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n10.99.0.1 node1\n10.99.0.2 node2\n10.99.0.3 node3\n")
    return path


@pytest.fixture
def serve(network: Network, hosts: pathlib.Path) -> Iterator:
    running: list[Running] = []

    def start(name: str = "node2", *arguments: object, prefix=None, env=None) -> Running:
        before = network.inside(name, hosts) if prefix is None else prefix
        running.append(Running("doctor", "--serve", *arguments, prefix=before, env={**TOKEN, **(env or {})}))
        assert running[-1].line().startswith("serving tests at ")
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.fixture
def peer(network: Network, hosts: pathlib.Path):
    def ask(
        *arguments: object, name: str = "node1", env=None, target: str = "node2", milliseconds: int = 300
    ) -> dict:
        result = run(
            *["doctor", "--json", "--peer", target, "--milliseconds", milliseconds, *arguments],
            prefix=network.inside(name, hosts),
            env={**os.environ, **TOKEN, **(env or {})},
            timeout=PATIENCE,
        )
        assert result.stdout, result.stderr
        report = json.loads(result.stdout)
        assert result.returncode == (1 if report["worst"] == "fail" else 0), result.stderr
        return report

    return ask


def best(rates: list[dict]) -> float:
    return max(one["gbit"] for one in rates)


def test_two_healthy_hosts(serve, peer):
    serve()
    report = peer()
    assert troubles(report) == []
    facts = report["peer"]
    assert (facts["here"]["host"], facts["there"]["host"]) == ("node1", "node2")
    assert (facts["mtu"]["out"], facts["mtu"]["back"]) == (1500, 1500)
    assert abs(facts["clock_ahead"]) <= facts["clock_within"] + 0.5
    tcp = facts["transports"][0]
    assert best(tcp["out"]) == pytest.approx(RATE / 1000, rel=0.4)
    assert best(tcp["back"]) == pytest.approx(RATE / 1000, rel=0.4)
    assert tcp["latency"]["samples"] >= 20
    assert finding(report, "verbs.connection")["level"] == "not_applicable"


def test_an_mtu_that_differs(network: Network, serve, peer):
    network.run("node1", "ip", "link", "set", "eth0", "mtu", "4000")
    serve()
    found = finding(peer(), "path.mtu")
    assert found["level"] == "warn"
    assert "4000 on eth0 of node1, 1500 on eth0 of node2" in found["text"]
    assert found["remedy"].startswith("ip link set dev eth0 mtu 1500  # on node1")


def test_a_path_on_which_large_packets_vanish(network: Network, serve, peer):
    # Both ends have 4000, and a switch between them 2000.
    for name in ("node1", "node2"):
        network.run(name, "ip", "link", "set", "eth0", "mtu", "4000")
        # Otherwise veth hands segments on whole, which a switch could not.
        if shutil.which("ethtool"):
            network.run(name, "ethtool", "-K", "eth0", "tso", "off", "gso", "off")
    network.run("hub", "ip", "link", "set", "p0", "mtu", "4000")
    network.run("hub", "ip", "link", "set", "p1", "mtu", "2000")
    serve()
    begin = time.monotonic()
    report = peer()
    assert time.monotonic() - begin < 75
    found = finding(report, "path.mtu")
    assert found["level"] == "fail"
    assert 2000 <= min(report["peer"]["mtu"]["out"], report["peer"]["mtu"]["back"]) <= 2004
    assert "vanish" in found["text"]
    assert "ip link set dev eth0 mtu" in found["remedy"]
    # The rest went on.
    assert report["peer"]["transports"][0]["latency"]["samples"] > 0


RANGE = {"WEIGHTCAST_PORT_RANGE": "29800-29899"}
DROP = "tcp dport 29800-29899 drop"


def test_a_port_that_is_dropped_on_one_host(network: Network, serve, peer):
    network.filter("node2", DROP)
    serve(env=RANGE)
    report = peer(env=RANGE)
    found = finding(report, "path.data_ports")
    assert found["level"] == "warn"
    assert "on the way to node2 (10.99.0.2)" in found["text"]
    assert "10.99.0.2:298" in found["evidence"]
    # It was connected the other way, and measured.
    assert best(report["peer"]["transports"][0]["out"]) > 0


def test_ports_that_are_dropped_on_both(network: Network, serve, peer):
    for name in ("node1", "node2"):
        network.filter(name, DROP)
    serve(env=RANGE)
    report = peer(env=RANGE)
    found = finding(report, "path.data_ports")
    assert found["level"] == "fail"
    assert "WEIGHTCAST_PORT_RANGE" in found["remedy"]
    assert finding(report, "tcp.connection")["level"] == "fail"
    # UDP passed.
    assert finding(report, "path.mtu")["level"] == "ok"


def test_another_token(serve, peer):
    serve()
    found = finding(peer(env=OTHER), "reach.token")
    assert found["level"] == "fail"
    assert "WEIGHTCAST_TOKEN_FILE" in found["remedy"]
    assert OTHER["WEIGHTCAST_TOKEN"] not in json.dumps(found)


def test_nobody_there_and_no_route(peer):
    begin = time.monotonic()
    found = finding(peer(target="10.99.0.77"), "reach.connection")
    assert found["level"] == "fail"
    assert "ip route get 10.99.0.77" in found["remedy"]
    found = finding(peer(target="10.98.0.1"), "reach.connection")
    assert "no route to 10.98.0.1" in found["evidence"]
    found = finding(peer(target="node2"), "reach.connection")
    assert "refused" in found["evidence"]
    found = finding(peer(target="nobody.invalid"), "reach.connection")
    assert "nobody.invalid" in found["evidence"]
    assert time.monotonic() - begin < 40


def test_the_port_of_serve_is_dropped(network: Network, serve, peer):
    network.filter("node2", "tcp dport 29751 drop")
    serve()
    found = finding(peer(), "reach.connection")
    assert "firewall" in found["evidence"]


def test_two_hosts_with_one_name(network: Network, serve, peer):
    called = ["unshare", "--uts", "sh", "-c", 'hostname node1 && exec "$@"', "sh"]
    serve(prefix=[*network.inside("node2"), *called])
    found = finding(peer(), "reach.name")
    assert found["level"] == "warn"
    assert "called node1" in found["text"]
    assert "10.99.0.1" in found["evidence"] and "10.99.0.2" in found["evidence"]


def test_a_port_in_use(network: Network, hosts: pathlib.Path, serve):
    serve()
    again = run("doctor", "--serve", prefix=network.inside("node2", hosts), env={**os.environ, **TOKEN})
    assert "29751" in fails(again, "in use", "--listen")


def test_a_second_tester_is_told_that_it_is_busy(network: Network, hosts: pathlib.Path, serve, peer):
    server = serve(env={"WEIGHTCAST_LOG_LEVEL": "info"})
    command = ["doctor", "--json", "--peer", "node2", "--milliseconds", 2000]
    first = Running(*command, prefix=network.inside("node1", hosts), env=TOKEN)
    try:
        server.wait_until(lambda: "a test with 10.99.0.1 begins" in server.errors())
        busy = finding(peer(name="node3"), "reach.busy")
        assert "busy with a test with 10.99.0.1" in busy["evidence"]
        result = first.end(PATIENCE)
        assert json.loads(result.stdout)["peer"]["failure"]["stage"] == "", result.stdout
    finally:
        first.kill()


def test_one_direction_at_a_tenth(network: Network, serve, peer):
    network.run(
        "node2",
        "tc",
        "class",
        "change",
        "dev",
        "eth0",
        "parent",
        "1:",
        "classid",
        "1:1",
        "htb",
        "rate",
        "20mbit",
    )
    serve()
    report = peer()
    found = finding(report, "tcp.bandwidth")
    assert found["level"] == "fail"
    assert "What leaves node2 has" in found["text"]
    assert best(report["peer"]["transports"][0]["back"]) == pytest.approx(0.02, rel=0.4)


def prioritise(network: Network, name: str) -> None:
    """Packets of DSCP 26 overtake all others on this host's wire, in both directions."""
    number = list(network.interfaces).index(name)
    for namespace, device in ((network.namespace(name), "eth0"), (network.hub, f"p{number}")):
        burst = ["burst", "256k", "cburst", "256k", "quantum", "60000"]
        for command in (
            ["qdisc", "del", "dev", device, "root"],
            ["qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "20"],
            [
                "class",
                "add",
                "dev",
                device,
                "parent",
                "1:",
                "classid",
                "1:1",
                "htb",
                "rate",
                f"{RATE}mbit",
                *burst,
            ],
            ["class", "add", "dev", device, "parent", "1:1", "classid", "1:10", "htb", "prio", "0"]
            + ["rate", f"{RATE // 4}mbit", "ceil", f"{RATE}mbit", *burst],
            ["class", "add", "dev", device, "parent", "1:1", "classid", "1:20", "htb", "prio", "1"]
            + ["rate", f"{RATE // 4}mbit", "ceil", f"{RATE}mbit", *burst],
            ["qdisc", "add", "dev", device, "parent", "1:20", "bfifo", "limit", "500000"],
            ["filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "1", "u32"]
            + ["match", "ip", "tos", "0x68", "0xfc", "flowid", "1:10"],
        ):
            subprocess.run(["tc", "-n", namespace, *command], check=True, capture_output=True, text=True)


def test_traffic_classes(network: Network, serve, peer):
    serve()
    report = peer()
    found = finding(report, "classes.priority")
    assert found["level"] == "not_applicable", found
    assert "wait like all others" in found["text"]
    # Who has asked for a class is warned.
    found = finding(peer("--traffic-class", 104), "classes.priority")
    assert found["level"] == "warn"
    for name in ("node1", "node2"):
        prioritise(network, name)
    report = peer("--traffic-class", 104)
    found = finding(report, "classes.priority")
    assert found["level"] == "ok", found
    assert "Priority holds: packets of DSCP 26" in found["text"]
    classes = report["peer"]["classes"]
    assert classes["class_loaded"]["p50"] < classes["plain_loaded"]["p50"] / 2


def test_once_limit_and_flags(network: Network, hosts: pathlib.Path, serve, peer):
    once = serve("node2", "--once")
    assert troubles(peer()) == []
    assert once.end().returncode == 0
    limited = serve("node2", "--limit", 1)
    assert limited.end(20).returncode == 0
    stopped = serve("node2")
    assert stopped.stop().returncode in (0, 143)
    fails(run("doctor", "--serve", "--peer", "a"), "more than one of --serve, --peer")
    fails(run("doctor", "--once"), "belong to --serve")
    fails(
        run("doctor", "--peer", "http://node2", env={**os.environ, **TOKEN}),
        "is not the name or address of a host",
    )
    fails(run("doctor", "--peer", "node2", "--print-env"), "leave them out")
    fails(run("doctor", "--serve", "--listen", "0.0.0.0:0", env=without_token()), "without a job token")


def without_token() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("WEIGHTCAST_TOKEN")}


def test_an_observer_may_not_test(serve, network: Network, hosts: pathlib.Path):
    serve()
    token = run("token", "--role", "observer", env={**os.environ, **TOKEN}).stdout.strip()
    result = run(
        "doctor",
        "--peer",
        "node2",
        prefix=network.inside("node1", hosts),
        env={**os.environ, "WEIGHTCAST_TOKEN": token},
    )
    fails(result, "may only watch")


def test_bandwidth_beside_iperf3(network: Network, serve, peer):
    iperf = os.environ.get("IPERF3") or shutil.which("iperf3")
    if iperf is None:
        pytest.skip("no iperf3 on this machine (IPERF3 names one elsewhere)")
    with Process(*network.inside("node2"), iperf, "-s", stdout=subprocess.DEVNULL):
        command = [*network.inside("node1"), iperf, "-J", "-c", "10.99.0.2", "-t", "3", "-O", "1"]
        for _ in range(20):
            client = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            if client.returncode == 0:
                break
            print(client.stdout)
            time.sleep(0.2)  # Its server has not listened yet.
    text = client.stdout
    theirs = json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e9
    serve()
    ours = best(peer(milliseconds=1000)["peer"]["transports"][0]["out"])
    print(f"weightcast {ours:.4f} Gbit/s, iperf3 {theirs:.4f} Gbit/s, ratio {ours / theirs:.3f}")
    assert ours / theirs == pytest.approx(1, abs=0.1)
