"""Controller, trainers and inference ranks started by hand."""

import pathlib
import subprocess
import time

import pytest

from cli import FAST, TINY, Running, fails, only_json, run, write_checkpoint, write_safetensors
from processes import wait_until


@pytest.fixture
def start():
    """Starts commands that stay; what still runs at the end of the test is killed."""
    running: list[Running] = []

    def begin(*arguments: object, **options) -> Running:
        running.append(Running(*arguments, *FAST, **options))
        return running[-1]

    yield begin
    for one in running:
        one.kill()


@pytest.fixture
def address(start) -> str:
    line = start("controller", "--listen", "127.0.0.1:0").line()
    assert line.startswith("listening at ")
    return line.removeprefix("listening at ")


def free_address() -> str:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def trainer(address: str, rank: int, size: int, folder: pathlib.Path, *more: object) -> list[object]:
    return [
        "trainer",
        "--controller",
        address,
        "--rank",
        rank,
        "--world-size",
        size,
        "--checkpoint",
        folder,
        *more,
    ]


def inference(address: str, engine: str, like: pathlib.Path, *more: object) -> list[object]:
    return ["inference", "--controller", address, "--engine", engine, "--like", like, *more]


def wait_for(path: pathlib.Path) -> bytes:
    wait_until(path.exists, f"{path} appears")
    return path.read_bytes()


@pytest.mark.parametrize("order", ["controller first", "controller last", "inference first"])
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_five_processes_distribute_new_checkpoints_byte_for_byte(tmp_path, start, order, layout):
    address = free_address()
    folder, out = tmp_path / "ckpt", tmp_path / "out"
    folder.mkdir()
    first = write_checkpoint(folder / "step-3", seed=3)
    commands = {
        "controller": [["controller", "--listen", address, "--min-engines", 2]],
        "trainers": [trainer(address, rank, 2, folder, "--watch", "--layout", layout) for rank in (0, 1)],
        "inference": [
            inference(address, f"e{i}", folder / "step-3", "--output", out, "--versions", 3) for i in (0, 1)
        ],
    }
    orders = {
        "controller first": ["controller", "trainers", "inference"],
        "controller last": ["trainers", "inference", "controller"],
        "inference first": ["inference", "controller", "trainers"],
    }
    running = {kind: [start(*command) for command in commands[kind]] for kind in orders[order]}
    written = {3: first}
    for version in (3, 4, 10):
        if version != 3:
            written[version] = write_checkpoint(folder / f"step-{version}", seed=version)
        for engine in ("e0", "e1"):
            assert wait_for(out / engine / str(version) / "model.safetensors") == written[version]
    for one in running["inference"]:
        result = one.end()
        assert result.returncode == 0, result.stderr
        assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
            "version 3",
            "version 4",
            "version 10",
        ]
    for one in running["trainers"]:
        assert one.line().startswith("version 3 committed: ")
        assert one.stop().returncode == 0
    assert running["controller"][0].stop().returncode == 0
    for engine in ("e0", "e1"):
        assert sorted(path.name for path in (out / engine).iterdir()) == ["10", "3", "4"]


def test_an_engine_that_joins_late_gets_the_version_that_is_held(tmp_path, start, address):
    whole = write_checkpoint(tmp_path / "c")
    source = start(*trainer(address, 0, 1, tmp_path / "c", "--version", 7))
    for engine in ("early", "late"):
        result = start(
            *inference(address, engine, tmp_path / "c", "--output", tmp_path, "--versions", 1)
        ).end()
        assert result.returncode == 0, result.stderr
        assert (tmp_path / engine / "7" / "model.safetensors").read_bytes() == whole
    assert source.line().startswith("version 7 committed")


def test_engines_of_two_ranks(tmp_path, start, address):
    tensors = {"model.layers.0.mlp.up_proj.weight": ("BF16", [64, 32]), "model.norm.weight": ("BF16", [32])}
    write_checkpoint(tmp_path / "c", tensors=tensors)
    ranks = [
        start(
            *inference(address, "tp", tmp_path / "c", "--rank", rank, "--world-size", 2),
            *["--output", tmp_path / "out", "--versions", 1, "--json"],
        )
        for rank in (0, 1)
    ]
    start(*trainer(address, 0, 1, tmp_path / "c"))
    for rank, one in enumerate(ranks):
        report = only_json(one.end())
        assert (report["rank"], report["versions"][0]["version"]) == (rank, 1)
    names = sorted(path.name for path in (tmp_path / "out" / "tp" / "1").iterdir())
    assert names == ["model-rank-00000-of-00002.safetensors", "model-rank-00001-of-00002.safetensors"]


def test_json_of_a_trainer_that_ends(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    source = start(*trainer(address, 0, 1, tmp_path / "c", "--exit-after", 1, "--json"))
    sink = start(*inference(address, "e", tmp_path / "c", "--versions", 1))
    report = only_json(source.end())
    assert [entry["engines"] for entry in report["versions"]] == [["e"]]
    assert sink.end().returncode == 0


def test_info_shows_the_cluster(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    start(*trainer(address, 0, 1, tmp_path / "c"))
    sink = start(*inference(address, "rollout", tmp_path / "c"))
    assert sink.line() == "version 1: in memory"

    def view_of_it() -> dict | None:
        shown = only_json(run("info", "--controller", address, "--json"))
        return shown if [one["state"] for one in shown["models"][0]["engines"]] == ["SERVING"] else None

    view = wait_until(view_of_it, "engine rollout serves", 10)
    engines = view["models"][0]["engines"]
    assert engines[0]["name"] == "rollout"
    assert engines[0]["version"]["number"] == 1
    assert {worker["name"] for worker in view["models"][0]["workers"]} == {
        "trainer 0",
        "engine rollout rank 0",
    }
    (connection,) = next(w for w in view["models"][0]["workers"] if w["role"] == "inference")["connections"]
    assert connection.startswith("trainer 0: shm")
    (route,) = view["models"][0]["routes"]
    assert (route["sender"], route["engine"], route["rank"]) == ("trainer 0", "rollout", 0)
    assert route["bytes"] > 0
    assert route["bytes"] == view["models"][0]["senders"][0]["bytes"]
    text = run("info", "--controller", address).stdout
    for word in ("rollout", "SERVING", "connection to", "route of the last update"):
        assert word in text
    watch = start("info", "--controller", address, "--watch", "--json")
    watch.line()
    watch.line()
    assert watch.stop().returncode == 0


# --- What goes wrong ---------------------------------------------------------------------------------


def test_a_port_in_use(address):
    fails(run("controller", "--listen", address, *FAST), address, "in use")


def test_an_address_beyond_loopback_needs_a_token(monkeypatch):
    monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE")
    fails(run("controller", "--listen", "0.0.0.0:0", *FAST), "token")


def says_that_it_waits(worker: Running) -> None:
    worker.wait_until(lambda: "no connection to the controller" in worker.errors(), 7)


def test_an_unreachable_controller(tmp_path, start):
    write_checkpoint(tmp_path / "c")
    address = free_address()
    for command in (trainer(address, 0, 1, tmp_path / "c"), inference(address, "e", tmp_path / "c")):
        waiting = start(*command, "--join-timeout", 0.2)
        says_that_it_waits(waiting)
        assert address in waiting.errors()
        assert waiting.stop().returncode == 0
    fails(run("info", "--controller", address, *FAST), address)


def test_a_rank_outside_of_the_world(tmp_path, address):
    write_checkpoint(tmp_path / "c")
    fails(run(*trainer(address, 2, 2, tmp_path / "c"), *FAST), "rank is 2", "world_size is 2")
    fails(
        run(*inference(address, "e", tmp_path / "c", "--rank", 1), *FAST),
        "--rank 1 is outside of --world-size 1",
    )


def test_a_rank_given_twice(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    start(*inference(address, "e", tmp_path / "c"))
    first = start(*trainer(address, 0, 1, tmp_path / "c"))
    assert first.line().startswith("version 1 committed")
    fails(run(*trainer(address, 0, 1, tmp_path / "c"), *FAST), "trainer 0")
    assert first.process.poll() is None


def test_world_sizes_that_differ(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    start(*inference(address, "e", tmp_path / "c"))
    assert start(*trainer(address, 0, 1, tmp_path / "c")).line().startswith("version 1 committed")
    fails(run(*trainer(address, 0, 2, tmp_path / "c"), *FAST), "world_size")


def test_a_wrong_token(tmp_path, address):
    write_checkpoint(tmp_path / "c")
    other = tmp_path / "other-token"
    other.write_text("quite-another-token-of-good-length\n")
    other.chmod(0o600)
    for command in (trainer(address, 0, 1, tmp_path / "c"), inference(address, "e", tmp_path / "c")):
        fails(run(*command, "--token-file", other, *FAST), "token")


def test_a_missing_trainer_is_named_at_every_process_concerned(tmp_path, start):
    controller = start("controller", "--listen", "127.0.0.1:0", "--join-timeout", 3)
    address = controller.line().removeprefix("listening at ")
    write_checkpoint(tmp_path / "c")
    began = time.monotonic()
    here = start(*trainer(address, 0, 2, tmp_path / "c"), "--join-timeout", 3)
    fails(here.end(timeout=20), "trainer 1")
    assert time.monotonic() - began < 15


def test_a_missing_rank_of_an_engine_is_named(tmp_path, start):
    controller = start("controller", "--listen", "127.0.0.1:0", "--join-timeout", 3)
    address = controller.line().removeprefix("listening at ")
    write_checkpoint(tmp_path / "c")
    sink = start(*inference(address, "pair", tmp_path / "c", "--world-size", 2), "--join-timeout", 3)
    fails(sink.end(timeout=20), "pair", "rank 1")


def test_shapes_that_do_not_match_are_both_shown(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    write_checkpoint(tmp_path / "d", tensors={**TINY, "wte.weight": ("F32", [64, 1000])})
    source = start(*trainer(address, 0, 1, tmp_path / "c"))
    sink = start(*inference(address, "e", tmp_path / "d"))
    for one in (source, sink):
        fails(one.end(), "wte.weight", "[1000, 64]", "[64, 1000]")


def test_names_without_a_partner_are_listed(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    write_checkpoint(tmp_path / "d", tensors={**TINY, "lm_head.weight": ("F32", [10, 10])})
    source = start(*trainer(address, 0, 1, tmp_path / "c"))
    sink = start(*inference(address, "e", tmp_path / "d"))
    for one in (source, sink):
        fails(one.end(), "lm_head.weight")


def test_rules_rename(tmp_path, start, address):
    write_checkpoint(tmp_path / "c", seed=5)
    write_checkpoint(tmp_path / "d", tensors={("t." + name): what for name, what in TINY.items()})
    rules = tmp_path / "rules.json"
    rules.write_text('{"version": 1, "rules": [{"rename": "{**}", "to": "t.{**}"}]}')
    start(*trainer(address, 0, 1, tmp_path / "c", "--rules", rules))
    sink = start(*inference(address, "e", tmp_path / "d", "--output", tmp_path / "out", "--versions", 1))
    assert sink.end().returncode == 0
    got = (tmp_path / "out" / "e" / "1" / "model.safetensors").read_bytes()
    sent = (tmp_path / "c" / "model.safetensors").read_bytes()
    data = len(sent) - 8 - int.from_bytes(sent[:8], "little")
    assert got[-data:] == sent[-data:]


def test_a_truncated_file_is_refused(tmp_path, address):
    whole = write_safetensors(tmp_path / "c" / "model.safetensors", TINY)
    (tmp_path / "c" / "model.safetensors").write_bytes(whole[:-1])
    fails(run(*trainer(address, 0, 1, tmp_path / "c"), *FAST), "model.safetensors")
    fails(run(*inference(address, "e", tmp_path / "c"), *FAST), "model.safetensors")


def test_an_unknown_dtype_is_refused(tmp_path, address):
    write_safetensors(tmp_path / "c" / "model.safetensors", {"w": ("F7", [4])})
    fails(run(*trainer(address, 0, 1, tmp_path / "c"), *FAST), "F7")


def test_a_bad_checkpoint_in_a_watched_folder_is_skipped(tmp_path, start, address):
    folder = tmp_path / "ckpt"
    folder.mkdir()
    write_checkpoint(folder / "step-1", seed=1)
    source = start(*trainer(address, 0, 1, folder, "--watch"))
    start(*inference(address, "e", folder / "step-1", "--output", tmp_path / "out"))
    assert source.line().startswith("version 1 committed")
    making = tmp_path / "making"
    write_safetensors(making / "model.safetensors", {"w": ("F7", [4])})
    making.rename(folder / "step-2")
    whole = write_checkpoint(folder / "step-3", seed=3)
    assert wait_for(tmp_path / "out" / "e" / "3" / "model.safetensors") == whole
    assert source.line().startswith("version 3 committed")
    assert "step-2 is skipped" in source.stop().stderr


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(tmp_path, start, address, tiny_disk):
    write_checkpoint(tmp_path / "c")
    start(*trainer(address, 0, 1, tmp_path / "c"))
    sink = start(*inference(address, "e", tmp_path / "c", "--output", tiny_disk, "--versions", 1))
    fails(sink.end(), "space", str(tiny_disk))
    left = [path for path in tiny_disk.rglob("*") if path.is_file() or not path.name.startswith(".")]
    assert [path.name for path in left] == ["e"]


@pytest.mark.parametrize("victim", ["controller", "trainer", "inference"])
def test_a_killed_process_is_heard_of(tmp_path, start, victim):
    """The others say so within twice the lease and five seconds."""
    controller = start("controller", "--listen", "127.0.0.1:0")
    address = controller.line().removeprefix("listening at ")
    write_checkpoint(tmp_path / "c")
    source = start(*trainer(address, 0, 1, tmp_path / "c"))
    sink = start(*inference(address, "e", tmp_path / "c"))
    assert source.line().startswith("version 1 committed")
    assert sink.line().startswith("version 1")
    {"controller": controller, "trainer": source, "inference": sink}[victim].kill()
    if victim == "controller":
        for one in (source, sink):
            says_that_it_waits(one)
            assert one.stop().returncode == 0
        return
    name = "trainer 0" if victim == "trainer" else "engine e rank 0"

    def gone() -> bool:
        view = only_json(run("info", "--controller", address, "--json"))
        return name not in [w["name"] for w in view["models"][0]["workers"]]

    wait_until(gone, f"{name} is gone", 7)
    survivor = sink if victim == "trainer" else source
    result = survivor.stop()
    assert name in result.stderr, result.stderr


def test_connections_are_named_in_the_logs(tmp_path, start, address):
    write_checkpoint(tmp_path / "c")
    source = start(*trainer(address, 0, 1, tmp_path / "c", "--log-level", "info"))
    sink = start(*inference(address, "e", tmp_path / "c", "--versions", 1, "--log-level", "info"))
    result = sink.end()
    assert "accepted 1/1 from trainer 0" in result.stderr
    assert "connected 1/1 to engine e rank 0" in source.stop().stderr
