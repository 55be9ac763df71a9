"""Arrays in the memory of GPUs, from Python, on the fake driver: without torch, by their interface alone.

tests/python/test_device_arrays.py runs it, in a process that has no other driver.
"""

import ctypes
import os
import sys
import tempfile
import unittest
from pathlib import Path

LIBRARY = os.environ["WC_TEST_CUDA_LIBRARY"]

# Before the package is there: it looks for the driver once.
_folder = tempfile.TemporaryDirectory()
os.environ |= {"WEIGHTCAST_CUDA_LIBRARY": LIBRARY, "FAKE_CUDA": f"dir={_folder.name}/machine,gpus=2"}
os.environ |= {"WEIGHTCAST_BIND": "127.0.0.1", "WEIGHTCAST_LOG_LEVEL": "warning"}
(Path(_folder.name) / "machine").mkdir()

import weightcast as wc  # noqa: E402

_DEVICE = 1
_BYTES = 3 << 20


class Driver:
    """This process as the user of a device: its context, and a stream that may be slow."""

    def __init__(self) -> None:
        self._cuda = ctypes.CDLL(LIBRARY)
        self._context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), _DEVICE)
        self._call("cuCtxPushCurrent_v2", self._context)
        self._call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)

    def _call(self, name: str, *arguments) -> None:
        result = getattr(self._cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def fill(self, array, value: int) -> None:
        """Leaves it in the stream."""
        address = array.__cuda_array_interface__["data"][0]
        self._call("cuMemsetD8Async", ctypes.c_uint64(address), value, ctypes.c_size_t(_BYTES), self.stream)

    def hold(self) -> None:
        self._cuda.fake_cuda_hold(_DEVICE)

    def release(self) -> None:
        self._cuda.fake_cuda_release(_DEVICE)


DRIVER = Driver()


def digests(side) -> list:
    return [one.digest for one in side.digest()]


class ArraysTest(unittest.TestCase):
    def test_an_update_waits_for_the_stream(self):
        source = wc.allocate((_BYTES,), "uint8", device=f"cuda:{_DEVICE}")
        target = wc.allocate((_BYTES,), "uint8", device=_DEVICE)
        stream = DRIVER.stream.value
        DRIVER.fill(source, 1)
        DRIVER.fill(target, 2)
        wc._weightcast.wait_stream(_DEVICE, stream)
        with wc.Controller("127.0.0.1:0") as controller:
            trainer = wc.Trainer(controller.address)
            trainer.register({"weight": source})
            engine = wc.Inference(controller.address, engine="rollout")
            engine.register({"weight": target}, landing="shadow")
            before = digests(trainer)
            DRIVER.hold()
            DRIVER.fill(source, 7)
            update = trainer.publish(1, stream=stream)  # Returns although the stream has not got so far.
            with self.assertRaises(wc.TimedOut):
                update.wait_sources(0.3)
            self.assertEqual(engine.version.number, -1)
            DRIVER.release()
            self.assertEqual(int(engine.wait(timeout=60, stream=stream)), 1)
            update.wait(60)
            self.assertNotEqual(digests(trainer), before)
            self.assertEqual(digests(engine), digests(trainer))
            engine.close()
            trainer.close()

    def test_an_endpoint_takes_them(self):
        array = wc.allocate((_BYTES,), "uint8", device=_DEVICE)
        with wc.Endpoint(token="secret") as endpoint:
            region = endpoint.register(array)
            self.assertEqual(region.nbytes, _BYTES)
            region.close()

    def test_refusals(self):
        with self.assertRaisesRegex(wc.InvalidArgument, "device is 'moon'"):
            wc.allocate(4, device="moon")
        with self.assertRaises(wc.Error):
            wc.allocate(4, device=7)


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=2))
