"""The loop on four hosts, by the command lines of docs/operations.md: its report says what the wires carried.

The run is made twice, the second time with `--sync none`. What the wires carry then is no weights, but is all
else: gradients, rollouts, the words of torchrun and the queue. So the difference is what weights took.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

from cli import BINARY, ROOT  # noqa: E402
from netns import Network, make_network  # noqa: E402
from processes import Process  # noqa: E402

HOSTS = {name: f"10.98.0.{number}" for number, name in enumerate(("n0", "n1", "n2", "n3"), 1)}
TRAINERS, CONTROLLER, INFERENCE = ("n0", "n1"), "n2", "n3"
ENGINES = ("engine-0", "engine-1")
ITERATIONS = 3
OPTIONS = ["--transport", "tcp", "--verify", "--rl_iterations", str(ITERATIONS)]
OPTIONS += ["--rollouts_per_gpu", "4", "--samples_per_prompt", "4", "--max_gen_length", "4"]
PATIENCE = 120
HEADERS = 14 + 20 + 32  # Of Ethernet, IPv4 and TCP with time stamps, once for what the kernel sends at once.
SEGMENT = 1500 - 20 - 32  # What TCP sends again at a time.
pytestmark = pytest.mark.timeout(3 * PATIENCE)


# --- The command lines


def commands_of_the_manual(model: pathlib.Path) -> list[tuple[str, list[str]]]:
    """(host, words) of each process: the manual's, with one trainer on a node and two engines, not eight."""
    page = (ROOT / "docs" / "operations.md").read_text()
    lines = re.findall(r"^(n\d): (.+)$", page, re.M)
    assert [host for host, _ in lines] == [CONTROLLER, *TRAINERS, INFERENCE], lines
    smaller = {"--nproc_per_node": "1", "--num_training": "2", "--num_inference": "2", "--min-engines": "2"}
    smaller["--model_name"] = str(model)
    commands = [(host, _with_values(line, smaller)) for host, line in lines]
    host, first = commands[-1]
    second = {"engine-0": "engine-1"}
    assert set(second) < set(first)
    return [*commands, (host, [second.get(word, word) for word in first])]


def _with_values(line: str, values: dict[str, str]) -> list[str]:
    words = shlex.split(line)
    return [values.get(before, word) for before, word in zip(["", *words], words, strict=False)]


class Cluster:
    """Hosts on one wire, and a run on them."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.network = make_network()
        self.running: list[tuple[str, Process]] = []
        self.hosts, self.token = folder / "hosts", folder / "job.token"
        self.hosts.write_text("".join(f"{address} {name}\n" for name, address in HOSTS.items()))
        self.token.write_text("a-token-for-this-test-and-no-other\n")
        self.token.chmod(0o600)

    def run(self, model: pathlib.Path, *options: str) -> dict[str, "Moved"]:
        """A whole run; what each host has moved."""
        for name, address in HOSTS.items():
            self.network.add_host(name, f"{address}/24")
        before = {name: Moved.so_far(self.network, name) for name in HOSTS}
        report = ["--output", str(self.folder / "run")]
        for host, words in commands_of_the_manual(model):
            self._start(host, words if host == CONTROLLER else [*words, *options, *report])
        deadline = time.monotonic() + PATIENCE
        # Without updates a run waits for no engine: one that is up after its end finds nobody.
        ending = TRAINERS if "none" in options else (*TRAINERS, INFERENCE)
        for host, process in self.running:
            if host in ending:
                self._expect_good_end(host, process, deadline - time.monotonic())
        controller = self.running[0][1]
        assert controller.running(), self.logs()
        controller.send_signal(signal.SIGTERM)
        self._expect_good_end(CONTROLLER, controller, 10)
        return {name: Moved.so_far(self.network, name) - moved for name, moved in before.items()}

    def _start(self, host: str, words: list[str]) -> None:
        path = f"{BINARY.parent}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        # None of the machine's own settings: the lines are to be enough.
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("WEIGHTCAST_", "GLOO_", "NCCL_", "MASTER_"))
        }
        ours = {"PATH": path, "WEIGHTCAST_TOKEN_FILE": str(self.token), "OMP_NUM_THREADS": "1"}
        command = [*self.network.inside(host, self.hosts), *words]
        log = self.folder / f"{host}-{len(self.running)}.log"
        process = Process(*command, environment={**kept, **ours}, log=log, stderr=subprocess.STDOUT)
        self.running.append((host, process))

    def _expect_good_end(self, host: str, process: Process, timeout: float) -> None:
        try:
            code: int | None = process.wait(max(timeout, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        assert code == 0, f"a process on {host} has ended with {code} (None: not at all):\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"{one.name}: {one.read_text()}" for one in sorted(self.folder.glob("*.log")))

    def lines(self, name: str) -> list[dict]:
        """Of a file of the report."""
        return [json.loads(line) for line in (self.folder / "run" / name).read_text().splitlines()]

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in self.running:
            process.close()
        self.network.close()


# --- The counters


@dataclass(frozen=True)
class Moved:
    """Bytes of a host, without headers. loopback: what its processes sent each other.

    What TCP sent again is not in `sent`, but in another host's `received`. Wires between namespaces lose
    nothing, but may change the order when a process changes its core, and then TCP sends again.
    """

    sent: int = 0
    received: int = 0
    loopback: int = 0

    @classmethod
    def so_far(cls, network: Network, host: str) -> "Moved":
        wire, loopback = network.statistics(host, "eth0"), network.statistics(host, "lo")
        names, values = network.run(host, "grep", "^Tcp:", "/proc/net/snmp").splitlines()
        again = int(dict(zip(names.split(), values.split(), strict=True))["RetransSegs"])
        return cls(
            wire["tx_bytes"] - HEADERS * wire["tx_packets"] - SEGMENT * again,
            wire["rx_bytes"] - HEADERS * wire["rx_packets"],
            loopback["tx_bytes"],
        )

    def __sub__(self, other: "Moved") -> "Moved":
        return Moved(self.sent - other.sent, self.received - other.received, self.loopback - other.loopback)


def disagreements(moved: dict[str, Moved], weights: int) -> list[str]:
    """Where hosts have not moved what a run moves whose trainers send `weights` bytes to the engines' host.

    moved: without what the run moves that sends no weights. What is left besides weights is the heads of
    chunks and the control's words, far less than 1%; trainers share the work as the plan cuts it. What is
    received may have come twice: 3%.
    """
    little = 0.01 * weights
    both = sum(moved[name].sent for name in TRAINERS)
    expected = [("trainers sent", both, weights, little)]
    expected += [("engines received", moved[INFERENCE].received, weights, 3 * little)]
    expected += [(f"{name} sent", moved[name].sent, weights / 2, 5 * little) for name in TRAINERS]
    expected += [("engines sent", moved[INFERENCE].sent, 0, little)]
    expected += [("the controller moved", moved[CONTROLLER].sent + moved[CONTROLLER].received, 0, little)]
    expected += [(f"{name} sent to itself", moved[name].loopback, 0, little) for name in moved]
    return [
        f"{what} {count} bytes, not {wanted:.0f} (within {allowed:.0f})"
        for what, count, wanted, allowed in expected
        if abs(count - wanted) > allowed
    ]


def test_what_must_not_be_is_seen():
    """Figures of a run of 1000 bytes to each of two engines, and what is wrong in others."""
    trainer = Moved(sent=1000)
    good = {"n0": trainer, "n1": trainer, "n2": Moved(5, 5), "n3": Moved(received=2000)}
    assert disagreements(good, 2000) == []
    assert disagreements(good, 1900) and disagreements(good, 2100)
    for wrong in (
        {"n0": Moved(sent=2000), "n1": Moved()},  # One does all.
        {"n3": Moved(received=1000, loopback=1000), "n1": Moved()},  # One engine has it from the other.
        {"n0": Moved(sent=2000), "n1": Moved(sent=1000, received=1000)},  # One tells the other.
        {"n2": Moved(1000, 1000)},  # By way of the controller.
        {"n2": Moved(20, 20)},
        {name: Moved() for name in HOSTS},  # Not by the wires.
    ):
        assert disagreements({**good, **wrong}, 2000), wrong


# --- The run


def _model(folder: pathlib.Path) -> int:
    """Many bytes and little work: a table of positions that nobody reaches. Returns its bytes."""
    config = GPT2Config(
        vocab_size=259,
        bos_token_id=256,
        eos_token_id=257,
        n_positions=16384,
        n_embd=128,
        n_layer=2,
        n_head=4,
    )
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    return sum(one.nbytes for one in model.parameters())


def test_the_wires_carry_what_the_report_says(tmp_path: pathlib.Path):
    size = _model(tmp_path / "model")
    with Cluster(tmp_path / "without") as cluster:
        without = cluster.run(tmp_path / "model", *OPTIONS, "--sync", "none")
    # Gradients: of two trainers each sends the other their bytes once. DDP sends the first weights besides.
    gradients = ITERATIONS * size
    assert without["n0"].sent == pytest.approx(gradients + size, rel=0.02), without
    assert without["n1"].sent == pytest.approx(gradients, rel=0.02), without

    with Cluster(tmp_path / "with") as cluster:
        moved = cluster.run(tmp_path / "model", *OPTIONS)
        rows, spans = cluster.lines("iterations.jsonl"), cluster.lines("timeline.jsonl")
    assert [row["version"] for row in rows] == list(range(1, ITERATIONS + 1))
    assert [row["metrics"]["engines_verified"] for row in rows] == [len(ENGINES)] * ITERATIONS
    commits = {(one["process"], one["version"]) for one in spans if one["kind"] == "commit"}
    assert commits == {(engine, version) for engine in ENGINES for version in range(ITERATIONS + 1)}
    updates = [transfer for row in rows for transfer in row["transfers"]]
    assert [one["way"] for one in updates] == ["weightcast"] * ITERATIONS
    for update in updates:
        received = {name.split()[0]: one["bytes"] for name, one in update["receivers"].items()}
        assert received == dict.fromkeys(ENGINES, size) and update["bytes"] == sum(received.values())
    # The report's first update is version 1's; that of version 0 is as large.
    weights = sum(one["bytes"] for one in updates) + updates[0]["bytes"]
    difference = {name: moved[name] - without[name] for name in HOSTS}
    assert disagreements(difference, weights) == []
