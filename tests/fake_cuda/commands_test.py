"""`weightcast trainer`, `inference` and `demo` with weights on chosen GPUs, on the fake driver."""

import ctypes
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from demo_test import BINARY, LIBRARY, write_model

from processes import Process

GPUS = 4
MODEL = 5 << 20  # Bytes; write_model's has more. What else lies on a GPU has less.


class Machine:
    """A machine of fake GPUs; this process asks it how much of their memory is in use."""

    def __init__(self, folder: str) -> None:
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("WEIGHTCAST_", "CUDA_"))},
            "WEIGHTCAST_CUDA_LIBRARY": LIBRARY,
            "WEIGHTCAST_BIND": "127.0.0.1",
            "WEIGHTCAST_LEASE": "5",
            "FAKE_CUDA": f"dir={folder},gpus={GPUS},gib=1",
        }
        self._cuda = ctypes.CDLL(LIBRARY)
        self._cuda.fake_cuda_start(self.environment["FAKE_CUDA"].encode())
        self._call("cuInit", 0)
        self._contexts = [ctypes.c_void_p() for _ in range(GPUS)]
        for gpu, context in enumerate(self._contexts):
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)

    def with_weights(self) -> set[int]:
        """The GPUs whose memory holds a model, or more."""
        return {gpu for gpu in range(GPUS) if self._used(gpu) >= MODEL}

    def close(self) -> None:
        self._cuda.fake_cuda_stop()

    def _used(self, gpu: int) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuCtxPushCurrent_v2", self._contexts[gpu])
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return total.value - free.value

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise AssertionError(f"{name}: {result}")


class CommandsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        (Path(cls.folder.name) / "machine").mkdir()
        cls.machine = Machine(f"{cls.folder.name}/machine")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.machine.close()
        cls.folder.cleanup()

    def start(self, *arguments: object) -> Process:
        process = Process(BINARY, *arguments, environment=self.machine.environment)
        self.addCleanup(process.close)
        return process

    def refused(self, *arguments: object) -> str:
        done = subprocess.run(
            [BINARY, *map(str, arguments)], env=self.machine.environment,
            text=True, capture_output=True, timeout=120,
        )  # fmt: skip
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def roles(self, trainer: list[str], engine: list[str]) -> None:
        """The newest of two versions from one to the other; what is written is what was sent."""
        with tempfile.TemporaryDirectory() as folder:
            for version in (1, 2):
                checkpoint = Path(folder) / "run" / f"step-{version}"
                checkpoint.mkdir(parents=True)
                write_model(checkpoint / "model.safetensors")
            controller = self.start("controller", "--listen", "127.0.0.1:0")
            place = ["--controller", controller.line(120).removeprefix("listening at ")]
            watch = ["--checkpoint", f"{folder}/run", "--watch"]
            sender = self.start("trainer", *place, *watch, "--exit-after", "1", *trainer)
            output = ["--like", f"{folder}/run/step-1", "--output", f"{folder}/out"]
            receiver = self.start("inference", *place, "--engine", "e", *output, *engine)
            self.assertIn("version ", receiver.line(120))
            self.assertIn("version 2 committed", sender.line(120))
            (written,) = Path(folder).glob("out/e/*/*.safetensors")
            sent = Path(folder) / "run" / "step-2" / "model.safetensors"
            self.assertEqual(written.read_bytes(), sent.read_bytes())

    def test_a_trainer_and_an_engine_on_gpus_of_their_own(self):
        self.roles(["--memory", "cuda", "--device", "2"], ["--memory", "cuda-pages", "--device", "1"])

    def test_a_trainer_on_a_gpu_and_an_engine_in_host_memory(self):
        self.roles(["--memory", "cuda", "--device", "3"], [])

    def test_an_engine_on_a_gpu_and_a_trainer_in_files(self):
        self.roles([], ["--memory", "cuda", "--landing", "shadow"])

    def test_weights_lie_where_they_are_to_lie(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder) / "model.safetensors")
            controller = self.start("controller", "--listen", "127.0.0.1:0")
            place = ["--controller", controller.line(120).removeprefix("listening at ")]
            on = ["--memory", "cuda", "--device"]
            sender = self.start("trainer", *place, "--checkpoint", folder, *on, "3")
            receiver = self.start("inference", *place, "--engine", "e", "--like", folder, *on, "1")
            self.assertIn("version 1", receiver.line(120))
            self.assertIn("version 1 committed", sender.line(120))
            self.assertEqual(self.machine.with_weights(), {1, 3})

    def test_checksums_of_gpu_memory_are_refused_with_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder) / "model.safetensors")
            controller = self.start("controller", "--listen", "127.0.0.1:0")
            place = ["--controller", controller.line(120).removeprefix("listening at ")]
            trainer = ["trainer", *place, "--checkpoint", folder, "--memory", "cuda"]
            advice = "set checksum to 0 and compare to 1"
            self.assertIn(advice, self.refused(*trainer, "--checksum", "1"))
            self.start("inference", *place, "--engine", "e", "--like", folder, "--checksum", "1")
            self.assertIn(advice, self.refused(*trainer))

    def test_a_demo_on_chosen_gpus(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder) / "model.safetensors")
            chosen = ["--memory", "cuda", "--trainer-devices", "3", "--inference-devices", "1,2"]
            process = self.start("demo", "--versions", "3", "--checkpoint", folder, *chosen)
            seen: set[int] = set()
            while process.running():
                seen |= self.machine.with_weights()
            done = process.end()
            self.assertEqual(done.returncode, 0)
            self.assertIn("bit-exact", done.stdout)
            self.assertEqual(seen, {1, 2, 3})

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder) / "model.safetensors")
            trainer = ["trainer", "--checkpoint", folder]
            engine = ["inference", "--engine", "e", "--like", folder]
            for role in (trainer, engine):
                self.assertIn("--memory cuda", self.refused(*role, "--device", "1"))
                self.assertIn(
                    "'one' is not the number of a GPU",
                    self.refused(*role, "--memory", "cuda", "--device", "one"),
                )
            self.assertIn("no GPU 4", self.refused(*engine, "--memory", "cuda", "--device", "4"))
            self.assertIn("--private-copy", self.refused(*trainer, "--memory", "cuda", "--private-copy"))
            self.assertIn("--trainer-devices", self.refused("demo", "--trainer-devices", "1"))
            bench = ["bench", "update", "--memory", "cuda", "--inference-devices"]
            self.assertIn("'x' is not the number of a GPU", self.refused(*bench, "x"))
            demo = ["demo", "--checkpoint", folder, "--memory", "cuda"]
            self.assertIn("no GPU 9", self.refused(*demo, "--trainer-devices", "9"))


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
