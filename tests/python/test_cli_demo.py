"""`weightcast demo`: whole clusters on this machine."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from cli import BINARY, FAST, ROOT, Running, fails, only_json, run, write_checkpoint, write_safetensors
from processes import wait_until

GPT2_BYTES = 248_879_616


def children_of(pid: int) -> dict[str, int]:
    """A demo's processes by name: {"trainer 0": pid}."""
    listing = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    found = {}
    for line in listing.splitlines():
        match = re.match(r"\s*(\d+) .*demo-worker --role (\w+) --rank (\d+)", line)
        if match:
            found[f"{match[2]} {match[3]}"] = int(match[1])
    return found


@pytest.fixture
def small(tmp_path) -> pathlib.Path:
    """A checkpoint of some MiB, so that a demo takes a second."""
    tensors = {f"layer.{i}.weight": ("BF16", [256 + i, 512]) for i in range(6)}
    tensors["layer.scale"] = ("F32", [])
    write_checkpoint(tmp_path / "small", 3, tensors)
    return tmp_path / "small"


def test_the_default_demo_is_gpt2_and_bit_exact():
    report = only_json(run("demo", "--versions", 2, "--json", timeout=240))
    assert (report["trainers"], report["inference"], report["tensors"]) == (2, 2, 148)
    assert report["bytes_per_replica"] == GPT2_BYTES
    assert report["bit_exact"] is True
    assert [update["version"] for update in report["updates"]] == [1, 2]
    for update in report["updates"]:
        assert update["bit_exact"] is True
        assert update["bytes"] == 2 * GPT2_BYTES == sum(update["sender_bytes"])
        assert update["gb_per_s"] == pytest.approx(update["bytes"] / update["seconds"] / 1e9)
        assert max(update["sender_bytes"]) <= 1.01 * update["bytes"] / 2


def test_the_text_shows_memory_first_and_ends_bit_exact(small):
    result = run("demo", "--checkpoint", small, "--versions", 2)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "2 trainers (ddp) -> 2 engines of 1 rank" in lines[0]
    assert lines[1].startswith("memory: ")
    assert lines[-1] == "bit-exact"
    assert "[#" not in result.stderr


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("landing", ["in_place", "shadow"])
def test_transports_and_landings(small, transport, landing):
    flags = ["--transport", transport, "--landing", landing, "--checkpoint", small, "--versions", 3]
    report = only_json(run("demo", *flags, "--json"))
    assert report["transport"] == transport
    assert len(report["updates"]) == 3


@pytest.mark.parametrize(
    "shape",
    [
        ["--trainers", 1, "--inference", 1],
        ["--trainers", 3, "--inference", 1, "--trainer-layout", "fsdp"],
        ["--trainers", 2, "--inference", 4, "--engines", 2],
        ["--trainers", 4, "--inference", 2, "--trainer-layout", "fsdp", "--engines", 1],
    ],
    ids=lambda shape: " ".join(map(str, shape)),
)
def test_shapes_of_clusters(small, shape):
    report = only_json(run("demo", *shape, "--checkpoint", small, "--versions", 2, "--json"))
    assert report["bit_exact"] is True


def test_bench_update_sweeps_over_trainers(small):
    flags = ["--checkpoint", small, "--versions", 2, "--transports", "shm", "--sweep-trainers", "1,3"]
    results = only_json(run("bench", "update", *flags, "--json"))["results"]
    assert [result["trainers"] for result in results] == [1, 3]
    assert all(result["bytes"] == results[0]["bytes"] and result["gb_per_s"] > 0 for result in results)


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (
            {"results": [{"transport": "shm", "memory": "any", "op": "write", "bytes": size, "iovs": iovs,
                          "gb_per_s": 1.5} for size, iovs in ((8, 1), (64, 1), (64, 200))]},
            ["shm any write"],
        ),
        (
            {"model": "gpt2", "results": [{"transport": "tcp", "landing": landing, "trainers": 2,
                                           "gb_per_s": 2.5} for landing in ("in_place", "shadow")]},
            ["tcp in_place", "tcp shadow"],
        ),
    ],
)  # fmt: skip
def test_what_bench_measured_is_drawn(tmp_path, report, names):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "bench.svg"
    script = [sys.executable, ROOT / "bench/plot.py", plot]
    subprocess.run(script, input=json.dumps(report), text=True, check=True, timeout=60)
    comments = re.findall(r"<!-- (.*?) -->", plot.read_text())  # One for each text.
    assert [name for name in comments if name in names] == names
    assert "GB/s" in comments


def test_output_of_the_first_version_is_the_checkpoint_byte_for_byte(small, tmp_path):
    out = tmp_path / "out"
    only_json(run("demo", "--checkpoint", small, "--output", out, "--versions", 2, "--json"))
    original = (small / "model.safetensors").read_bytes()
    for engine in ("engine-0", "engine-1"):
        assert (out / engine / "1" / "model.safetensors").read_bytes() == original
        assert (out / engine / "2" / "model.safetensors").read_bytes() != original
        assert sorted(path.name for path in (out / engine).iterdir()) == ["1", "2"]


def test_engines_of_several_ranks_write_a_file_each(tmp_path):
    out = tmp_path / "out"
    flags = ["--inference", 2, "--engines", 1, "--output", out, "--versions", 1]
    only_json(run("demo", *flags, "--json", timeout=240))
    names = sorted(path.name for path in (out / "engine-0" / "1").iterdir())
    assert names == ["model-rank-00000-of-00002.safetensors", "model-rank-00001-of-00002.safetensors"]
    raw = (out / "engine-0" / "1" / names[1]).read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    shards = json.loads(header["__metadata__"]["weightcast.shards"])
    assert shards["wte.weight"]["shape"] == [50257, 768]


def test_what_does_not_fit_is_refused_with_the_number():
    result = run("demo", "--trainers", 500, "--inference", 500, "--model", "qwen2.5-0.5b", "--json")
    error = fails(result, "of memory", "available", "--inference")
    assert re.search(r"\d+(\.\d+)? [TG]B", error)
    assert result.stdout == ""


def test_nothing_is_left_behind(small, tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    only_json(run("demo", "--checkpoint", small, "--versions", 1, "--json"))
    assert list(temporary.iterdir()) == []


def test_a_truncated_checkpoint_is_refused(tmp_path):
    whole = write_safetensors(tmp_path / "c" / "model.safetensors", {"w": ("F32", [1024, 8])})
    (tmp_path / "c" / "model.safetensors").write_bytes(whole[:-100])
    out = tmp_path / "out"
    fails(run("demo", "--checkpoint", tmp_path / "c", "--output", out), "model.safetensors")
    assert not out.exists()


@pytest.mark.parametrize("victim", ["controller 0", "trainer 1", "inference 0"])
def test_a_killed_process_is_named_and_the_others_end(victim):
    demo = Running("demo", "--versions", 1000, *FAST)
    try:
        pid = wait_until(lambda: children_of(demo.pid).get(victim))
        wait_until(lambda: "inference 1" in children_of(demo.pid))
        others = children_of(demo.pid)
        time.sleep(1.0)  # Any moment will do; this one is amid the updates, or while they begin.
        os.kill(pid, signal.SIGKILL)
        result = demo.end(timeout=20)
        name = "controller" if victim.startswith("controller") else victim
        fails(result, f"{name} (pid {pid}) was killed by signal 9", "log")
        for other in others.values():
            assert not pathlib.Path(f"/proc/{other}").exists()
    finally:
        demo.kill()


def test_ctrl_c_ends_it_quickly(small):
    demo = Running("demo", "--checkpoint", small, "--versions", 1_000_000)
    try:
        wait_until(lambda: "inference 1" in children_of(demo.pid))
        pids = children_of(demo.pid)
        result = demo.stop(signal.SIGINT)
        assert result.returncode == 130
        wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids.values()))
    finally:
        demo.kill()


def test_its_processes_die_with_it(small):
    demo = Running("demo", "--checkpoint", small, "--versions", 1_000_000)
    wait_until(lambda: "inference 1" in children_of(demo.pid))
    pids = children_of(demo.pid)
    demo.kill()
    wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids.values()))


def test_the_progress_bar_is_for_terminals(small):
    script = subprocess.run(
        ["script", "-qec", f"{BINARY} demo --checkpoint {small} --versions 2", "/dev/null"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert script.returncode == 0, script.stdout
    assert "[#" in script.stdout
    assert "version 2 of 2" in script.stdout


def test_an_independent_script_finds_every_output_bit_exact(small, tmp_path):
    """It shares no code with weightcast, nor does it trust what the demo says of itself."""
    flags = ["--checkpoint", small, "--output", tmp_path / "out", "--versions", 3]
    only_json(run("demo", *flags, "--landing", "shadow", "--json"))
    script = pathlib.Path(__file__).resolve().parent.parent / "verify_outputs.py"
    options = ["--checkpoint", small, "--versions", "3", "--engines", "2"]
    result = subprocess.run(
        [sys.executable, script, tmp_path / "out", *options], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "bit-exact: 6 files" in result.stdout
