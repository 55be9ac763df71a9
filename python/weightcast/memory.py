"""Where the bytes of an array, a tensor or any other buffer lie."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _weightcast as _core
from .errors import InvalidArgument
from .gpu import allocate_on, cuda_array_of


class Memory(NamedTuple):
    """`array` keeps the memory alive and in its place."""

    address: int
    nbytes: int
    writable: bool
    array: Any
    device: int = -1  # Of a GPU; -1: host memory.


def memory_of(value: Any, name: str = "the memory") -> Memory:
    """The contiguous memory of a numpy array, a torch tensor, an object with the buffer protocol, or one with
    `__cuda_array_interface__`. name: what error texts call it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(value, name)
    if hasattr(value, "__cuda_array_interface__"):
        return _of_cuda(value, name)
    array = value if isinstance(value, np.ndarray) else _bytes_of(value, name)
    if array.dtype.hasobject:
        raise InvalidArgument(
            f"{name} is an array of Python objects, which holds addresses and not data; give one of numbers"
        )
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise InvalidArgument(_scattered(name, array.shape))
    address = array.__array_interface__["data"][0]
    return Memory(address, array.nbytes, bool(array.flags.writeable), array)


def _scattered(name: str, shape: Any) -> str:
    return (
        f"{name}, of shape {list(shape)}, is not contiguous; give the whole of which it is a part, or a "
        "contiguous copy"
    )


def _of_torch(tensor: Any, name: str) -> Memory:
    """By address: tensors have no buffer protocol, and numpy knows no bf16."""
    if type(tensor).__name__ == "DTensor":
        raise InvalidArgument(f"{name} is a DTensor, without memory of its own; give its to_local()")
    device = device_of_torch(tensor, name)
    if not tensor.is_contiguous():
        raise InvalidArgument(_scattered(name, tensor.shape))
    # What it stands for now: `tensor.data = other` gives the tensor another storage.
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), True, tensor.detach(), device)


def device_of_torch(tensor: Any, name: str) -> int:
    """The GPU of a torch tensor; -1: host memory. Refuses one elsewhere, and a sparse or quantised one."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(f"{name} is on {tensor.device}; move it to the CPU or a CUDA device")
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        kind, way = ("quantised", "dequantize") if tensor.is_quantized else (tensor.layout, "to_dense")
        raise InvalidArgument(
            f"{name} is {kind}, and only dense tensors can be sent; give what its {way}() returns"
        )
    return tensor.device.index if tensor.device.type == "cuda" else -1


def is_dense(size: Sequence[int], strides: Sequence[int], step: int = 1) -> bool:
    """step: from one element to the next, as strides count."""
    for length, stride in zip(reversed(size), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


def _of_cuda(value: Any, name: str) -> Memory:
    address, shape, strides, dtype, writable, device = cuda_array_of(name, value)
    if not is_dense(shape, strides, dtype.itemsize):
        raise InvalidArgument(_scattered(name, shape))
    return Memory(address, math.prod(shape) * dtype.itemsize, writable, value, device)


def _bytes_of(value: Any, name: str) -> np.ndarray:
    """A view that holds the object's buffer: meanwhile a bytearray, say, cannot be resized."""
    try:
        return np.frombuffer(value, np.uint8)
    except (TypeError, AttributeError):
        raise InvalidArgument(
            f"{name} is a {type(value).__name__}, which has no memory to register; give a numpy array, a "
            "torch tensor, or a buffer (bytearray, memoryview, mmap, or with __cuda_array_interface__)"
        ) from None
    except (BufferError, ValueError) as error:
        raise InvalidArgument(
            f"{name}, a {type(value).__name__}, gives no contiguous buffer ({error}); give a numpy array"
        ) from None


def allocate(shape: int | tuple[int, ...], dtype: Any = np.uint8, *, device: int | str | None = None) -> Any:
    """A zeroed array in memory that other processes of this host can map: the fastest to send and receive.

    device: a GPU that this process uses already, as an ordinal or "cuda:0": an object with
    `__cuda_array_interface__` in its memory, not zeroed.
    """
    kind = np.dtype(dtype)
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    if device is not None:
        return allocate_on(device, size, kind)
    count = int(np.prod(size, dtype=np.int64))
    if count == 0 or kind.itemsize == 0:
        return np.zeros(size, kind)
    return _core.allocate_bytes(count * kind.itemsize).view(kind).reshape(size)
