"""GPUs of the fake driver (tests/fake_cuda), as a program uses them: for functions that run in processes of
their own, since a process looks for its driver once. The fixture `gpus` makes the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import weightcast as wc

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = pathlib.Path(
    os.environ.get("WC_TEST_CUDA_LIBRARY", ROOT / "build" / "debug" / "tests" / "libfake_cuda.so")
)
# Of the machine. Nothing of a test lies on the others: each is held to hold one stream of these.
USED = 2
_GATES = 2  # Of each of up to three processes.
GPUS = USED + 3 * _GATES

_NON_BLOCKING = 1
_NO_TIMING = 2
_NOT_READY = 600
_HOST = 1 << 22
# What waits for all that a device does, and what a driver may do so in. None of it is for a data path.
WAITS_FOR_ALL = ("cuCtxSynchronize", "cuStreamSynchronize", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc")


class Machine:
    """This process as a user of all GPUs. For one thread.

    rank: among the processes of a test.
    """

    def __init__(self, rank: int = 0) -> None:
        self._cuda = ctypes.CDLL(os.fspath(LIBRARY))
        self._call("cuInit", 0)
        self._contexts = [ctypes.c_void_p() for _ in range(GPUS)]
        for gpu, context in enumerate(self._contexts):
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        self._pinned = ctypes.c_void_p()
        with self._on(0):
            self._call("cuMemHostAlloc", ctypes.byref(self._pinned), ctypes.c_size_t(_HOST), 1)
        self._own = [self.stream(gpu) for gpu in range(GPUS)]
        first = USED + rank * _GATES
        self._gates = [(gpu, wc.allocate(4096, device=gpu)) for gpu in range(first, first + _GATES)]

    # --- Memory

    def array(self, data: np.ndarray, gpu: int = 0) -> Any:
        """An array with these bytes."""
        made = wc.allocate(data.shape, data.dtype, device=gpu)
        self.write(made, data)
        return made

    def write(self, array: Any, data: np.ndarray) -> None:
        self._copy(array, np.ascontiguousarray(data).view(np.uint8).reshape(-1), to_device=True)

    def read(self, array: Any) -> np.ndarray:
        face = array.__cuda_array_interface__
        found = np.empty(face["shape"], np.dtype(face["typestr"]))
        self._copy(array, found.reshape(-1).view(np.uint8), to_device=False)
        return found

    def _copy(self, array: Any, host: np.ndarray, *, to_device: bool) -> None:
        gpu, at = array.device, pointer(array)
        for begin in range(0, host.size, _HOST):
            piece = host[begin : begin + _HOST]
            addresses = [ctypes.c_uint64(at + begin), ctypes.c_uint64(self._pinned.value)]
            if to_device:
                ctypes.memmove(self._pinned, piece.ctypes.data, piece.size)
            else:
                addresses.reverse()
            with self._on(gpu):
                own = ctypes.c_void_p(self._own[gpu])
                self._call("cuMemcpyAsync", *addresses, ctypes.c_size_t(piece.size), own)
            self.finish(self._own[gpu], gpu)
            if not to_device:
                ctypes.memmove(piece.ctypes.data, self._pinned, piece.size)

    # --- Streams

    def stream(self, gpu: int = 0) -> int:
        made = ctypes.c_void_p()
        with self._on(gpu):
            self._call("cuStreamCreateWithPriority", ctypes.byref(made), _NON_BLOCKING, 0)
        return made.value

    def fill(self, array: Any, value: int, stream: int) -> None:
        """Leaves it in the stream."""
        with self._on(array.device):
            size = ctypes.c_size_t(nbytes(array))
            self._call(
                "cuMemsetD8Async", ctypes.c_uint64(pointer(array)), value, size, ctypes.c_void_p(stream)
            )

    def copy(self, to: Any, from_: Any, stream: int) -> None:
        """Leaves it in the stream; both are of one GPU."""
        with self._on(to.device):
            addresses = ctypes.c_uint64(pointer(to)), ctypes.c_uint64(pointer(from_))
            self._call("cuMemcpyAsync", *addresses, ctypes.c_size_t(nbytes(to)), ctypes.c_void_p(stream))

    def late(self, stream: int, gpu: int = 0, seconds: float = 0.2) -> threading.Timer:
        """What is left in this stream from now on waits for so long; what other streams have goes on."""
        held = self.held(stream, gpu)
        held.__enter__()
        timer = threading.Timer(seconds, held.__exit__, (None, None, None))
        timer.start()
        return timer

    @contextlib.contextmanager
    def held(self, stream: int, gpu: int = 0) -> Iterator[None]:
        """Inside, all that is left in this stream waits; what other streams have goes on."""
        gate, scratch = self._gates.pop()
        self._cuda.fake_cuda_hold(gate)
        self.fill(scratch, 0, self._own[gate])
        event = self._record(self._own[gate], gate)
        with self._on(gpu):
            self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        try:
            yield
        finally:
            self._cuda.fake_cuda_release(gate)
            with self._on(gate):
                self._call("cuEventSynchronize", event)
                self._call("cuEventDestroy_v2", event)
            self._gates.append((gate, scratch))

    def is_busy(self, stream: int, gpu: int = 0) -> bool:
        event = self._record(stream, gpu)
        with self._on(gpu):
            result = self._cuda.cuEventQuery(event)
            self._call("cuEventDestroy_v2", event)
        assert result in (0, _NOT_READY), result
        return result == _NOT_READY

    def finish(self, stream: int, gpu: int = 0) -> None:
        event = self._record(stream, gpu)
        with self._on(gpu):
            self._call("cuEventSynchronize", event)
            self._call("cuEventDestroy_v2", event)

    def _record(self, stream: int, gpu: int) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        with self._on(gpu):
            self._call("cuEventCreate", ctypes.byref(event), _NO_TIMING)
            self._call("cuEventRecord", event, ctypes.c_void_p(stream))
        return event

    # --- The driver

    def calls(self, *names: str) -> int:
        self._cuda.fake_cuda_calls.restype = ctypes.c_uint64
        return sum(self._cuda.fake_cuda_calls(name.encode()) for name in names)

    def disturbing(self) -> int:
        """Calls of this process that would have disturbed a capture in another thread."""
        self._cuda.fake_cuda_disturbing.restype = ctypes.c_uint64
        return self._cuda.fake_cuda_disturbing()

    def hold(self, gpu: int) -> None:
        """What is left with this GPU waits until `release`."""
        self._cuda.fake_cuda_hold(gpu)

    def release(self, gpu: int) -> None:
        self._cuda.fake_cuda_release(gpu)

    def capture(self, stream: int, on: bool) -> None:
        with self._on(0):
            assert self._cuda.fake_cuda_capture(ctypes.c_void_p(stream), int(on)) == 0

    def lose(self, gpu: int) -> None:
        """This process's context there: as an uncorrectable memory error."""
        self._cuda.fake_cuda_lose(0, gpu, 214, ctypes.c_uint64(0))

    @contextlib.contextmanager
    def _on(self, gpu: int) -> Iterator[None]:
        self._call("cuCtxPushCurrent_v2", self._contexts[gpu])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"


class Face:
    """An array of another package: nothing but the interface. `of` keeps its memory."""

    def __init__(self, of: Any, shape: tuple[int, ...] | None = None, offset: int = 0, **face: Any) -> None:
        found = of.__cuda_array_interface__
        address, read_only = found["data"]
        shape = found["shape"] if shape is None else shape
        self._of, self.device = of, of.device
        self.__cuda_array_interface__ = {
            **found,
            "shape": shape,
            "data": (address + offset, read_only),
            **face,
        }


def pointer(array: Any) -> int:
    return array.__cuda_array_interface__["data"][0]


def nbytes(array: Any) -> int:
    face = array.__cuda_array_interface__
    return int(np.prod(face["shape"], dtype=np.int64)) * np.dtype(face["typestr"]).itemsize


def of(array: Any) -> tuple[int, int]:
    return pointer(array), nbytes(array)
