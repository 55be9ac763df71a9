"""Plans that are wrong, or too large: refused in one line, whatever memory there is."""

import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import unittest

from harness import MIB, JobTest, main, wait_until

from cli import BINARY, fails, only_json, run

SEED = int(os.environ.get("WC_SEED", random.SystemRandom().randrange(1 << 32)))


def layout(ranks: int, tensors: dict[str, tuple[list[int], list]]) -> dict:
    """Tensors of bytes: {name: (shape, [[rank, offsets, sizes], ...])}."""
    listed = [
        {"name": name, "dtype": "U8", "shape": shape, "boxes": boxes}
        for name, (shape, boxes) in tensors.items()
    ]
    return {"ranks": ranks, "tensors": listed}


def rows(count: int, ranks: int, columns: int = 4) -> tuple[list[int], list]:
    """A tensor of `count` rows, cut evenly over the ranks."""
    each = count // ranks
    return [count, columns], [[rank, [rank * each, 0], [each, columns]] for rank in range(ranks)]


class FusedTensors(unittest.TestCase):
    """An engine's rank holds [q_r; k_r; v_r], which is not a range of rows of [q; k; v]."""

    def plan(self, inference: dict, rules: list) -> subprocess.CompletedProcess:
        trainers = layout(1, {name: rows(48, 1) for name in ("l.q_proj", "l.k_proj", "l.v_proj")})
        with tempfile.TemporaryDirectory(prefix="wc-plan-") as folder:
            flags = []
            files = {"layout-trainers": trainers, "layout-inference": inference, "rules": {"rules": rules}}
            for name, content in files.items():
                path = pathlib.Path(folder, f"{name}.json")
                path.write_text(json.dumps(content))
                flags += [f"--{name}", path]
            return run("plan", *flags, "--json")

    fuse = {"fuse": ["{*}.q_proj", "{*}.k_proj", "{*}.v_proj"], "to": "{*}.qkv_proj"}

    def test_a_part_of_the_fused_rows_is_refused(self) -> None:
        for ranks in (2, 3, 4, 8):  # Of three, each rank's rows would be all of q, or of k, or of v.
            result = self.plan(layout(ranks, {"l.qkv_proj": rows(144, ranks)}), [self.fuse])
            fails(
                result,
                "rule 1",
                "'l.qkv_proj'",
                "inference rank 0",
                "'l.q_proj', 'l.k_proj', 'l.v_proj'",
                "views",
            )

    def test_views_of_each_are_planned(self) -> None:
        for ranks in (2, 3, 4, 8):
            names = ("l.q_proj", "l.k_proj", "l.v_proj")
            report = only_json(self.plan(layout(ranks, {name: rows(48, ranks) for name in names}), []))
            self.assertEqual(report["receiver_bytes"], [3 * 48 * 4 // ranks] * ranks)

    def test_the_whole_and_columns_are_planned(self) -> None:
        columns = [[rank, [0, rank], [144, 1]] for rank in range(4)]
        for ranks, boxes in ((1, rows(144, 1)[1]), (4, columns)):
            report = only_json(self.plan(layout(ranks, {"l.qkv_proj": ([144, 4], boxes)}), [self.fuse]))
            self.assertEqual(report["bytes"], 3 * 48 * 4)

    def test_the_preset_with_a_fused_tensor_gives_each_rank_a_part_of_q_k_and_v(self) -> None:
        flags = [
            "--model",
            "gpt2",
            "--trainers",
            1,
            "--inference",
            2,
            "--engines",
            1,
            "--routes",
            1000,
            "--json",
        ]
        report = only_json(run("plan", *flags))
        of_rank_1 = [
            route["box"]
            for route in report["first_routes"]
            if route["tensor"] == "h.0.attn.c_attn.weight" and route["inference"] == 1
        ]
        self.assertEqual(sorted(of_rank_1), ["[0:768, 1152:1536]", "[0:768, 1920:2304]", "[0:768, 384:768]"])


def random_case(chance: random.Random, folder: pathlib.Path) -> list:
    """Flags of a plan of random size."""
    if chance.random() < 0.6:
        model = chance.choice(["gpt2", "qwen2.5-0.5b"])
        side = ["--trainer-layout", chance.choice(["ddp", "fsdp"])]
        return [
            "--model",
            model,
            "--trainers",
            chance.randint(1, 48),
            "--inference",
            chance.randint(1, 48),
            *side,
        ]
    flags = []
    tensors = chance.choice([10, 2000])
    for side in ("trainers", "inference"):
        ranks = chance.choice([1, 2, 4, 8])
        path = folder / f"{side}.json"
        path.write_text(json.dumps(layout(ranks, {f"t{i}": rows(64, ranks) for i in range(tensors)})))
        flags += [f"--layout-{side}", path]
    return flags


class LittleMemory(JobTest):
    """Planning under random `ulimit -v`: it succeeds, or one line says that the memory does not suffice."""

    def setUp(self) -> None:
        print(f"{self.id()}: WC_SEED={SEED}", file=sys.stderr)
        self.chance = random.Random(SEED)

    def test_weightcast_plan(self) -> None:
        least = self.least_memory()
        outcomes = {"planned": 0, "refused": 0}
        with tempfile.TemporaryDirectory(prefix="wc-plan-") as folder:
            for _ in range(22):
                flags = random_case(self.chance, pathlib.Path(folder))
                whole = only_json(run("plan", *flags, "--json"))
                for _ in range(4):
                    limit = least + int(2 ** self.chance.uniform(16, 28))
                    outcomes[self.plan_under(limit, flags, whole)] += 1
        print(f"{self.id()}: from {least / MIB:.1f} MiB: {outcomes}", file=sys.stderr)
        self.assertGreater(min(outcomes.values()), 5)

    def test_a_controller(self) -> None:
        """Beside what it uses it has more or less room, while engines come."""
        outcomes = {"planned": 0, "refused": 0}
        with self.job(weights={f"t.{i}": ("U8", [64]) for i in range(2000)}) as job:
            job.start_all()
            controller = job.processes["controller"].process
            for number in range(8):
                spare = int(2 ** self.chance.uniform(20, 27))
                resource.prlimit(
                    controller.pid, resource.RLIMIT_AS, (virtual_size(controller.pid) + spare, -1)
                )
                outcome = self.engine_comes(job, f"e{number}")
                resource.prlimit(controller.pid, resource.RLIMIT_AS, (-1, -1))
                job.check_alive()
                outcomes[outcome] += 1
            job.publish()
        print(f"{self.id()}: {outcomes}", file=sys.stderr)
        self.assertGreater(outcomes["planned"], 2)

    def engine_comes(self, job, name: str) -> str:
        engine = job.start_engine(name)
        version = job.write()
        ended = engine.process.poll
        wait_until(lambda: ended() is not None or job.serves(name, version), f"{name} is updated or refused")
        job.wait_served(version, engines=["a"])
        job.engines.pop(name)
        job.processes.pop(f"engine-{name}-0")
        if ended() is None:
            engine.stop()
            return "planned"
        self.assertEqual(ended(), 1, engine.errors())
        self.assertIn("memory", engine.errors().splitlines()[-1])
        return "refused"

    def plan_under(self, limit: int, flags: list, whole: dict) -> str:
        result = run("plan", *flags, "--json", prefix=["prlimit", f"--as={limit}"])
        case = f"--as={limit} {' '.join(map(str, flags))}: {result.returncode} {result.stderr}"
        self.assertIn(result.returncode, (0, 1), case)
        if result.returncode == 0:
            report = only_json(result)
            for key in ("routes", "bytes", "sender_bytes", "receiver_bytes"):
                self.assertEqual(report[key], whole[key], case)
            return "planned"
        self.assertEqual(len(result.stderr.splitlines()), 1, case)
        self.assertIn("memory", result.stderr, case)
        return "refused"

    def least_memory(self) -> int:
        """With which the binary starts at all."""
        low, high = 1 * MIB, 1024 * MIB
        while high - low > MIB // 4:
            middle = (low + high) // 2
            tried = subprocess.run(
                ["prlimit", f"--as={middle}", str(BINARY), "plan", "--help"], capture_output=True, check=False
            )
            low, high = (low, middle) if tried.returncode == 0 else (middle, high)
        return high


class OneEngineTooMany(JobTest):
    def test_only_the_newest_is_refused_with_the_numbers(self) -> None:
        with self.job(weights={f"t.{i}": ("U8", [64]) for i in range(200)}) as job:
            # 200 routes an engine, of 160 bytes each, and 200 boxes of 16 bytes.
            job.start_controller("--plan-memory", "80K", "--min-engines", 2)
            job.start_trainer()
            job.start_engine("a")
            job.start_engine("b")
            job.publish()
            for engine in ("c", "d"):
                newest = job.start_engine(engine)
                job.engines.pop(engine)
                self.assertEqual(newest.end().returncode, 1)
                line = newest.errors().splitlines()[-1]
                self.assertRegex(
                    line, r"from 1 ranks to 3 has 600 routes .* takes about .* of memory, .*plan_memory"
                )
                job.processes.pop(f"engine-{engine}-0")
                job.publish()
                job.check_alive()


def virtual_size(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
