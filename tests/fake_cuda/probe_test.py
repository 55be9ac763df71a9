"""The experiments of tests/gpu/probe.cc on the fake driver: all of their code runs, figures say nothing."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

PROBE = os.environ["WC_TEST_GPU_PROBE"]
LIBRARY = os.environ["WC_TEST_CUDA_LIBRARY"]
EXPERIMENTS = ["E2", "E4", "E6", "E7", "E8", "E9", "E10", "E11", "E12", "E13"]
KEYS = ["experiment", "predicted", "measured", "unit", "verdict", "note", "figures"]


class ProbeTest(unittest.TestCase):
    def probe(self, *arguments: str, machine: str) -> tuple[int, list[dict], str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))}
        with tempfile.TemporaryDirectory() as folder:
            environment = {"WEIGHTCAST_CUDA_LIBRARY": LIBRARY, "FAKE_CUDA": f"dir={folder},{machine}"}
            done = subprocess.run(
                [PROBE, *arguments], env=inherited | environment, capture_output=True, text=True, timeout=170
            )
            deadline = time.monotonic() + 20
            while os.listdir(folder) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertEqual(os.listdir(folder), [], "the fake machine has not ended")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        for line in lines:
            self.assertEqual(list(line), KEYS)
        return done.returncode, lines, done.stderr

    def all(self, machine: str) -> dict[str, dict]:
        began = time.monotonic()
        status, lines, errors = self.probe("all", machine=machine)
        self.assertEqual(status, 0, errors)
        self.assertLess(time.monotonic() - began, 62)
        found = {line["experiment"].split(":")[0]: line for line in lines}
        self.assertEqual(list(found), EXPERIMENTS)
        # What does not depend on time. The fake ends who frees memory that is open elsewhere.
        self.assertEqual(found["E7"]["measured"], "0")
        self.assertGreaterEqual(found["E7"]["figures"]["host_flags"], 512)
        self.assertEqual(found["E9"]["measured"], "go on, no error")
        self.assertIn("legacy, freed", found["E9"]["note"])
        self.assertIn("the exporter ended as it freed", found["E9"]["note"])
        self.assertEqual(found["E11"]["measured"], "works")
        self.assertEqual(found["E13"]["measured"], "refused by cuMemCreate")
        return found

    def test_four_devices(self):
        found = self.all("gpus=4,gib=2")
        self.assertIn("two_to_two_pushed", found["E2"]["figures"])
        self.assertIn("device 1 to device 0", found["E8"]["note"])

    def test_one_device(self):
        found = self.all("gpus=1,gib=2")
        self.assertEqual(found["E2"]["verdict"], "skipped")
        self.assertEqual(found["E7"]["figures"]["pushed_flags"], 0)
        self.assertIn("within device 0", found["E8"]["note"])

    def test_a_driver_without_batches_and_with_fabric_handles(self):
        status, (tensors, fabric), _ = self.probe("e4", "e13", machine="gpus=2,gib=2,driver=12000,imex=1")
        self.assertEqual(status, 0)
        self.assertIn("single copies", tensors["note"])
        self.assertEqual((fabric["measured"], fabric["verdict"]), ("made", "not as predicted"))

    def test_an_experiment_that_fails(self):
        status, (flags, fabric), errors = self.probe("e7", "e13", machine="gpus=2,gib=2,writes=0")
        self.assertEqual(status, 1)
        self.assertIn("it failed", flags["note"])
        self.assertEqual(fabric["measured"], "refused by cuMemCreate")
        self.assertIn("cuStreamWriteValue64", errors)

    def test_a_name_that_there_is_not(self):
        status, lines, errors = self.probe("e99", machine="gpus=1")
        self.assertEqual((status, lines), (2, []))
        self.assertIn("usage", errors)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
