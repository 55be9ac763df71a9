"""Memory of GPUs: where it lies, memory that others can map, and streams that are waited for."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from . import _weightcast as _core
from .errors import InvalidArgument


def cuda_array_of(name: str, value: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], np.dtype, bool, int]:
    """Address, shape, strides in bytes, dtype, whether it can be written, and the device.

    Asks the driver which device the memory is of: `__cuda_array_interface__` does not say.
    """
    found = value.__cuda_array_interface__
    if found.get("mask") is not None:
        raise InvalidArgument(f"{name} has a mask; give an array without one")
    address, read_only = found["data"]
    shape, dtype = tuple(found["shape"]), np.dtype(found["typestr"])
    strides = found.get("strides")
    if strides is None:  # C-contiguous.
        strides = (math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape)))
    bytes_ = math.prod(shape) * dtype.itemsize
    device = _core.device_of(address, bytes_) if bytes_ > 0 else -1
    return address, shape, tuple(strides), dtype, not read_only, device


class DeviceArray:
    """Memory of a GPU that weightcast allocated, for frameworks that take `__cuda_array_interface__`."""

    def __init__(self, memory: _core.DeviceBytes, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._memory, self._shape, self._dtype = memory, shape, dtype

    @property
    def device(self) -> int:
        return self._memory.device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self._shape,
            "typestr": self._dtype.str,
            "data": (self._memory.address, False),
            "version": 3,
            "strides": None,
        }


def allocate_on(device: int | str, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    """device: an ordinal, or "cuda:1"."""
    text = str(device).removeprefix("cuda:").replace("cuda", "0")
    if not text.isdecimal():
        raise InvalidArgument(f"device is {device!r}; give a number such as 0, or 'cuda:0'")
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        raise InvalidArgument("cannot allocate 0 bytes on a GPU; ask for at least 1")
    return DeviceArray(_core.allocate_device(size, int(text)), shape, dtype)


def streams_of(devices: Iterable[int], stream: Any) -> list[tuple[int, int]]:
    """The streams of these devices, each with its device.

    stream: None: torch's current stream of each device, or the legacy default stream without torch; False:
    none; else a torch stream, an object with `cuda_stream` or `__cuda_stream__`, or a stream's address, of
    one device.
    """
    if stream is False:
        return []
    used = sorted(set(devices))
    if stream is not None and len(used) > 1:
        raise InvalidArgument(
            f"the tensors are on the devices {used}, and a stream is of one device; synchronise your "
            "streams, and pass stream=False"
        )
    return [(device, _address_of(stream, device)) for device in used]


def _address_of(stream: Any, device: int) -> int:
    if stream is None:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return 0
        return int(torch.cuda.current_stream(device).cuda_stream)
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    raise InvalidArgument(f"stream is a {type(stream).__name__}; give a CUDA stream or its address")
