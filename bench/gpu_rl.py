#!/usr/bin/env python3
"""The RL loop on GPUs: whether it learns, and what an update takes beside NCCL, by one clock.

Half of the GPUs train, half generate. Two runs have Qwen2.5-0.5B's shape and random weights, in BF16 and
FP32, and move every version by each way in turn; engines compare all bytes of each way. Such a model earns
nothing in so few iterations; an entropy bonus moves its weights. The last run learns to sort
(examples/rl_sort.json). One GPU is trainer and engine at once, where NCCL is left out: it wants one for each
rank.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ["--model_name", "Qwen/Qwen2.5-0.5B", "--random_weights"]
SHORT = [
    "--algorithm", "grpo", "--rollouts_per_gpu", "4", "--samples_per_prompt", "4", "--max_gen_length", "8",
    "--entropy_coefficient", "0.01", "--learning_rate", "1e-4",
]  # fmt: skip
LEASE = 20  # Seconds: longer than a library takes to load its kernels.
PROMPTS = 64  # Of an iteration that learns, as the example has them.
ENDS = 5  # Iterations at the beginning and the end of a curve.
KEYS = ("device", "gpu", "cuda", "nccl", "torch", "python", "weightcast")


def ranks(gpus: int) -> tuple[int, list[str]]:
    """How many processes, and the options that say who they are."""
    if gpus == 1:
        return 2, ["--num_training=1", "--num_inference=1", "--trainer_devices=0", "--engine_devices=0"]
    trainers = gpus // 2
    engines = gpus - trainers
    named = [
        f"--trainer_devices={','.join(map(str, range(trainers)))}",
        f"--engine_devices={','.join(map(str, range(trainers, gpus)))}",
    ]
    return gpus, [f"--num_training={trainers}", f"--num_inference={engines}", *named]


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path) -> None:
        self.options, self.folder = options, folder
        self.lines: list[str] = []
        self.versions: dict[str, str] = {}

    def run(self, name: str, *arguments: str) -> list[dict[str, Any]]:
        """A whole run; its iterations."""
        count, who = ranks(self.options.gpus)
        if self.options.device == "cpu":
            who = [one for one in who if "devices" not in one]
        out = self.folder / name
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(count),
        ]
        command += ["-m", "--", "weightcast.rl", f"--device={self.options.device}", *who]
        more = [f"--lease={LEASE}", "--output", str(out)]
        subprocess.run([*command, *arguments, *more], check=True)
        self.versions = json.loads((out / "run.json").read_text())["versions"]
        return [json.loads(line) for line in (out / "iterations.jsonl").read_text().splitlines()]

    def figure(self, what: str, measured: float, unit: str, note: str) -> None:
        row = {"experiment": what, "predicted": "", "measured": measured, "unit": unit, "note": note}
        print(json.dumps(row), flush=True)
        self.lines.append(f"| {what} | {measured:g} | {unit} | {note} |")

    def learning(self) -> None:
        engines = max(1, self.options.gpus - self.options.gpus // 2)
        more = [f"--rollouts_per_gpu={PROMPTS // engines}"]
        if self.options.small:
            more += ["--rl_iterations=6", "--eval_every=3"]
        rows = self.run("learning", "--config", str(ROOT / "examples" / "rl_sort.json"), *more)
        rewards = [row["reward"] for row in rows]
        right = [row["accuracy"] for row in rows if row["accuracy"] is not None]
        first, last = statistics.mean(rewards[:ENDS]), statistics.mean(rewards[-ENDS:])
        seconds = statistics.median(row["total_s"] for row in rows)
        note = (
            f"{first:.3f} at first; {len(rows)} iterations of {seconds:.3f} s; {right[-1]:.1%} of 500 right"
        )
        self.figure("sorting, mean reward at last", round(last, 3), "", note)
        self._ways("tiny-qwen", rows)
        if not self.options.small and last < first + 0.2:
            sys.exit(f"gpu_rl: it has not learned: mean reward {first:.3f}, then {last:.3f}")

    def weights(self, dtype: str) -> None:
        small = self.options.small
        model = ["--model_name", "tiny-qwen"] if small else SHAPE
        sync = "p2p" if self.options.gpus == 1 else "both"
        count = 4 if small else 9
        rows = self.run(
            f"weights-{dtype}",
            *model,
            *SHORT,
            f"--dtype={dtype}",
            f"--sync={sync}",
            f"--rl_iterations={count}",
        )
        self._ways(f"{model[1]}, {dtype}", rows)

    def _ways(self, model: str, rows: list[dict[str, Any]]) -> None:
        for number, first in enumerate(rows[0]["transfers"]):
            moved = [row["transfers"][number] for row in rows]
            took = [1e3 * one["seconds"] for one in moved]
            median = statistics.median(took)
            who = (
                first["way"]
                if first["way"].startswith("weightcast")
                else f"{self._backend()}, {first['way']}"
            )
            changed = min(one["tensors_changed"] for one in moved)
            size = first["bytes"] / 1e6
            note = (
                f"{min(took):.2f}-{max(took):.2f} ms, {len(took)} rounds; {size:.0f} MB to all, "
                f"{size / median:.1f} GB/s; at least {changed} of {first['tensors']} tensors changed"
            )
            self.figure(f"{model}: {who}", round(median, 3), "ms", note)

    def _backend(self) -> str:
        return "NCCL" if "nccl" in self.versions else "gloo"

    def table(self) -> str:
        trainers = max(1, self.options.gpus // 2)
        about = ", ".join(f"{key} {self.versions[key]}" for key in KEYS if key in self.versions)
        head = f"{trainers} trainers, {max(1, self.options.gpus - trainers)} engines; trainer 0: {about}"
        return (
            "\n".join([head, "", "| what | measured | unit | note |", "|---|---|---|---|", *self.lines])
            + "\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=2, help="how many to use")
    parser.add_argument("--table", type=pathlib.Path, help="file for the table")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="cpu: a rehearsal without GPUs"
    )
    parser.add_argument("--small", action="store_true", help="small models and few iterations")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weightcast-rl-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        for dtype in ("bfloat16", "float32"):
            bench.weights(dtype)
        bench.learning()
    text = bench.table()
    print(text, flush=True)
    if options.table:
        options.table.write_text(text)


if __name__ == "__main__":
    main()
