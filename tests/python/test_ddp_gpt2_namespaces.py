"""examples/ddp_gpt2 on two hosts: what the wire carries in a step, and a run that goes on after kills."""

import contextlib
import pathlib
import re
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from ddp_gpt2 import (  # noqa: E402
    FOLDER,
    GRADIENTS,
    LOST,
    PATIENCE,
    Rank,
    environment,
    losses,
    rows,
    weights,
)
from netns import Network, make_network  # noqa: E402
from processes import Process  # noqa: E402

STEPS, SAVE_EVERY = 40, 5
ADDRESSES = {"host0": "10.97.0.1", "host1": "10.97.0.2"}
pytestmark = pytest.mark.timeout(4 * PATIENCE)


class Hosts:
    """A rank on each of two hosts that a wire joins."""

    def __init__(self, folder: pathlib.Path, network: Network) -> None:
        self.network, self._folder = network, folder
        self._stack = contextlib.ExitStack()
        for name, address in ADDRESSES.items():
            network.add_host(name, f"{address}/24")

    def start(self, run: str, *options: object) -> list[Rank]:
        """Each host has its own folder for checkpoints. run: names the logs."""
        ranks = []
        for number, name in enumerate(ADDRESSES):
            ours = {"RANK": number, "WORLD_SIZE": 2, "MASTER_ADDR": ADDRESSES["host0"], "MASTER_PORT": 29500}
            small = ["--model", "simple", "--steps", STEPS, "--save-every", SAVE_EVERY, "--timeout", PATIENCE]
            small += ["--checkpoint", self._folder / name]
            log = self._folder / f"{run}-{number}.log"
            one = Rank(log, *small, *options, prefix=self.network.inside(name), **ours)
            ranks.append(self._stack.enter_context(one))
        return ranks

    def close(self) -> None:
        self._stack.close()
        self.network.close()


@pytest.fixture
def hosts(tmp_path: pathlib.Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, make_network())
    yield made
    made.close()


def test_loss_traffic_and_resumption(hosts: Hosts, tmp_path: pathlib.Path):
    before = {name: hosts.network.counters(name) for name in ADDRESSES}
    whole = [one.good_end() for one in hosts.start("whole", "--checkpoint", tmp_path / "other")]
    moved = {
        name: [after - first for after, first in zip(hosts.network.counters(name), before[name], strict=True)]
        for name in ADDRESSES
    }
    _check_loss(whole)
    _check_traffic(whole, moved)

    # One rank is killed, and the other ends; then both at once.
    first = hosts.start("first")
    first[0].wait_for(7)
    first[1].kill()
    failure = first[0].failure()
    assert re.match(f"rank 0: {LOST}$", failure)
    second = hosts.start("second")
    second[0].wait_for(13)
    for one in second:
        one.kill()
    last = [one.good_end() for one in hosts.start("last")]

    expected = losses(whole[0])
    for one in (*first, *second):
        said = losses(one.log.read_text())
        assert said == {step: expected[step] for step in said}
    saved = min(losses(second[0].log.read_text())) - 1
    assert saved > 0 and saved % SAVE_EVERY == 0
    assert failure.endswith((f"the run goes on after step {saved}", "from a checkpoint"))
    saved = min(losses(last[0])) - 1
    assert 0 < saved < STEPS and saved % SAVE_EVERY == 0
    for text, reference in zip(last, whole, strict=True):
        assert losses(text) == {step: expected[step] for step in range(saved + 1, STEPS + 1)}
        assert weights(text) == weights(reference)


def _check_loss(texts: list[str]) -> None:
    assert losses(texts[0]) == losses(texts[1])
    loss = [float(one) for one in losses(texts[0]).values()]
    assert len(loss) == STEPS
    assert loss[0] == pytest.approx(5.55, abs=0.15)  # About ln 256: nothing is known of the next byte.
    assert sum(loss[-5:]) / 5 < sum(loss[:5]) / 5 - 0.5, loss


def _check_traffic(texts: list[str], moved: dict[str, list[int]]) -> None:
    """Of two ranks each sends the other the bytes of all gradients once: 2 (N - 1) / N = 1.

    headers: 66 bytes of each packet. Between namespaces a packet has up to 64 KiB, and between two hosts with
    an MTU of 1500 it has 1448 bytes: then headers are 4.4% of what is sent.
    """
    for text, (sent, received) in zip(texts, moved.values(), strict=True):
        found = rows(text).values()
        for row in found:
            assert 0 < row.headers < 0.05 * row.sent
            assert row.sent == pytest.approx(GRADIENTS + row.headers, rel=0.05)
            assert row.received == pytest.approx(GRADIENTS, rel=0.05)
            assert row.ratio == pytest.approx((row.sent - row.headers) / GRADIENTS, abs=0.001)
        # What is not in the table: the first weights, which rank 0 sends, and the warm-up.
        assert GRADIENTS < sent - sum(row.sent for row in found) < 3 * GRADIENTS
        assert GRADIENTS < received - sum(row.received for row in found) < 3 * GRADIENTS


def test_torchrun_on_both_hosts(hosts: Hosts, tmp_path: pathlib.Path):
    """The command line of the example's page."""
    page = (FOLDER / "README.md").read_text()
    (line,) = re.findall(r"`torchrun (--nnodes 2 [^`]+) train\.py`", page)
    assert "--node_rank 0" in line and "--master_addr 10.0.0.1" in line
    line = line.replace("10.0.0.1", ADDRESSES["host0"])
    started = []
    for number, name in enumerate(ADDRESSES):
        launch = line.replace("--node_rank 0", f"--node_rank {number}").split()
        command = [*hosts.network.inside(name), sys.executable, "-m", "torch.distributed.run", *launch]
        command += [str(FOLDER / "train.py"), "--model", "simple", "--steps", "3"]
        command += ["--checkpoint", str(tmp_path / name)]
        started.append(Process(*command, environment=environment()))
    try:
        for process in started:
            done = process.end(PATIENCE)
            out = done.stdout
            assert done.returncode == 0, out + done.stderr
            assert list(rows(out)) == [1, 2, 3] and "over eth0" in out
            assert all(row.ratio == pytest.approx(1, abs=0.05) for row in rows(out).values())
    finally:
        for process in started:
            process.close()


def test_a_firewall_between_the_ranks(tmp_path: pathlib.Path):
    """Rank 0 listens for the others at MASTER_PORT, and gloo at other ports."""
    hosts = Hosts(tmp_path, make_network("nft"))
    try:
        for name in ADDRESSES:
            new = "tcp flags & (syn | ack) == syn"
            hosts.network.filter(name, f"{new} tcp dport 29500 accept", f"{new} drop")
        first, second = hosts.start("run")
        said = (
            rf"rank 0 cannot connect to rank 1 at {ADDRESSES['host1']} over eth0 \(.+\): open all TCP ports"
        )
        assert re.match(f"rank 0: {said}", first.failure())
        assert re.match(f"rank 1: {said}", second.failure())
    finally:
        hosts.close()
