"""`weightcast demo` with weights in the memory of GPUs, on the fake driver: every byte is checked."""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BINARY = os.environ["WC_TEST_BINARY"]
LIBRARY = os.environ["WC_TEST_CUDA_LIBRARY"]


def write_model(path: Path) -> None:
    """About 6 MB: matrices that are cut into rows and columns, norms, and an embedding."""
    shapes = {"model.embed_tokens.weight": (1000, 512), "model.norm.weight": (512,)}
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (512, 512),
            prefix + "self_attn.o_proj.weight": (512, 512),
            prefix + "mlp.down_proj.weight": (512, 768),
            prefix + "input_layernorm.weight": (512,),
        }
    entries, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + random.Random(1).randbytes(at))


def demo(*arguments: str, machine: str = "gpus=4,gib=2") -> subprocess.CompletedProcess:
    """Two versions of a small model on a machine of its own."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as model:
        write_model(Path(model) / "model.safetensors")
        environment = {"WEIGHTCAST_CUDA_LIBRARY": LIBRARY, "FAKE_CUDA": f"dir={folder},{machine}"}
        return subprocess.run(
            [BINARY, "demo", "--versions", "2", "--checkpoint", model, "--json", *arguments],
            env=inherited | environment, capture_output=True, text=True, timeout=170,
        )  # fmt: skip


class DemoTest(unittest.TestCase):
    def check(self, *arguments: str, transport: str = "shm", **machine: str) -> None:
        result = demo(*arguments, **machine)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        report = json.loads(result.stdout)
        self.assertTrue(report["bit_exact"])
        self.assertEqual(report["transport"], transport)
        self.assertEqual([one["version"] for one in report["updates"]], [1, 2])
        whole = report["bytes_per_replica"]
        self.assertTrue(all(one["bytes"] >= whole for one in report["updates"]))

    def test_in_place(self):
        self.check("--memory", "cuda")

    def test_shadow(self):
        self.check("--memory", "cuda", "--landing", "shadow")

    def test_handles_of_two_mebibytes(self):
        self.check("--memory", "cuda-pages")

    def test_a_trainer_on_host_memory(self):
        self.check("--memory", "mixed")

    def test_tensor_parallel_ranks_get_columns(self):
        self.check("--memory", "cuda", "--engines", "1", "--trainer-layout", "fsdp")

    def test_over_tcp(self):
        self.check("--memory", "cuda", "--transport", "tcp", transport="tcp")

    def test_over_tcp_into_a_shadow_from_a_host_and_a_device(self):
        self.check("--memory", "mixed", "--landing", "shadow", "--transport", "tcp", transport="tcp")

    def test_no_driver(self):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))}
        result = subprocess.run(
            [BINARY, "demo", "--memory", "cuda"],
            env=inherited | {"WEIGHTCAST_CUDA_LIBRARY": "/nowhere/libcuda.so.1"},
            capture_output=True, text=True, timeout=170,
        )  # fmt: skip
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("/nowhere/libcuda.so.1", result.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
