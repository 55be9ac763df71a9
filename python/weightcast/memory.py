"""Where the bytes of an array, a tensor or any other buffer lie."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from .errors import InvalidArgument


class Memory(NamedTuple):
    """`array` keeps the memory alive and in its place."""

    address: int
    nbytes: int
    writable: bool
    array: Any


def memory_of(value: Any) -> Memory:
    """The contiguous memory of a numpy array, a CPU torch tensor, or an object with the buffer protocol."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(torch, value)
    if hasattr(value, "__cuda_array_interface__"):
        raise InvalidArgument(
            "the array is in the memory of a GPU; only host memory can be registered so far"
        )
    array = value if isinstance(value, np.ndarray) else _bytes_of(value)
    if array.dtype.hasobject:
        raise InvalidArgument("an array of Python objects holds addresses, not data; it cannot be registered")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise InvalidArgument("the array is not contiguous; register the array that it is a part of")
    address = array.__array_interface__["data"][0]
    return Memory(address, array.nbytes, bool(array.flags.writeable), array)


def _of_torch(torch: Any, tensor: Any) -> Memory:
    """By address: tensors have no buffer protocol, and numpy knows no bf16."""
    if type(tensor).__name__ == "DTensor":
        raise InvalidArgument("a DTensor has no memory of its own; give tensor.to_local()")
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"the tensor is on {tensor.device}; only CPU tensors are supported so far")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"the tensor is {tensor.layout}; only dense strided tensors can be registered")
    if not tensor.is_contiguous():
        raise InvalidArgument("the tensor is not contiguous; register the tensor that it is a part of")
    # What it stands for now: `tensor.data = other` gives the tensor another storage.
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), True, tensor.detach())


def _bytes_of(value: Any) -> np.ndarray:
    """A view that holds the object's buffer: meanwhile a bytearray, say, cannot be resized."""
    try:
        return np.frombuffer(value, np.uint8)
    except (TypeError, AttributeError):
        raise InvalidArgument(
            f"a {type(value).__name__} has no memory to register; give a numpy array, a CPU torch tensor or "
            "an object with the buffer protocol (bytearray, memoryview, mmap, ...)"
        ) from None
    except (BufferError, ValueError) as error:
        raise InvalidArgument(f"cannot register a {type(value).__name__}: {error}") from None
