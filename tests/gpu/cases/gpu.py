"""Weights in the memory of one GPU: by torch on a real one, by weightcast's own arrays on the fake driver.

The content of a tensor is a function of version and index, the same in every process, and differs between
versions in every element. What writes is left in a stream and not waited for.
"""

import ctypes
import os
from typing import Any, Protocol

import numpy as np

Shape = tuple[int, ...]
SEED = 20


class Replay(Protocol):
    """Work of an engine that reads all its weights, captured once and run again and again."""

    def run(self) -> None: ...
    def shows(self, version: int) -> bool:
        """Whether the last run read this version, and nothing else. Waits for it."""


class Gpu(Protocol):
    stream: int | None  # For weightcast's calls; None: it finds the current one itself.

    def make(self, shape: Shape, dtype: str) -> Any: ...
    def write(self, tensor: Any, version: int, index: int) -> None: ...
    def equal(self, tensor: Any, version: int, index: int) -> bool: ...
    def address(self, tensor: Any) -> int: ...
    def delay(self) -> None:
        """Holds the stream up for a while, so that what is left in it is certainly not over yet."""

    def wait(self) -> None: ...
    def capture(self, tensors: list[Any]) -> Replay: ...


def shift(version: int, index: int, chunk: int) -> int:
    """Distinct for neighbouring versions, whatever the tensor."""
    return (version * 7919 + index * 104_729 + chunk * 31) & 0x7FFF


class TorchReplay:
    """A CUDA graph with the sum of every tensor's 16-bit words."""

    def __init__(self, gpu: "TorchGpu", tensors: list[Any]) -> None:
        self._gpu, self._tensors = gpu, tensors
        torch = gpu.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._sums(tensors)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._out = self._sums(tensors)

    def _sums(self, tensors: list[Any]) -> Any:
        torch = self._gpu.torch
        return torch.stack([one.view(torch.int16).sum(dtype=torch.int64) for one in tensors])

    def run(self) -> None:
        self._graph.replay()

    def shows(self, version: int) -> bool:
        torch = self._gpu.torch
        spare = [torch.empty_like(one) for one in self._tensors]
        for index, one in enumerate(spare):
            self._gpu.write(one, version, index)
        return bool(torch.equal(self._out, self._sums(spare)))


class TorchGpu:
    CHUNK = 1 << 26
    stream = None

    def __init__(self, device: int) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cuda", device)
        torch.cuda.set_device(self.device)
        generator = torch.Generator(device=self.device).manual_seed(SEED)
        self._base = torch.randint(
            -(1 << 15), 1 << 15, (self.CHUNK,), dtype=torch.int16, device=self.device, generator=generator
        )
        # Of a long kernel: about 50 ms.
        self._cycles = 100_000_000

    def make(self, shape: Shape, dtype: str) -> Any:
        return self.torch.zeros(shape, dtype=getattr(self.torch, dtype), device=self.device)

    def _parts(self, tensor: Any) -> Any:
        return enumerate(tensor.view(self.torch.int16).view(-1).split(self.CHUNK))

    def write(self, tensor: Any, version: int, index: int) -> None:
        if tensor.dtype == self.torch.float32:
            self._write_numbers(tensor, version, index)
            return
        for chunk, part in self._parts(tensor):
            self.torch.add(self._base[: part.numel()], shift(version, index, chunk), out=part)

    def _numbers(self, count: int, version: int, index: int) -> Any:
        """Finite values of FP32 in all magnitudes, whose low bits a cast has to round."""
        high = (self._base[:count] + shift(version, index, 0)).to(self.torch.int32)
        bits = (high << 16) | (self._base[:count].flip(0).to(self.torch.int32) & 0xFFFF)
        return (bits & ~0x40000000).view(self.torch.float32)

    def _write_numbers(self, tensor: Any, version: int, index: int) -> None:
        tensor.view(-1).copy_(self._numbers(tensor.numel(), version, index))

    def equal(self, tensor: Any, version: int, index: int) -> bool:
        torch = self.torch
        return all(
            torch.equal(torch.add(self._base[: part.numel()], shift(version, index, chunk)), part)
            for chunk, part in self._parts(tensor)
        )

    def equal_cast(self, tensor: Any, version: int, index: int) -> bool:
        """Of a tensor that came as FP32: as torch casts it, bit by bit."""
        wanted = self._numbers(tensor.numel(), version, index).to(tensor.dtype)
        return bool(self.torch.equal(wanted.view(self.torch.int16), tensor.view(self.torch.int16).view(-1)))

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def delay(self) -> None:
        self.torch.cuda._sleep(self._cycles)

    def wait(self) -> None:
        self.torch.cuda.synchronize(self.device)

    def capture(self, tensors: list[Any]) -> Replay:
        return TorchReplay(self, tensors)


class FakeReplay:
    """Copies of every tensor, in the stream."""

    def __init__(self, gpu: "FakeGpu", tensors: list[Any]) -> None:
        self._gpu, self._tensors = gpu, tensors
        self._out = [gpu.make(gpu.shape(one), "bfloat16") for one in tensors]

    def run(self) -> None:
        for to, source in zip(self._out, self._tensors, strict=True):
            self._gpu.copy(self._gpu.address(to), self._gpu.address(source), self._gpu.bytes(source))

    def shows(self, version: int) -> bool:
        return all(self._gpu.equal(one, version, index) for index, one in enumerate(self._out))


class FakeGpu:
    """By libcuda's C functions alone."""

    def __init__(self, device: int) -> None:
        self._cuda = ctypes.CDLL(os.environ["WEIGHTCAST_CUDA_LIBRARY"])
        self._device = device
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
        self._event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(self._event), 2)
        self.stream = stream.value
        self._pinned: dict[int, np.ndarray] = {}

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} gives {result}")

    def make(self, shape: Shape, dtype: str) -> Any:
        import weightcast

        kind = {"bfloat16": "uint16"}.get(dtype, dtype)  # numpy has none: the bits are the same.
        return weightcast.allocate(shape, kind, device=self._device)

    def shape(self, tensor: Any) -> Shape:
        return tensor.__cuda_array_interface__["shape"]

    def bytes(self, tensor: Any) -> int:
        found = tensor.__cuda_array_interface__
        return int(np.prod(found["shape"])) * np.dtype(found["typestr"]).itemsize

    def address(self, tensor: Any) -> int:
        return tensor.__cuda_array_interface__["data"][0]

    def _mirror(self, tensor: Any) -> np.ndarray:
        """Pinned memory of the tensor's size."""
        address, size = self.address(tensor), self.bytes(tensor)
        if address not in self._pinned:
            host = ctypes.c_void_p()
            self._call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(size), 0)
            array = (ctypes.c_uint8 * size).from_address(host.value)
            self._pinned[address] = np.frombuffer(array, np.uint8)
        return self._pinned[address]

    def copy(self, to: int, source: int, size: int) -> None:
        address = ctypes.c_uint64
        stream = ctypes.c_void_p(self.stream)
        self._call("cuMemcpyAsync", address(to), address(source), ctypes.c_size_t(size), stream)

    @staticmethod
    def _content(kind: np.dtype, size: int, version: int, index: int) -> np.ndarray:
        count = size // kind.itemsize
        if kind == np.float32:  # Small enough for any other type of numbers.
            return (np.arange(count) % 4093 / 7 + version + index).astype(np.float32)
        values = np.arange(count, dtype=np.uint64) * 40_503 + shift(version, index, 0)
        return values.astype(kind)

    def _kind(self, tensor: Any) -> np.dtype:
        return np.dtype(tensor.__cuda_array_interface__["typestr"])

    def write(self, tensor: Any, version: int, index: int) -> None:
        mirror = self._mirror(tensor)
        self.wait()  # An older copy may still read it.
        mirror[:] = self._content(self._kind(tensor), mirror.size, version, index).view(np.uint8)
        self.copy(self.address(tensor), mirror.ctypes.data, mirror.size)

    def _read(self, tensor: Any) -> np.ndarray:
        mirror = self._mirror(tensor)
        self.wait()
        self.copy(mirror.ctypes.data, self.address(tensor), mirror.size)
        self.wait()
        return mirror

    def equal(self, tensor: Any, version: int, index: int) -> bool:
        found = self._read(tensor)
        wanted = self._content(self._kind(tensor), found.size, version, index)
        return bool((found == wanted.view(np.uint8)).all())

    def equal_cast(self, tensor: Any, version: int, index: int) -> bool:
        kind, found = self._kind(tensor), self._read(tensor)
        count = found.size // kind.itemsize
        wanted = self._content(np.dtype(np.float32), 4 * count, version, index).astype(kind)
        return bool((found == wanted.view(np.uint8)).all())

    def delay(self) -> None:
        """The fake's copies take their time without."""

    def wait(self) -> None:
        self._call("cuEventRecord", self._event, ctypes.c_void_p(self.stream))
        self._call("cuEventSynchronize", self._event)

    def capture(self, tensors: list[Any]) -> Replay:
        return FakeReplay(self, tensors)


def on_fake() -> bool:
    return "FAKE_CUDA" in os.environ


def open_gpu(device: int) -> Gpu:
    """This process's own GPU; call it once."""
    return FakeGpu(device) if on_fake() else TorchGpu(device)
