"""Five processes in five network namespaces: as on five hosts, with counters on every wire."""

import pathlib
from collections.abc import Iterator

import pytest

from cli import FAST, Running, write_checkpoint
from netns import Network, make_network

NAMES = ["controller", "trainer0", "trainer1", "inference0", "inference1"]
MIB = 1 << 20


@pytest.fixture
def network() -> Iterator[Network]:
    made = make_network()
    try:
        for number, name in enumerate(NAMES, 1):
            made.add_host(name, f"10.99.0.{number}/24")
        yield made
    finally:
        made.close()


def test_five_hosts_move_only_the_bytes_of_the_update(tmp_path: pathlib.Path, network: Network):
    tensors = {f"layer.{i}.weight": ("BF16", [1024, 4096]) for i in range(4)}  # 32 MiB
    folder = tmp_path / "ckpt"
    folder.mkdir()
    whole = write_checkpoint(folder / "step-1", seed=1, tensors=tensors)
    address = "10.99.0.1:29750"
    running: list[Running] = []

    def start(name: str, *arguments: object) -> Running:
        running.append(Running(*arguments, *FAST, "--transport", "tcp", prefix=network.inside(name)))
        return running[-1]

    try:
        start("controller", "controller", "--listen", address, "--min-engines", 2).line()
        common = ["--controller", address]
        for rank in (0, 1):
            arguments = ["--rank", rank, "--world-size", 2, "--checkpoint", folder, "--watch"]
            start(f"trainer{rank}", "trainer", *common, *arguments)
        sinks = [
            start(
                f"inference{i}",
                *["inference", *common, "--engine", f"e{i}", "--like", folder / "step-1"],
                *["--output", tmp_path / "out", "--versions", 2],
            )
            for i in (0, 1)
        ]
        for sink in sinks:
            assert sink.line(60).startswith("version 1: ")
        before = {name: network.counters(name) for name in NAMES}
        second = write_checkpoint(folder / "step-2", seed=2, tensors=tensors)
        for i, sink in enumerate(sinks):
            result = sink.end(60)
            assert result.returncode == 0, result.stderr
            assert (tmp_path / "out" / f"e{i}" / "2" / "model.safetensors").read_bytes() == second
            assert (tmp_path / "out" / f"e{i}" / "1" / "model.safetensors").read_bytes() == whole
        after = {name: network.counters(name) for name in NAMES}
    finally:
        for one in running:
            one.kill()
    moved = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in NAMES}
    update = 32 * MIB
    for name in ("inference0", "inference1"):
        assert moved[name][1] == pytest.approx(update, rel=0.05), moved
    # Both trainers hold everything, and share the work.
    for name in ("trainer0", "trainer1"):
        assert moved[name][0] == pytest.approx(update, rel=0.05), moved
    assert sum(moved["controller"]) < 0.05 * update, moved
