"""From arrays, tensors and modules to the shards that the core registers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _weightcast as _core
from .errors import InvalidArgument

# numpy's (and ml_dtypes') names to those of the safetensors format.
_NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e4m3fnuz": "F8_E4M3FNUZ",
}  # fmt: skip
# torch names them alike, but for the class prefix.
_TORCH_PREFIX = "torch."


@dataclass(frozen=True)
class Shard:
    """A part of a tensor: `array` lies at `offset` in a tensor of `shape`.

    Without `shape` and `offset` it is the whole tensor. `declared=True`: known to the plan, not moved.
    """

    array: Any
    shape: Sequence[int] | None = None
    offset: Sequence[int] | None = None
    declared: bool = False


@dataclass(frozen=True)
class _View:
    """What the core must know of an array: strides are in elements."""

    dtype: str
    size: list[int]
    strides: list[int]
    address: int
    writable: bool


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _view_torch(name: str, tensor: Any) -> _View:
    if type(tensor).__name__ == "DTensor":
        raise InvalidArgument(f"{name} is a DTensor; pass wc.Shard(tensor.to_local(), shape=..., offset=...)")
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{name} is on {tensor.device}; only CPU tensors are supported so far")
    if tensor.layout != sys.modules["torch"].strided or tensor.is_quantized:
        raise InvalidArgument(f"{name} is {tensor.layout}; only dense strided tensors can be registered")
    kind = str(tensor.dtype).removeprefix(_TORCH_PREFIX)
    return _View(
        _safetensors_name(name, kind), list(tensor.shape), list(tensor.stride()), tensor.data_ptr(), True
    )


def _view_numpy(name: str, value: Any) -> _View:
    if not isinstance(value, np.ndarray):
        raise InvalidArgument(
            f"{name} is a {type(value).__name__}; give a numpy array, a torch tensor or wc.Shard"
        )
    if value.dtype.byteorder == ">":
        raise InvalidArgument(f"{name} is big-endian; convert it with .astype(dtype.newbyteorder('<'))")
    step = value.dtype.itemsize
    if step == 0 or any(stride % step for stride in value.strides):
        raise InvalidArgument(
            f"{name} has strides of {value.strides} bytes, no multiple of its {step}-byte elements"
        )
    strides = [stride // step for stride in value.strides]
    address = value.__array_interface__["data"][0]
    kind = _safetensors_name(name, value.dtype.name)
    return _View(kind, list(value.shape), strides, address, bool(value.flags.writeable))


def _safetensors_name(tensor: str, kind: str) -> str:
    found = _NUMPY_NAMES.get(kind)
    if found is None or not _core.is_dtype(found):
        raise InvalidArgument(f"{tensor}: unknown dtype {kind}; known: {', '.join(sorted(_NUMPY_NAMES))}")
    return found


def _is_dense(size: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for length, stride in zip(reversed(size), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return False
        expected *= length
    return True


def _mapping_of(source: Any) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        if isinstance(source, torch.nn.parallel.DistributedDataParallel):
            source = source.module
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in source.modules()):
            raise InvalidArgument("FSDP1 modules hide their shards; use FSDP2 (fully_shard)")
        return source.state_dict(keep_vars=True)
    raise InvalidArgument(f"give a dict of arrays or a torch module, not a {type(source).__name__}")


def core_shards(source: Any, *, writable: bool) -> tuple[list[Any], list[Any]]:
    """The core's shards of a module or dict, and the objects that keep their memory alive."""
    shards, keep = [], []
    for name, value in _mapping_of(source).items():
        part = value if isinstance(value, Shard) else Shard(value)
        view = _view_torch(name, part.array) if _is_torch(part.array) else _view_numpy(name, part.array)
        if writable and not view.writable and not part.declared:
            raise InvalidArgument(f"{name} is read-only; an inference rank needs arrays that can be written")
        shape = list(view.size if part.shape is None else part.shape)
        offset = list([0] * len(shape) if part.offset is None else part.offset)
        strides = [] if _is_dense(view.size, view.strides) else view.strides
        shards.append(
            _core.CoreShard(name, view.dtype, shape, offset, view.size, view.address, strides, part.declared)
        )
        keep.append(part.array)
    if not shards:
        raise InvalidArgument("nothing to register: the module or dict has no tensors")
    return shards, keep
