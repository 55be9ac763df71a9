"""Whole runs of the loop, in processes as a user starts them."""

import contextlib
import hashlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import safetensors.torch  # noqa: E402
import torch  # noqa: E402

from processes import Process  # noqa: E402

PATIENCE = 240
SMALL = ["--rollouts_per_gpu", "4", "--samples_per_prompt", "4", "--max_gen_length", "6"]
pytestmark = pytest.mark.timeout(2 * PATIENCE)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def torchrun(ranks: int, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
    return [*command, "--master_port", str(free_port()), "-m", "weightcast.rl", *arguments]


def run(ranks: int, *arguments: str) -> str:
    """A whole run; what it printed."""
    result = subprocess.run(
        torchrun(ranks, *SMALL, *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def iterations(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "iterations.jsonl").read_text().splitlines()]


def spans(folder: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "timeline.jsonl").read_text().splitlines()]


def test_weights_are_equal_in_every_iteration_and_the_first_ratio_is_one(tmp_path):
    folder = tmp_path / "run"
    printed = run(
        4,
        "--rl_iterations",
        "3",
        "--verify",
        "--eval_every",
        "3",
        "--eval_prompts",
        "20",
        "--output",
        str(folder),
    )
    rows = iterations(folder)
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert abs(row["metrics"]["ratio_first_min"] - 1) < 1e-4
        assert abs(row["metrics"]["ratio_first_max"] - 1) < 1e-4
        assert row["staleness"] == 0
        assert set(row["transfers"][0]["receivers"]) == {"rank-2 rank 0", "rank-3 rank 0"}
    assert "held-out prompts right" in printed
    versions = {span["version"] for span in spans(folder) if span["kind"] == "commit"}
    assert versions == {0, 1, 2, 3}
    described = json.loads((folder / "run.json").read_text())
    assert described["options"]["rl_iterations"] == 3


def test_a_stale_tensor_trips_the_check(tmp_path, monkeypatch):
    """One tensor of one rank is kept as it was behind everybody's back."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '3':\n"
        "    import weightcast.workers as workers\n"
        "    register = workers.Inference.register\n"
        "    def with_a_copy(self, module, **more):\n"
        "        from weightcast.torch import tensors_of\n"
        "        kept = dict(tensors_of(module))\n"
        "        name = max(kept, key=lambda one: kept[one].numel())\n"
        "        kept[name] = kept[name].detach().clone()\n"
        "        register(self, kept, **more)\n"
        "    workers.Inference.register = with_a_copy\n"
    )
    more = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(
        torchrun(4, *SMALL, "--rl_iterations", "2", "--verify", "--output", str(tmp_path / "run")),
        env={**environment(), **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode != 0
    assert re.search(r"rank 0\): version \d+: \S+ has SHA-256", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        (4, ["--algorithm", "ppo", "--kl_coefficient", "0.1"]),
        (4, ["--trainer", "fsdp2"]),
        (2, ["--num_training", "1", "--num_inference", "1"]),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, ranks, more):
    def go(name: str, last: int, *extra: str) -> None:
        folders = ["--output", tmp_path / name, "--checkpoint_dir", tmp_path / f"{name}-kept"]
        folders += ["--export_hf", tmp_path / f"{name}-model"]
        run(ranks, *more, "--rl_iterations", str(last), "--checkpoint_every", "2", *map(str, folders), *extra)

    go("whole", 4)
    go("parts", 2)
    kept = tmp_path / "parts-kept"
    named = kept / "iteration-000002" if ranks == 2 else kept
    go("parts", 4, "--resume", "--checkpoint_dir", str(named))
    assert sorted(one.name for one in kept.iterdir()) == ["iteration-000002", "iteration-000004"]
    assert not list(kept.glob("*/iteration-*"))
    assert [row["reward"] for row in iterations(tmp_path / "whole")] == [
        row["reward"] for row in iterations(tmp_path / "parts")
    ]
    files = [tmp_path / f"{name}-model" / "model.safetensors" for name in ("whole", "parts")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    assert all(torch.isfinite(one).all() for one in safetensors.torch.load_file(files[0]).values())


def test_in_async_mode_generation_overlaps_training(tmp_path):
    folder = tmp_path / "run"
    run(
        4,
        "--mode",
        "async",
        "--rl_iterations",
        "6",
        "--rollouts_per_gpu",
        "32",
        "--verify",
        "--output",
        str(folder),
    )
    rows = iterations(folder)
    assert len(rows) == 6 and all(0 <= row["staleness"] <= 1 for row in rows)
    found = spans(folder)
    trained = [
        (one["start"], one["end"])
        for one in found
        if one["process"] == "trainer-0" and one["kind"] == "train"
    ]
    generated = [(one["start"], one["end"]) for one in found if one["kind"] == "generate"]
    assert any(a < d and c < b for a, b in trained for c, d in generated)
    assert {one["version"] for one in found if one["kind"] == "commit"} >= {0, 1, 6}


def test_in_bfloat16_every_way_brings_the_same_bytes(tmp_path):
    """Trainers keep float32; the engines compare what the ways of torch.distributed bring."""
    folder = tmp_path / "run"
    learn = ["--dtype", "bfloat16", "--learning_rate", "1e-3", "--micro_batch", "3"]
    run(4, "--rl_iterations", "2", "--sync", "both", "--verify", *learn, "--output", str(folder))
    rows = iterations(folder)
    ways = {one["way"]: one for one in rows[-1]["transfers"]}
    assert len(ways) == 7 and len({one["bytes"] for one in ways.values()}) == 1
    assert all(row["metrics"]["engines_verified"] == 2 for row in rows)
    assert all(row["train_rollout_logprob_abs_diff"] < 0.05 for row in rows)


def own_address() -> str:
    """By which other hosts would reach this one; without a network: that of loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]
    return "127.0.0.1"


def test_the_queue_is_found_where_it_listens_whatever_the_master_is(tmp_path):
    """`--standalone` in a container: the master is at the container's address, the queue on loopback."""
    arguments = ["--num_inference", "1", "--rl_iterations", "1", "--timeout", "30"]
    arguments += ["--rollout_queue", f"127.0.0.2:{free_port()}", "--output", str(tmp_path / "run")]
    command = torchrun(3, *SMALL, *arguments)
    command[3:3] = ["--master_addr", own_address()]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_idle_ranks_and_a_controller_rank(tmp_path):
    printed = run(
        6,
        "--num_training",
        "2",
        "--num_inference",
        "2",
        "--rl_iterations",
        "1",
        "--output",
        str(tmp_path / "run"),
    )
    assert "rank 3: nothing to do" in printed


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--num_training", "4"], "nproc_per_node"),
        (["--model_name", "/nowhere"], "/nowhere"),
        (["--device", "cuda"], "needs a GPU"),
        (["--reward", "json:no_such"], "no_such"),
        (["--prompts", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--checkpoint_dir", "/nowhere", "--resume"], "/nowhere"),
    ],
)
def test_bad_input_ends_every_rank_before_any_waits(arguments, word):
    # As torchrun would start them; no rank may wait for another.
    place = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "weightcast.rl", *arguments]
    ranks = [Process(*command, environment={**environment(), **place, "RANK": str(rank)}) for rank in (0, 3)]
    for one in ranks:
        done = one.end(PATIENCE)
        assert done.returncode == 1
        lines = [line for line in done.stderr.splitlines() if line.startswith("weightcast.rl")]
        assert len(lines) == 1 and word in lines[0], done.stderr


@pytest.mark.parametrize("arguments", [["--num_training", "4"], ["--clip", "-1"]])
def test_one_rank_says_for_all_what_is_wrong(arguments):
    result = subprocess.run(
        torchrun(3, *arguments), env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("weightcast.rl (")]
    assert result.returncode != 0 and len(lines) == 1 and "(rank 0)" in lines[0], result.stderr


def test_a_reward_that_raises_ends_the_run_with_one_line(tmp_path):
    (tmp_path / "my_reward.py").write_text(
        "def score(prompts, completions):\n    raise ValueError('no such luck')\n"
    )
    more = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    result = subprocess.run(
        torchrun(4, *SMALL, "--reward", "my_reward:score", "--output", str(tmp_path / "run")),
        env={**environment(), **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert result.returncode != 0
    assert (
        "weightcast.rl (rank 0): the reward my_reward:score failed: ValueError: no such luck" in result.stderr
    )
    assert "[rank" not in result.stderr  # No traceback of any rank.


class Apart:
    """Trainers under torchrun, a controller and engines as processes of their own."""

    LEASE = "2"

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self.folder = folder
        self.processes: list[Process] = []
        self.controller_port, self.queue_port = free_port(), free_port()
        script = (
            "import sys, weightcast as wc\n"
            "settings = {'min_engines': 2, 'lease': 2, 'policy': 'each'}\n"
            "with wc.Controller(sys.argv[1], settings=settings):\n"
            "    sys.stdin.read()\n"
        )
        self.start("controller", [sys.executable, "-c", script, f"127.0.0.1:{self.controller_port}"])
        self.trainers = self.start(
            "trainers", torchrun(2, "--role", "trainer", "--rl_iterations", str(count), *self.common())
        )
        self.engines = {name: self.start_engine(name) for name in ("a", "b")}

    def common(self) -> list[str]:
        places = [
            "--controller",
            f"127.0.0.1:{self.controller_port}",
            "--rollout_queue",
            f"127.0.0.1:{self.queue_port}",
        ]
        return [*SMALL, *places, "--lease", self.LEASE, "--verify", "--output", str(self.folder / "run")]

    def start(self, name: str, command: list[str]) -> Process:
        more = {"WEIGHTCAST_TOKEN": "a-token-of-sixteen-characters-or-more"}
        streams = {"log": self.folder / f"{name}.log", "stdin": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.processes.append(Process(*command, environment={**environment(), **more}, **streams))
        return self.processes[-1]

    def start_engine(self, name: str) -> Process:
        command = [sys.executable, "-m", "weightcast.rl", "--role", "inference", "--engine", name]
        return self.start(f"engine-{name}", [*command, *self.common()])

    def wait_iteration(self, number: int) -> None:
        file = self.folder / "run" / "iterations.jsonl"
        self.trainers.wait_until(
            lambda: file.exists() and len(file.read_text().splitlines()) >= number, PATIENCE
        )

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self.processes:
            process.close()


@pytest.fixture
def apart(tmp_path):
    made = []

    def start(count: int) -> Apart:
        made.append(Apart(tmp_path, count))
        return made[-1]

    yield start
    for one in made:
        one.close()


def children_of(pid: int) -> list[int]:
    return [int(one) for one in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_engine_that_is_killed_and_started_again_rejoins_with_the_current_version(apart):
    run = apart(400)
    run.wait_iteration(2)
    run.engines["a"].kill()
    done = len(iterations(run.folder / "run"))
    run.wait_iteration(done + 3)  # Training goes on without it.
    run.start_engine("a")

    def rejoined() -> bool:
        of_a = [one for one in spans(run.folder / "run") if one["process"] == "a"]
        return any(one["kind"] == "generate" and (one["version"] or 0) > done for one in of_a)

    run.trainers.wait_until(rejoined, PATIENCE)
    assert run.trainers.running() and run.engines["b"].running()


def test_an_engine_that_dies_before_it_says_its_digests_is_not_waited_for(apart, tmp_path, monkeypatch):
    """Engine a has committed version 2, and dies while the trainers wait to hear that it is right."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'a' in sys.orig_argv:\n"
        "    from weightcast.rl import engine\n"
        "    digests_of, versions = engine.digests_of, iter((0, 1))\n"
        "    def fatal(*of):\n"
        "        if next(versions, 2) == 2:\n"
        "            time.sleep(0.5)\n"
        "            os._exit(9)\n"
        "        return digests_of(*of)\n"
        "    engine.digests_of = fatal\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    run = apart(4)
    assert run.trainers.wait(PATIENCE) == 0, run.said("trainers")  # Less than its --timeout.
    assert run.engines["a"].wait(PATIENCE) == 9
    assert [row["metrics"]["engines_verified"] for row in iterations(run.folder / "run")] == [2, 1, 1, 1]
    assert run.said("trainers").count("version 2: engine a has left, so its weights were not compared") == 1


def test_weights_that_no_engine_has_any_more_end_the_run_and_say_so(apart, tmp_path, monkeypatch):
    """Both engines die of the first rollouts with version 2. Nobody gives it to the one that comes again."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'inference' in sys.orig_argv:\n"
        "    from weightcast.rl import engine\n"
        "    generate = engine.generate\n"
        "    def fatal(*of, version, **more):\n"
        "        return os._exit(9) if version() == 2 else generate(*of, version=version, **more)\n"
        "    engine.generate = fatal\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    run = apart(4)
    for one in run.engines.values():
        assert one.wait(PATIENCE) == 9
    assert run.trainers.running()
    again = run.start_engine("a")
    assert run.trainers.wait(60) != 0  # Less than its --timeout.
    assert "rank 0): no running engine has version 2" in run.said("trainers")
    assert again.wait(60) != 0


def test_a_trainer_that_is_killed_ends_the_run_in_time_with_its_name(apart):
    run = apart(400)
    run.wait_iteration(1)
    trainer = children_of(run.trainers.pid)[-1]
    os.kill(trainer, signal.SIGKILL)
    begin = time.monotonic()
    codes = [one.wait(PATIENCE) for one in (run.trainers, *run.engines.values())]
    assert time.monotonic() - begin < 2 * float(run.LEASE) + 5
    assert all(code != 0 for code in codes)
    assert str(trainer) in run.said("trainers")
    for name in run.engines:
        assert "the run has ended: trainer 0" in run.said(f"engine-{name}")
