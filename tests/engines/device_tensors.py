"""Tensors in the memory of the fake driver's GPUs (tests/fake_cuda), for a torch that was built without CUDA.

A `DeviceTensor` is what a CUDA tensor is to a program: `device` says cuda, `data_ptr` is a device pointer,
and views share its storage. What computes takes the bytes through the driver. Its memory is a reservation
without access: whoever reads it as host memory ends with SIGSEGV. `Cuda` stands in for torch's functions
that make tensors on a device.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

import weightcast as wc
from gpus import Machine


class DeviceTensor(torch.Tensor):
    """Made by `Cuda`. Its storage is the address alone: `cuda` keeps the memory."""

    cuda: Cuda

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.cuda.gpu)

    @property
    def is_cuda(self) -> bool:
        return True

    @property
    def is_cpu(self) -> bool:
        return False

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        some = next(one for one in _tensors(args, kwargs) if _is_device(one))
        with no_dispatch():
            if func.is_view or func is torch.ops.aten.detach.default:
                return tree_map_only(torch.Tensor, some.cuda.wrap, func(*args, **kwargs))
            return some.cuda.run(func, args, kwargs)


class Cuda(TorchFunctionMode):
    """A GPU as torch's device `cuda:N`, inside `with`."""

    def __init__(self, machine: Machine, gpu: int) -> None:
        super().__init__()
        self.machine, self.gpu = machine, gpu
        self._memory: list[Any] = []

    # --- Tensors

    def tensor(self, value: torch.Tensor) -> Any:
        """A copy of a CPU tensor in memory of its own, with its strides."""
        made = self._empty(tuple(value.shape), value.stride(), value.dtype)
        self.write(made, value)
        return made

    def parameter(self, value: torch.nn.Parameter) -> Any:
        """The same parameter on the GPU: its class and its attributes stay."""
        made = self.tensor(value.detach())
        made.__class__ = type(f"Device{type(value).__name__}", (DeviceTensor, type(value)), {})
        made.__dict__.update(value.__dict__, cuda=self, _is_param=True)
        return made

    def wrap(self, plain: torch.Tensor) -> Any:
        made = torch.Tensor._make_subclass(DeviceTensor, plain)
        made.cuda = self
        return made

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A CPU tensor of the same strides."""
        with no_dispatch():
            size, strides = tuple(tensor.shape), tensor.stride()
            bytes_ = _reach(size, strides) * tensor.element_size()
            host = self.machine.read(_Bytes(self.gpu, tensor.data_ptr(), bytes_)) if bytes_ else np.empty(0)
            return torch.from_numpy(host.copy()).view(tensor.dtype).as_strided(size, strides)

    def write(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        with no_dispatch():
            whole = self.read(tensor)
            whole.copy_(value)
            flat = whole.as_strided((_reach(tuple(whole.shape), whole.stride()),), (1,))
            if flat.numel():
                bytes_ = _Bytes(self.gpu, tensor.data_ptr(), flat.numel() * flat.element_size())
                self.machine.write(bytes_, flat.view(torch.uint8).numpy())

    def _empty(self, size: Any, strides: Any, dtype: torch.dtype) -> Any:
        bytes_ = _reach(size, strides) * dtype.itemsize
        if bytes_ == 0:
            return self.wrap(torch.empty_strided(size, strides, dtype=dtype))
        self._memory.append(wc.allocate(bytes_, device=self.gpu))
        address = self._memory[-1].__cuda_array_interface__["data"][0]
        whole = torch.frombuffer((ctypes.c_char * bytes_).from_address(address), dtype=dtype)
        return self.wrap(whole.as_strided(size, strides))

    # --- What torch calls

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """As a kernel would: on copies of the bytes; what it has written goes back."""
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") is not None:
            return func(self.read(args[0]), **kwargs)  # To the CPU, or to no memory at all.
        if func is not torch.ops.aten.copy_.default:
            _refuse_mixed(func, args, kwargs)
        copies: dict[int, tuple[Any, torch.Tensor]] = {}

        def to_host(one: torch.Tensor) -> torch.Tensor:
            if not _is_device(one):
                return one
            return copies.setdefault(id(one), (one, self.read(one)))[1]

        host_args, host_kwargs = tree_map_only(torch.Tensor, to_host, (args, kwargs))
        found = func(*host_args, **host_kwargs)
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.is_write and _is_device(given):
                self.write(given, copies[id(given)][1])
                return given
        return tree_map_only(torch.Tensor, self.tensor, found)

    def _to(self, func: Any, one: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """torch itself sees no difference between the devices: both are memory at an address to it."""
        first = args[0] if args else kwargs.get("device", "cpu" if func is torch.Tensor.cpu else None)
        device = first.device if isinstance(first, torch.Tensor) else first
        if _is_device(one) and device in ("cpu", torch.device("cpu")):
            return func(self.read(one), *args, **kwargs)
        if not _is_device(one) and _is_ours(device):
            dtype = first.dtype if isinstance(first, torch.Tensor) else one.dtype
            return self.tensor(one.detach().to(dtype))
        return func(one, *args, **kwargs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.Tensor.to, torch.Tensor.cpu):
            return self._to(func, *args, **kwargs)
        if _is_ours(kwargs.get("device")):
            return self.tensor(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)


class _Bytes:
    """Bytes of a GPU, as `Machine` takes them."""

    def __init__(self, gpu: int, address: int, bytes_: int) -> None:
        self.device = gpu
        self.__cuda_array_interface__ = {"shape": (bytes_,), "typestr": "|u1", "data": (address, False)}


def _reach(size: Any, strides: Any) -> int:
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, strides, strict=True))


def _refuse_mixed(func: Any, args: Any, kwargs: Any) -> None:
    """As a CUDA build does: nothing but a copy, and numbers, crosses from device to device."""
    if any(not _is_device(one) and one.dim() > 0 for one in _tensors(args, kwargs)):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda and cpu")


def _is_device(value: Any) -> bool:
    return isinstance(value, DeviceTensor)


def _is_ours(*devices: Any) -> bool:
    return any(str(one).startswith("cuda") for one in devices if isinstance(one, (str, torch.device)))


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, (args, kwargs))
    return found
