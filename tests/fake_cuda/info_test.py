"""`weightcast info` on the fake driver: which GPUs there are, or why there is none."""

import json
import os
import re
import subprocess
import sys
import unittest

BINARY = os.environ["WC_TEST_BINARY"]
LIBRARY = os.environ["WC_TEST_CUDA_LIBRARY"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))}
    result = subprocess.run(
        [BINARY, *arguments], env=inherited | environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result


def cuda(*arguments: str, **environment: str) -> dict:
    return json.loads(run("info", "--json", *arguments, **environment).stdout)["cuda"]


def libraries_looked_for(*arguments: str) -> list[str]:
    """What the dynamic linker was asked for, also where it found nothing."""
    log = run(*arguments, LD_DEBUG="libs").stderr
    return re.findall(r"find library=(\S+)", log)


class InfoTest(unittest.TestCase):
    def test_devices_of_the_driver(self):
        machine = {"WEIGHTCAST_CUDA_LIBRARY": LIBRARY, "FAKE_CUDA": "gpus=3,peer=0-1,driver=12080"}
        found = cuda(**machine)
        self.assertEqual((found["works"], found["reason"], found["driver"]), (True, None, "12.8"))
        self.assertEqual([one["name"] for one in found["devices"]], [f"Fake GPU {i}" for i in range(3)])
        self.assertEqual([one["reaches"] for one in found["devices"]], [[1], [0], []])
        self.assertEqual(len({one["uuid"] for one in found["devices"]}), 3)
        text = run("info", **machine)
        self.assertRegex(text.stdout, r"(?m)^CUDA: driver for CUDA 12\.8$")
        self.assertRegex(text.stdout, r"(?m)^ *0 +Fake GPU 0 +0000:10:00\.0 +GPU-[0-9a-f-]{36} +1$")
        self.assertRegex(text.stdout, r"(?m)^ *2 +Fake GPU 2 +0000:12:00\.0 +GPU-[0-9a-f-]{36} +-$")
        self.assertNotIn("no setting is called", text.stderr)

    def test_only_devices_that_the_process_sees(self):
        found = cuda(WEIGHTCAST_CUDA_LIBRARY=LIBRARY, FAKE_CUDA="gpus=3", CUDA_VISIBLE_DEVICES="2")
        self.assertEqual([(one["device"], one["name"]) for one in found["devices"]], [(0, "Fake GPU 2")])
        none = cuda(WEIGHTCAST_CUDA_LIBRARY=LIBRARY, FAKE_CUDA="gpus=3", CUDA_VISIBLE_DEVICES="")
        self.assertFalse(none["works"])
        self.assertRegex(none["reason"], "no device|no CUDA-capable device")

    def test_a_library_that_cannot_be_loaded(self):
        found = cuda(WEIGHTCAST_CUDA_LIBRARY="/nowhere/libcuda.so.1")
        self.assertEqual((found["works"], found["devices"]), (False, []))
        self.assertIn("/nowhere/libcuda.so.1", found["reason"])
        self.assertIn("No such file", found["reason"])
        self.assertIn("WEIGHTCAST_CUDA_LIBRARY", found["reason"])
        text = run("info", WEIGHTCAST_CUDA_LIBRARY="/nowhere/libcuda.so.1").stdout
        self.assertIn("CUDA: no: " + found["reason"], text)

    def test_turned_off(self):
        found = cuda("--gpu", "off", WEIGHTCAST_CUDA_LIBRARY=LIBRARY)
        self.assertFalse(found["works"])
        self.assertIn("setting gpu", found["reason"])
        self.assertNotIn("libcuda.so.1", libraries_looked_for("info", "--gpu", "off"))

    def test_the_driver_is_loaded_by_nobody_else(self):
        self.assertIn("libcuda.so.1", libraries_looked_for("info"))
        self.assertNotIn("libcuda.so.1", libraries_looked_for("plan"))
        self.assertNotIn("libcuda.so.1", libraries_looked_for("demo", "--help"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
