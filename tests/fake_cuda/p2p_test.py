"""`weightcast bench p2p` with memory of GPUs, on the fake driver: every round's bytes are checked."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

BINARY = os.environ["WC_TEST_BINARY"]
LIBRARY = os.environ["WC_TEST_CUDA_LIBRARY"]
KEYS = {"transport", "memory", "op", "bytes", "iovs", "transfers", "gb_per_s", "p50_us", "p99_us", "devices"}


def bench(*arguments: str, memory: str = "cuda", machine: str = "gpus=2") -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"WEIGHTCAST_CUDA_LIBRARY": LIBRARY, "FAKE_CUDA": f"dir={folder},{machine}"}
        return subprocess.run(
            [BINARY, "bench", "p2p", "--memory", memory, "--milliseconds", "1", "--json", *arguments],
            env=inherited | environment, capture_output=True, text=True, timeout=170,
        )  # fmt: skip


class P2pTest(unittest.TestCase):
    def measured(self, *arguments: str, **options: str) -> list[dict]:
        done = bench(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        results = json.loads(done.stdout)["results"]
        for one in results:
            self.assertGreater(one["gb_per_s"], 0)
            self.assertGreaterEqual(one["transfers"], 10 if one["bytes"] < 1 << 26 else 5)
        return results

    def refused(self, *arguments: str, **options: str) -> str:
        done = bench("--sizes", "8", *arguments, **options)
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_two_devices_by_themselves(self):
        results = self.measured("--sizes", "13,64K,200x4K")
        for one in results:
            self.assertEqual(set(one), KEYS)
            self.assertEqual(one["devices"], [0, 1])
        cases = [(one["transport"], one["op"], one["bytes"], one["iovs"]) for one in results]
        sizes = [(13, 1), (65536, 1), (200 * 4096, 200)]
        self.assertEqual(
            cases, [(t, op, *size) for t in ("shm", "tcp") for op in ("write", "read") for size in sizes]
        )

    def test_one_device(self):
        (write, read) = self.measured("--transports", "shm", "--sizes", "3x70000", machine="gpus=1")
        self.assertEqual(write["devices"] + read["devices"], [0, 0, 0, 0])

    def test_devices_that_are_named_and_handles_of_two_mebibytes(self):
        (one,) = self.measured(
            "--devices", "2,1", "--transports", "shm", "--ops", "read", "--sizes", "5M",
            memory="cuda-pages", machine="gpus=3",
        )  # fmt: skip
        self.assertEqual((one["memory"], one["devices"]), ("cuda-pages", [2, 1]))

    def test_both_directions_of_two_pairs(self):
        (one,) = self.measured(
            "--both", "--pairs", "2", "--transports", "shm", "--ops", "write", "--sizes", "64K"
        )
        self.assertEqual(one["devices"], [0, 1, 0, 1])

    def test_what_is_refused(self):
        words = "--devices names device 7; name one of the 2 that the host of process 1 has"
        self.assertIn(words, self.refused("--devices", "0,7"))
        self.assertIn("'x' is not the number of a GPU", self.refused("--devices", "x"))
        self.assertIn("allowed: write, read", self.refused("--ops", "ping"))
        self.assertIn("add one of them", self.refused("--devices", "0", memory="any"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
