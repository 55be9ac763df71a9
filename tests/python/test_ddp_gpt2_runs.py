"""examples/ddp_gpt2 on one host: a kill and a resumption, torchrun, and what stops a run with one line."""

import contextlib
import pathlib
import re
import socket
import subprocess
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
    free_port,
    losses,
    rows,
    weights,
)
from netns import make_network  # noqa: E402
from processes import wait_until  # noqa: E402

STEPS, SAVE_EVERY = 20, 4
pytestmark = pytest.mark.timeout(4 * PATIENCE)


class Runs:
    """Starts ranks of --model simple on loopback. Each run has a port and logs of its own."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._number = folder, 0
        self._stack = contextlib.ExitStack()

    def rank(self, number: int, *options: object, world_size: int = 2, **ours: object) -> Rank:
        self._number += 1
        log = self._folder / f"{self._number}-{number}.log"
        small = ["--model", "simple", "--batch", 2, "--sequence", 64, "--timeout", 60, "--steps", STEPS]
        small += ["--save-every", SAVE_EVERY, "--checkpoint", self._folder / "checkpoint"]
        ours = {"RANK": number, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", **ours}
        return self._stack.enter_context(Rank(log, *small, *options, **ours))

    def ranks(self, *options: object, world_size: int = 2, **ours: object) -> list[Rank]:
        ours = {"MASTER_PORT": free_port(), "world_size": world_size, **ours}
        return [self.rank(number, *options, **ours) for number in range(world_size)]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.close()


# --- Resumption


def test_three_ranks_resume_bit_exactly(runs: Runs, tmp_path: pathlib.Path):
    """With three ranks the order of additions shows in the sums; with two it cannot."""
    whole = [one.good_end() for one in runs.ranks("--checkpoint", tmp_path / "other", world_size=3)]
    assert list(losses(whole[0])) == list(range(1, STEPS + 1))
    assert losses(whole[0]) == losses(whole[1]) == losses(whole[2])

    killed = runs.ranks(world_size=3)
    killed[0].wait_for(6)
    killed[2].kill()
    for number, one in enumerate(killed[:2]):
        assert re.match(rf"rank {number}: {LOST}$", one.failure())
    resumed = [one.good_end() for one in runs.ranks(world_size=3)]
    assert "resumed after step" in resumed[0]
    first = min(losses(resumed[0]))
    assert 1 < first < STEPS and first % SAVE_EVERY == 1
    said = re.search(r"goes on after step (\d+)", killed[0].failure())
    assert said is None or int(said[1]) == first - 1
    for before, after in zip(whole, resumed, strict=True):
        assert losses(after) == {step: one for step, one in losses(before).items() if step >= first}
        assert weights(after) == weights(before)


def test_a_run_is_extended_once_it_has_ended(runs: Runs):
    for one in runs.ranks("--steps", 2):
        one.good_end()
    for number, one in enumerate(runs.ranks("--steps", 2)):
        assert one.failure() == (
            f"rank {number}: the run has made its 2 steps: give more --steps, or another --checkpoint"
        )
    for one in runs.ranks("--steps", 3):
        assert list(rows(one.good_end())) == [3]


# --- Starts


def test_torchrun(tmp_path: pathlib.Path):
    """Two ranks on one host: the table is printed once, and `lo` carries the bytes of both.

    In a network of their own: `lo` of this host carries what other tests send, too.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    command += ["--local-addr=127.0.0.1", str(FOLDER / "train.py"), "--model", "simple", "--steps", "5"]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    with contextlib.closing(make_network()) as network:
        network.add_host("alone")
        command = [*network.inside("alone"), *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sent/theory\n") == 1
    found = rows(done.stdout)
    assert list(found) == [1, 2, 3, 4, 5]
    for row in found.values():
        assert row.sent - row.headers == pytest.approx(2 * GRADIENTS, rel=0.05)
        assert row.ratio == pytest.approx(1, abs=0.05)


def test_a_single_rank_sends_nothing(runs: Runs, tmp_path: pathlib.Path):
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 4)
    (one,) = runs.ranks("--steps", 2, "--dataset", text, world_size=1)
    shown = one.good_end()
    assert "sent/theory -" in shown and weights(shown)


# --- What stops a run


def test_the_master_is_not_reachable(runs: Runs):
    port = free_port()
    assert runs.rank(1, "--timeout", 1, MASTER_PORT=port).failure() == (
        f"rank 1: rank 0 is not reachable at 127.0.0.1:{port} (Connection refused): start rank 0 there, check"
        " MASTER_ADDR and MASTER_PORT, and open the port in the firewall"
    )


def test_rank_0_is_on_another_host_than_its_address(runs: Runs):
    failure = runs.rank(0, MASTER_ADDR="192.0.2.1", MASTER_PORT=free_port()).failure()
    assert failure.startswith(
        "rank 0: MASTER_ADDR=192.0.2.1 is not an address of this host, where rank 0 runs"
    )


def test_a_rank_does_not_come(runs: Runs):
    port = free_port()
    assert runs.rank(0, "--timeout", 1, MASTER_PORT=port).failure() == (
        f"rank 0: rank 1 of 2 has not come to 127.0.0.1:{port}: start it, or set WORLD_SIZE to the number of"
        " ranks that you start"
    )


def test_two_world_sizes(runs: Runs):
    port = free_port()
    first = runs.rank(0, MASTER_PORT=port)
    second = runs.rank(1, MASTER_PORT=port, world_size=3)
    remedy = "set the same number of ranks everywhere"
    assert first.failure() == f"rank 0: WORLD_SIZE=2 here, but rank 1 has 3: {remedy}"
    assert second.failure() == f"rank 1: WORLD_SIZE=3 here, but rank 0 has 2: {remedy}"


def test_a_rank_that_is_started_twice(runs: Runs):
    port = free_port()
    runs.rank(0, MASTER_PORT=port, world_size=3)
    twice = [runs.rank(1, MASTER_PORT=port, world_size=3) for _ in range(2)]
    wait_until(lambda: not all(one.running() for one in twice), "one of them ends", PATIENCE)
    (second,) = [one for one in twice if not one.running()]
    assert second.failure() == "rank 1: RANK=1 was started twice: give each process a RANK of its own"


def test_a_port_in_use(runs: Runs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failure = runs.rank(0, MASTER_PORT=port).failure()
    assert failure.startswith(
        f"rank 0: port {port} is in use on this host: end the run before, or set another"
    )


def test_an_interface_that_is_not_there(runs: Runs):
    failure = runs.rank(0, MASTER_PORT=free_port(), GLOO_SOCKET_IFNAME="eth99").failure()
    assert "GLOO_SOCKET_IFNAME=eth99 is not an interface of this host: set one of" in failure


def test_no_environment(runs: Runs):
    assert runs.rank(0, MASTER_PORT="").failure() == (
        "rank 0: MASTER_PORT must be set: start with torchrun, or with RANK=0 WORLD_SIZE=2"
        " MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
    )


def test_options_that_differ(runs: Runs):
    port = free_port()
    pair = [runs.rank(number, "--batch", 2 + number, MASTER_PORT=port) for number in (0, 1)]
    for number, one in enumerate(pair):
        assert one.failure() == (
            f"rank {number}: --batch is 2 at rank 0 and 3 at rank 1: start all ranks with the same options"
            " and the same dataset"
        )


def test_a_dataset_that_is_missing_at_one_rank(runs: Runs, tmp_path: pathlib.Path):
    port, text = free_port(), tmp_path / "text"
    text.write_bytes(bytes(4096))
    first = runs.rank(0, "--dataset", text, MASTER_PORT=port)
    second = runs.rank(1, "--dataset", tmp_path / "nothing", MASTER_PORT=port)
    said = (
        f"--dataset {tmp_path / 'nothing'} cannot be read (No such file or directory): give a readable file"
    )
    assert first.failure() == f"rank 0: rank 1: {said}"
    assert second.failure() == f"rank 1: {said}"


def test_a_dataset_that_is_too_small(runs: Runs, tmp_path: pathlib.Path):
    (tmp_path / "text").write_bytes(bytes(256))
    for one in runs.ranks("--dataset", tmp_path / "text"):
        assert "the dataset has 256 bytes, and a step of 2 ranks needs 257: give a longer" in one.failure()


def test_checkpoints_that_cannot_be_used(runs: Runs, tmp_path: pathlib.Path):
    for one in runs.ranks("--steps", 8):
        one.good_end()
    for one in runs.ranks("--learning-rate", "0.5"):
        assert (
            "is of a run with --learning-rate 0.0003, and this run has --learning-rate 0.5" in one.failure()
        )
    broken = tmp_path / "checkpoint" / "step-00000008-rank-1.pt"
    broken.write_bytes(broken.read_bytes()[:-1000])
    for one in runs.ranks():
        assert re.search(
            rf"checkpoint {broken} cannot be read \(.+\): delete the file to go on", one.failure()
        )
    broken.unlink()
    assert min(rows([one.good_end() for one in runs.ranks()][0])) == 5  # As the line has said.
    for file in (tmp_path / "checkpoint").glob("*-rank-0.pt"):
        file.unlink()
    for one in runs.ranks("--steps", 20):
        assert "the ranks have no step in common in" in one.failure()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sequence", "257"], "--sequence must be at most 256 with --model simple"),
        (["--batch", "0"], "argument --batch: must be at least 1"),
        (["--model", "gpt3"], "invalid choice: 'gpt3'"),
    ],
)
def test_options_that_are_refused(runs: Runs, options: list[str], said: str):
    one = runs.rank(0, *options, MASTER_PORT=free_port())
    assert one.wait(PATIENCE) == 2 and said in one.said()
