"""Workers in containers: which path they take, what they say about it, and that every byte is right."""

import pathlib
import platform
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weightcast as wc
from cli import Running
from container import CROSS_COPY, Container, contained
from netns import Network, make_network
from processes import Child

TOKEN = "a-token-for-the-containers-of-a-test"
CONTROLLER = "10.99.0.1:29750"
ELEMENTS = 20 << 20  # 80 MiB: more than a container's /dev/shm holds.
VERSIONS = 2
SETTINGS = {"timeout": 60}


def weights(version: int) -> np.ndarray:
    return np.arange(ELEMENTS, dtype=np.float32) * np.float32(version)


def train() -> list[str]:
    """Publishes; returns the connection map."""
    array = np.zeros(ELEMENTS, np.float32)
    with wc.Trainer(CONTROLLER, settings=SETTINGS) as trainer:
        trainer.register({"w": array})
        for version in range(1, VERSIONS + 1):
            array[...] = weights(version)
            trainer.publish(version).wait(60)
        return trainer.connection_map()


def infer(mapped: bool) -> list[str]:
    """Receives, compares every byte; returns the connection map. `mapped`: into memory from wc.allocate."""
    array = wc.allocate(ELEMENTS, np.float32) if mapped else np.zeros(ELEMENTS, np.float32)
    with wc.Inference(CONTROLLER, engine="e", settings=SETTINGS) as worker:
        worker.register({"w": array})
        lines: list[str] = []
        while worker.version.number < VERSIONS:
            version = worker.wait(timeout=60)
            assert np.array_equal(array, weights(version.number)), version
            lines = worker.connection_map() or lines
        return lines


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, spawn: Callable[..., Child]) -> Iterator[Network]:
    if platform.machine() not in CROSS_COPY:
        pytest.skip("the numbers of the system calls are not known here")
    monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE")  # Root's: the users of the containers cannot read it.
    monkeypatch.setenv("WEIGHTCAST_TOKEN", TOKEN)
    made = make_network()
    try:
        made.add_host("node0", "10.99.0.1/24")
        made.add_host("node1", "10.99.0.2/24")
        kind, text = spawn(contained, Container(made.namespace("node0")), int).outcome()
        if kind != "ok" and ("unshare" in text or "mount" in text):
            pytest.skip("users cannot make namespaces of their own here")
        controller = Running("controller", "--listen", CONTROLLER, prefix=made.inside("node0"))
        try:
            controller.line()
            yield made
        finally:
            controller.kill()
    finally:
        made.close()


CASES = {
    # One pod: the network is shared, nothing else.
    "pod": (
        Container("node0"),
        Container("node0"),
        "ring (cross-process copy refused: the peer is in another",
    ),
    "seccomp": (
        Container("node0", own_pids=False),
        Container("node0", own_pids=False),
        "ring (cross-process copy refused: process_vm_readv: Operation not permitted",
    ),
    "two users": (Container("node0", user=1000), Container("node0", user=1001), "tcp: "),
    "two networks": (Container("node0"), Container("node1"), "tcp: "),
}


@pytest.mark.parametrize(
    ("case", "mapped"), [*((case, False) for case in CASES), ("pod", True)], ids=[*CASES, "pod, mapped"]
)
def test_containers_get_every_byte_and_say_by_which_path(case, mapped, tmp_path, network, spawn):
    first, second, path = CASES[case]
    log = tmp_path / "log"
    named = {
        side: Container(network.namespace(one.network), one.user, one.own_pids, str(log) + side)
        for side, one in (("t", first), ("i", second))
    }
    engine = spawn(contained, named["i"], infer, mapped)
    source = spawn(contained, named["t"], train)
    maps = source.value(90) + engine.value(90)
    assert maps
    assert all(path in line for line in maps), maps
    logs = "".join(pathlib.Path(one.log).read_text() for one in named.values())
    if path == "tcp: ":
        assert "using tcp instead of shm to" in logs
    elif not mapped:
        assert "cross-process copy refused" in logs
