"""Hosts that reach each other in different ways: IPv6 alone, dead addresses, a controller that moves."""

import functools
import pathlib
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from cli import Running, fails, only_json, run, write_checkpoint
from netns import Network, make_network
from processes import wait_until

TENSORS = {f"layer.{i}.weight": ("BF16", [256, 1024]) for i in range(4)}  # 2 MiB
PORT = 29750
LOST = "\nweightcast_control_workers_lost_total"
SCRAPE = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9470/metrics').read().decode())"


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network("nft")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def start(network: Network) -> Iterator[Callable[..., Running]]:
    """Starts a command on a host. Before the network goes, what still runs is killed."""
    running: list[Running] = []

    def begin(host: str, *arguments: object, hosts: pathlib.Path | None = None) -> Running:
        running.append(Running(*arguments, prefix=network.inside(host, hosts)))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "ckpt"
    made.mkdir()
    write_checkpoint(made / "step-1", seed=1, tensors=TENSORS)
    return made


def trainer(controller: str, rank: int, size: int, folder: pathlib.Path) -> list[object]:
    where = ["trainer", "--controller", controller, "--checkpoint", folder, "--watch"]
    return [*where, "--rank", rank, "--world-size", size]


def inference(controller: str, engine: str, folder: pathlib.Path, out: pathlib.Path) -> list[object]:
    what = ["--engine", engine, "--like", folder / "step-1", "--output", out]
    return ["inference", "--controller", controller, *what]


def workers_of(network: Network, host: str, controller: str) -> dict[str, dict]:
    """What the controller shows of each worker."""
    shown = only_json(run("info", "--controller", controller, "--json", prefix=network.inside(host)))
    return {worker["name"]: worker for worker in shown["models"][0]["workers"]}


def test_each_pair_of_hosts_finds_the_addresses_that_work(tmp_path, network, start, folder):
    network.add_host("controller", "10.99.0.1/24", "fd00:99::1/64", interface="c0")
    network.add_host("trainer0", "10.99.0.2/24", "fd00:99::2/64", interface="t0")
    network.add_host("trainer1", "fd00:99::3/64", interface="t1")
    # The first address is silent, and of the ports only those of the setting are open.
    network.add_host("inference0", "10.98.0.4/24", "10.99.0.4/24", "fd00:99::4/64", interface="i0")
    network.add_host("inference1", "fd00:98::5/64", "fd00:99::5/64", interface="i1")
    for host in ("controller", "trainer0"):
        network.run(host, "ip", "route", "add", "10.98.0.0/24", "dev", network.interfaces[host])
    closed = "tcp flags & (syn | ack) == syn tcp dport != 29800-29801 drop"
    network.filter("inference0", "ip daddr 10.98.0.4 drop", closed)
    v4, v6 = f"10.99.0.1:{PORT}", f"[fd00:99::1]:{PORT}"
    out = tmp_path / "out"

    start("controller", "controller", "--listen", f"[::]:{PORT}", "--min-engines", 2).line()
    sources = [
        start("trainer0", *trainer(v4, 0, 2, folder), "--bind", "10.99.0.2"),
        start("trainer1", *trainer(v6, 1, 2, folder)),
    ]
    sinks = [
        start("inference0", *inference(v4, "e0", folder, out), "--port-range", "29800-29801"),
        start("inference1", *inference(v6, "e1", folder, out), "--advertise", "fd00:99::5"),
    ]
    for sink in sinks:
        assert sink.line().startswith("version 1: ")
    second = write_checkpoint(folder / "step-2", seed=2, tensors=TENSORS)
    for sink in sinks:
        assert sink.line().startswith("version 2: ")
    for engine in ("e0", "e1"):
        assert (out / engine / "2" / "model.safetensors").read_bytes() == second
    for source in sources:
        assert source.line().startswith("version 1 committed: ")

    workers = workers_of(network, "trainer1", v6)
    ports = {text.rsplit(":", 1)[1] for text in workers["engine e0 rank 0"]["addresses"]}
    assert ports in ({"29800"}, {"29801"})
    assert workers["engine e0 rank 0"]["addresses"][0].startswith("10.98.0.4:")
    assert [text.rsplit(":", 1)[0] for text in workers["engine e1 rank 0"]["addresses"]] == ["[fd00:99::5]"]
    assert [text.rsplit(":", 1)[0] for text in workers["trainer 0"]["addresses"]] == ["10.99.0.2"]


def test_hosts_that_have_nothing_but_link_local_addresses(tmp_path, network, start, folder):
    # Each calls its interface something else: a scope says nothing to the others.
    for name, interface in (("controller", "c0"), ("trainer0", "t0"), ("inference0", "i0")):
        network.add_host(name, interface=interface)
    head = network.link_local("controller")
    start("controller", "controller", "--listen", f"[::]:{PORT}").line()
    start("trainer0", *trainer(f"[{head}%t0]:{PORT}", 0, 1, folder))
    sink = start("inference0", *inference(f"[{head}%i0]:{PORT}", "e", folder, tmp_path))
    assert sink.line().startswith("version 1: ")


def write_hosts(path: pathlib.Path, *addresses: str) -> None:
    """In place: it is mounted over a worker's /etc/hosts."""
    with path.open("w") as file:
        file.writelines(f"{address} head\n" for address in addresses)


@pytest.mark.parametrize("lost", [False, True], ids=["within the lease", "after the lease"])
def test_workers_follow_a_controller_that_moves(tmp_path, network, start, folder, lost):
    network.add_host("controller", "10.99.0.1/24", "fd00:99::1/64", interface="c0")
    network.add_host("trainer0", "10.99.0.2/24", interface="t0")
    network.add_host("inference0", "fd00:99::3/64", interface="i0")
    # The name's first address was never alive.
    hosts4, hosts6 = tmp_path / "hosts4", tmp_path / "hosts6"
    write_hosts(hosts4, "10.99.0.77", "10.99.0.1")
    write_hosts(hosts6, "fd00:99::77", "fd00:99::1")
    lease = f"--lease={1 if lost else 15}"
    listen = ["--listen", f"[::]:{PORT}", "--metrics", "127.0.0.1:9470"]
    start("controller", "controller", *listen, lease).line()
    address = f"head:{PORT}"
    more = [lease, "--controller-timeout=30"]
    start("trainer0", *trainer(address, 0, 1, folder), *more, hosts=hosts4)
    sink = start("inference0", *inference(address, "e", folder, tmp_path / "out"), *more, hosts=hosts6)
    assert sink.line().startswith("version 1: ")

    if lost:  # What is sent to the old addresses is lost without a word.
        network.remove_address("controller", "10.99.0.1/24")
        network.remove_address("controller", "fd00:99::1/64")
        wait_until(lambda: LOST in network.run("controller", sys.executable, "-c", SCRAPE))
    else:
        at = f"tcp dport {PORT} reject with tcp reset"
        network.filter("controller", f"ip daddr 10.99.0.1 {at}", f"ip6 daddr fd00:99::1 {at}")
    network.add_address("controller", "10.99.0.9/24")
    network.add_address("controller", "fd00:99::9/64")
    write_hosts(hosts4, "10.99.0.9")
    write_hosts(hosts6, "fd00:99::9")
    second = write_checkpoint(folder / "step-2", seed=2, tensors=TENSORS)
    assert sink.line().startswith("version 2: ")
    assert (tmp_path / "out" / "e" / "2" / "model.safetensors").read_bytes() == second
    assert (LOST in network.run("controller", sys.executable, "-c", SCRAPE)) == lost


@pytest.mark.parametrize("moving", [False, True], ids=["between updates", "in the middle of one"])
def test_a_second_controller_takes_over_from_one_that_was_stopped(tmp_path, network, start, folder, moving):
    hosts = tmp_path / "hosts"
    write_hosts(hosts, "10.99.0.1")
    for number, name in enumerate(("first", "second", "trainer0", "inference0"), 1):
        network.add_host(name, f"10.99.0.{number}/24")
    lease = "--lease=1"
    address = f"head:{PORT}"
    listen = ["controller", "--listen", f"0.0.0.0:{PORT}", lease]
    first = start("first", *listen)
    first.line()
    more = [lease, "--controller-timeout=30"]
    source = start("trainer0", *trainer(address, 0, 1, folder), *more, hosts=hosts)
    sink = start("inference0", *inference(address, "e", folder, tmp_path / "out"), *more, hosts=hosts)
    assert sink.line().startswith("version 1: ")
    assert source.line().startswith("version 1 committed: ")

    if moving:
        network.limit("trainer0", 8)  # Two seconds for a version.
        before = network.counters("trainer0")
        write_checkpoint(folder / "step-2", seed=2, tensors=TENSORS)
        wait_until(lambda: network.moved("trainer0", before) > 300_000)
        assert network.moved("trainer0", before) < 2_000_000
    first.send_signal(signal.SIGSTOP)
    write_hosts(hosts, "10.99.0.2")
    second = start("second", *listen)
    second.line()
    if not moving:
        write_checkpoint(folder / "step-2", seed=2, tensors=TENSORS)
    assert sink.line().startswith("version 2: ")

    # The first goes on and finds its workers gone. What it still says is not heard.
    first.send_signal(signal.SIGCONT)
    shown = functools.partial(workers_of, network, "first", f"127.0.0.1:{PORT}")
    wait_until(lambda: not any(worker["alive"] for worker in shown().values()))
    third = write_checkpoint(folder / "step-3", seed=3, tensors=TENSORS)
    assert sink.line().startswith("version 3: ")
    assert (tmp_path / "out" / "e" / "3" / "model.safetensors").read_bytes() == third

    # It can have them back: it goes on above the term that they have followed since.
    second.kill()
    write_hosts(hosts, "10.99.0.1")
    write_checkpoint(folder / "step-4", seed=4, tensors=TENSORS)
    assert sink.line().startswith("version 4: ")


@pytest.mark.parametrize("limit", [12, 20, 32])
@pytest.mark.parametrize("what", ["controller", "inference"])
def test_too_few_descriptors_are_an_error_that_says_so(tmp_path, folder, what, limit):
    command = {
        "controller": ["controller", "--listen", "127.0.0.1:0"],
        "inference": [*inference("127.0.0.1:1", "e", folder, tmp_path), "--join-timeout=5"],
    }[what]
    limited = ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"]
    fails(run(*command, prefix=limited, timeout=30), "raise the limit of open files", f"which is {limit}")
