"""From arrays, tensors and modules to the shards that the core registers."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from . import _weightcast as _core
from .errors import InvalidArgument
from .gpu import cuda_array_of, streams_of
from .memory import device_of_torch, is_dense

# numpy's (and ml_dtypes') names to those of the safetensors format.
_NUMPY_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16",
    "bfloat16": "BF16", "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64",
    "float64": "F64", "complex64": "C64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e4m3fnuz": "F8_E4M3FNUZ",
}  # fmt: skip
# torch names them alike, but for the class prefix.
_TORCH_PREFIX = "torch."


REPLICATE = "replicate"


@dataclass(frozen=True)
class Mesh:
    """Ranks in a grid of `sizes`, the outermost dimension first, and this rank's place in it."""

    sizes: tuple[int, ...]
    coordinates: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("sizes", "coordinates"):
            numbers = tuple(getattr(self, name))
            if not all(isinstance(one, int) and 0 <= one < 1 << 31 for one in numbers):
                raise InvalidArgument(
                    f"{name} of a mesh are {numbers}; they must be integers in [0, {(1 << 31) - 1}]"
                )
            object.__setattr__(self, name, numbers)


@dataclass(frozen=True)
class Shard:
    """A part of a tensor: `array` lies at `offset` in a tensor of `shape`.

    Without `shape` and `offset` it is the whole tensor; a DTensor knows its own. `declared=True`: known to
    the plan, not moved.

    landing: of this tensor, if not that of `Inference.register`.
    In place of `offset`: `mesh`, and `placements` with one entry for each of its dimensions: "replicate", or
    the dimension of the tensor that is cut, as torch's DTensor cuts it.
    """

    array: Any
    shape: Sequence[int] | None = None
    offset: Sequence[int] | None = None
    declared: bool = False
    mesh: Mesh | None = None
    placements: Sequence[int | str] | None = None
    landing: str | None = None


class _View(NamedTuple):
    """What the core must know of an array: strides are in elements, `step` is an element's bytes."""

    dtype: str
    size: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    step: int
    writable: bool
    device: int = -1  # Of a GPU; -1: host memory.


class _Place(NamedTuple):
    """All that the core knows of a shard: as long as it is the same, the tensor has not moved."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: tuple[int, ...] | None  # None: placed.
    size: tuple[int, ...]
    mesh: Mesh | None
    placements: tuple[int, ...]  # -1: replicated.
    strides: tuple[int, ...]
    first: int  # The lowest address of an element,
    bytes: int  # and how many there are to the end of the highest.
    origin: int  # Bytes from there to the element of index 0.
    declared: bool
    landing: str
    device: int = -1  # Of a GPU; -1: host memory.


_NO_PLACE = _Place("", "", (), None, (), None, (), (), 0, 0, 0, False, "")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _view_torch(name: str, tensor: Any) -> _View:
    device = device_of_torch(tensor, name)
    kind = _safetensors_name(name, str(tensor.dtype).removeprefix(_TORCH_PREFIX))
    size, strides, step = tuple(tensor.shape), tensor.stride(), tensor.element_size()
    return _View(kind, size, strides, tensor.data_ptr(), step, True, device)


def _view_numpy(name: str, value: Any) -> _View:
    if hasattr(value, "__cuda_array_interface__"):
        address, size, strides, dtype, writable, device = cuda_array_of(name, value)
    elif not isinstance(value, np.ndarray):
        raise InvalidArgument(
            f"{name} is a {type(value).__name__}; give a numpy array, a torch tensor or wc.Shard"
        )
    elif value.dtype.byteorder == ">":
        raise InvalidArgument(f"{name} is big-endian; convert it with .astype(dtype.newbyteorder('<'))")
    else:
        address, size = value.__array_interface__["data"][0], value.shape
        strides, dtype = value.strides, value.dtype
        writable, device = bool(value.flags.writeable), -1
    step = dtype.itemsize
    if step == 0 or any(stride % step for stride in strides):
        raise InvalidArgument(
            f"{name} has strides of {strides} bytes, which are not a multiple of its {step}-byte "
            "elements; register a contiguous copy"
        )
    strides = tuple(stride // step for stride in strides)
    return _View(_safetensors_name(name, dtype.name), size, strides, address, step, writable, device)


def _safetensors_name(tensor: str, kind: str) -> str:
    found = _NUMPY_NAMES.get(kind)
    if found is None or not _core.is_dtype(found):
        raise InvalidArgument(f"{tensor}: unknown dtype {kind}; use one of {', '.join(sorted(_NUMPY_NAMES))}")
    return found


def _mapping_of(source: Any) -> Mapping[str, Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.nn.Module):
        from .torch import tensors_of  # Only where PyTorch is loaded already.

        return tensors_of(source)
    if isinstance(source, Mapping):
        return source
    if callable(source):
        return _mapping_of(source())
    raise InvalidArgument(f"give a dict of arrays or a torch module, not a {type(source).__name__}")


def _shards_of(name: str, value: Any) -> list[Shard]:
    """Empty: this rank holds nothing of the tensor."""
    listed = isinstance(value, (list, tuple)) and value and all(isinstance(one, Shard) for one in value)
    found = [_shard_of(name, one) for one in (value if listed else [value])]
    return [one for one in found if one is not None]


def _shard_of(name: str, value: Any) -> Shard | None:
    """None: this rank holds nothing of the tensor."""
    part = value if isinstance(value, Shard) else Shard(value)
    if not _is_torch(part.array):
        return part
    from .torch import shard_of

    return shard_of(name, part)


def _place_of(name: str, part: Shard, *, writable: bool) -> _Place:
    view = _view_torch(name, part.array) if _is_torch(part.array) else _view_numpy(name, part.array)
    if writable and not view.writable and not part.declared:
        raise InvalidArgument(
            f"{name} is read-only, and updates are written to it; give an array that can be written"
        )
    shape = view.size if part.shape is None else tuple(part.shape)
    placements = _placements_of(name, part)
    offset = None
    if part.mesh is None:
        offset = (0,) * len(shape) if part.offset is None else tuple(part.offset)
    strides = () if is_dense(view.size, view.strides) else view.strides
    origin, bytes_ = _reach(view)
    first = view.address - origin
    return _Place(
        name, view.dtype, shape, offset, view.size, part.mesh, placements, strides, first, bytes_, origin,
        part.declared, part.landing or "", view.device,
    )  # fmt: skip


def _reach(view: _View) -> tuple[int, int]:
    """Bytes from the lowest element to that of index 0, and to the end of the highest."""
    if 0 in view.size:
        return 0, 0
    reaches = [(size - 1) * stride for size, stride in zip(view.size, view.strides, strict=True)]
    below = -sum(reach for reach in reaches if reach < 0)
    above = sum(reach for reach in reaches if reach > 0)
    return below * view.step, (below + above + 1) * view.step


def _placements_of(name: str, part: Shard) -> tuple[int, ...]:
    """As the core has them."""
    if part.mesh is None and part.placements is None:
        return ()
    if part.mesh is None or part.placements is None or part.shape is None or part.offset is not None:
        raise InvalidArgument(
            f"{name} has some of shape, mesh and placements, or an offset beside them; give these three "
            "together and no offset"
        )
    for at, one in enumerate(part.placements):
        if one != REPLICATE and (not isinstance(one, int) or one < 0):
            raise InvalidArgument(f"{name}: placement {at} is {one!r}; give {REPLICATE!r} or a dimension")
    return tuple(-1 if one == REPLICATE else one for one in part.placements)  # type: ignore[misc]


def _where(value: Any) -> Any:
    """Equal for an array that lies as it did; None: `_place_of` has to look."""
    if type(value) is np.ndarray:
        return value.__array_interface__["data"][0], value.shape, value.strides, value.dtype
    torch = sys.modules.get("torch")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        return value.data_ptr(), value.shape, value.stride(), value.dtype, value.device
    return None


class Registration:
    """The shards of a module, a dict or a function that returns one, and how to find them again.

    Holds the memory in which they lie, also after the tensors have been given other memory; `release` ends
    that.
    """

    def __init__(self, source: Any, *, writable: bool) -> None:
        """writable: an inference rank's, which is to be filled."""
        self._source, self._writable = source, writable
        self._places: list[_Place] = []
        self._memory: list[Any] = []
        # What was found, for `unmoved`. No reference to a tensor: one would keep its gradient, and a weak one
        # would stop torch from swapping it.
        self._found: list[tuple[str, Any]] = []
        for name, value in _mapping_of(source).items():
            self._found.append((name, _where(value)))
            for part in _shards_of(name, value):
                self._places.append(_place_of(name, part, writable=writable))
                # A tensor's `data` may become another's: what is registered is what it stands for now.
                self._memory.append(part.array.detach() if _is_torch(part.array) else part.array)
        if not self._places:
            raise InvalidArgument(
                "the module or dict given to register has no tensors; give one that has some"
            )

    def core(self) -> _core.CoreRegistration:
        used = dict.fromkeys(place.mesh for place in self._places if place.mesh)
        meshes = {mesh: number for number, mesh in enumerate(used)}
        shards = [
            _core.CoreShard(
                place.name, place.dtype, place.shape,
                (meshes[place.mesh], place.placements) if place.mesh else (place.offset, place.size),
                place.first, place.bytes, place.origin, place.strides, place.declared,
                place.landing, place.device,
            )
            for place in self._places
        ]  # fmt: skip
        registration = _core.CoreRegistration(
            shards, [mesh.sizes for mesh in meshes], [mesh.coordinates for mesh in meshes]
        )
        for place, size in zip(
            self._places, registration.part_sizes() if meshes else (), strict=bool(meshes)
        ):
            if place.size != tuple(size):
                raise InvalidArgument(
                    f"{place.name}: the array has the shape {list(place.size)}, but mesh and placements give "
                    f"this rank {size}; give an array of that shape"
                )
        return registration

    def devices(self) -> set[int]:
        """The GPUs that hold some of it."""
        return {place.device for place in self._places if place.device >= 0}

    def again(self) -> Registration:
        """The same as it lies now. Raises what registering it would raise."""
        return Registration(self._source, writable=self._writable)

    def unmoved(self) -> bool:
        """Whether all is certainly as it was; a tenth of the time of `again` and `moved_to`."""
        values = _mapping_of(self._source)
        return len(values) == len(self._found) and all(
            name == known and place is not None and place == _where(value)
            for (name, value), (known, place) in zip(values.items(), self._found, strict=True)
        )

    def moved_to(self, now: Registration) -> list[str]:
        """The names of what has come, gone, or lies elsewhere or otherwise than here."""
        if self._places == now._places:
            return []
        before, after = Counter(self._places), Counter(now._places)
        changed = (before - after) | (after - before)
        return list(dict.fromkeys(place.name for place in [*now._places, *self._places] if place in changed))

    def same_layout(self, now: Registration) -> bool:
        """Whether others need not be told of more than that memory has moved."""
        return all(
            place._replace(first=0, bytes=0, origin=0, strides=())
            == other._replace(first=0, bytes=0, origin=0, strides=())
            for place, other in zip_longest(self._places, now._places, fillvalue=_NO_PLACE)
        )

    def release(self) -> None:
        """Lets go of the memory; nothing of it may be registered any more."""
        self._memory.clear()


def wait_streams(
    registration: Registration | None, stream: Any, timeout: float | None = None
) -> float | None:
    """For what is left in the streams of its devices: kernels that write or read its tensors. Returns what
    is left of the timeout."""
    begun = time.monotonic()
    for device, address in streams_in_use(registration, stream):
        _core.wait_stream(device, address, timeout)
        if timeout is not None:
            timeout = max(0.0, timeout - (time.monotonic() - begun))
            begun = time.monotonic()
    return timeout


def streams_in_use(registration: Registration | None, stream: Any) -> list[tuple[int, int]]:
    """The streams of its devices."""
    return [] if registration is None else streams_of(registration.devices(), stream)


def layout_bytes(module_or_dict: Any) -> bytes:
    """The layout of what `register` would register, as bytes: tensors, parts, strides.

    Without addresses and this rank's coordinates: ranks that are told of one layout by the same meshes and
    placements get equal bytes. To compare or to hash; another version of weightcast may make others.
    """
    return Registration(module_or_dict, writable=False).core().layout_bytes()
