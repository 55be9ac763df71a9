"""Which box of which checkpoint tensor an engine's own loader writes where, found without any weights.

An engine cuts, fuses and replicates the tensors of a checkpoint by code of its own. `capture` runs that code
once, with tensors on the meta device: they have shapes and no memory. A view of such a tensor has its
storage, an offset and strides. So each `copy_` tells a source box and a destination box. What cannot be
followed that way is refused, by tensor. docs/adapters.md, "How the mapping is found".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import InvalidArgument

__all__ = ["Capture", "Fill", "Landing", "boxes", "capture"]

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip

_aten = torch.ops.aten
_ITS_OWN = "update this model with the engine's own loading, without weightcast"
_FOLLOWED = f"only cutting, joining and casting can be followed: {_ITS_OWN}"
# They give a tensor like the one they got: the transfer casts, and the bytes come to where they are wanted.
_SAME_GEOMETRY = {
    _aten._to_copy.default,
    _aten.clone.default,
    _aten.detach.default,
    _aten.alias.default,
    _aten.lift_fresh.default,
}
_FILLS = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}


@dataclass(frozen=True)
class Landing:
    """`box` of the checkpoint's tensor `source` belongs at this place of the engine's tensor `target`."""

    source: str
    shape: tuple[int, ...]  # Of the whole source.
    offset: tuple[int, ...]  # Of the box in it,
    size: tuple[int, ...]  # and the box's size.
    target: str
    start: int  # Elements from the target's first.
    strides: tuple[int, ...]  # Of the box in the target, in elements.

    def pieces(self) -> Iterator[Landing]:
        """Dense ones that make up this one: cut along the outer dimensions, if it is not dense itself."""
        expected, dense = 1, len(self.size)
        for dimension in reversed(range(len(self.size))):
            if self.size[dimension] > 1 and self.strides[dimension] != expected:
                break
            expected *= self.size[dimension]
            dense = dimension
        outer = self.size[:dense]
        for index in itertools.product(*map(range, outer)):
            start = self.start + sum(i * step for i, step in zip(index, self.strides, strict=False))
            offset = tuple(a + b for a, b in zip(self.offset, index, strict=False)) + self.offset[dense:]
            size = (1,) * dense + self.size[dense:]
            yield Landing(self.source, self.shape, offset, size, self.target, start, self.strides)

    def view(self, target: torch.Tensor) -> torch.Tensor:
        """This landing's place in `target`, with as many dimensions as the source."""
        return _part(target, self)


@dataclass(frozen=True)
class Fill:
    """A constant that the loader writes, such as the zeros of a padded vocabulary."""

    target: str
    start: int
    size: tuple[int, ...]
    strides: tuple[int, ...]
    value: float
    after: int  # How many landings, of all targets, the loader had made before.

    def apply(self, target: torch.Tensor) -> None:
        _part(target, self).fill_(self.value)


def _part(target: torch.Tensor, place: Landing | Fill) -> torch.Tensor:
    return target.as_strided(place.size, place.strides, target.storage_offset() + place.start)


@dataclass(frozen=True)
class Capture:
    landings: list[Landing]
    fills: list[Fill]

    def unused(self, names: Iterable[str]) -> list[str]:
        """Those of `names` of which the loader took nothing."""
        used = {landing.source for landing in self.landings}
        return [name for name in names if name not in used]

    def missing(self, targets: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """How many elements of each target nothing is written to, if any.

        Errors: InvalidArgument, naming the tensors, where an element that has landed is written again.
        """
        written = {name: _nothing_written(target) for name, target in targets.items()}
        landings = [(number, one) for number, one in enumerate(self.landings) if one.target in written]
        fills = [(one.after, one) for one in self.fills if one.target in written]
        # In the loader's order; a fill stands before the landing of its number.
        for _, one in sorted([*fills, *landings], key=lambda pair: pair[0]):
            part = _part(written[one.target], one)
            if bool(part.any()):
                problem = f"{one.target}: the engine's loader overwrites what it has loaded"
                if isinstance(one, Landing):
                    problem = f"{one.source}: the engine's loader puts it over another tensor in {one.target}"
                raise InvalidArgument(f"{problem}; {_ITS_OWN}")
            if isinstance(one, Landing):  # Fills are made once, before anything lands.
                part.fill_(True)
        for _, fill in fills:
            _part(written[fill.target], fill).fill_(True)
        found = {name: _unwritten(target, written[name]) for name, target in targets.items()}
        return {name: count for name, count in found.items() if count}


def _nothing_written(target: torch.Tensor) -> torch.Tensor:
    reach = sum((size - 1) * step for size, step in zip(target.shape, target.stride(), strict=True))
    return torch.zeros(reach + 1 if target.numel() else 0, dtype=torch.bool, device="cpu")


def _unwritten(target: torch.Tensor, written: torch.Tensor) -> int:
    return target.numel() - int(written.as_strided(target.shape, target.stride()).sum())


def capture(
    load: Callable[[Iterable[tuple[str, torch.Tensor]]], Any],
    offered: Mapping[str, tuple[str, tuple[int, ...]]],
    targets: Mapping[str, torch.Tensor],
) -> Capture:
    """Runs `load`, an engine's loader of a whole checkpoint, and notes what it does. Nothing is written.

    offered: {name: (safetensors' dtype, shape)} as `Inference.offered()` gives it.
    targets: the tensors that are loaded, by name; on the meta device or not.
    Errors: InvalidArgument, naming the tensor of the checkpoint that cannot be followed, and why.
    """
    recorder = _Recorder(targets)
    current = ""

    def checkpoint() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal current
        for name, (dtype, shape) in offered.items():
            current = name
            yield name, recorder.source(name, dtype, tuple(shape))

    try:
        with recorder:
            load(checkpoint())
    except InvalidArgument:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InvalidArgument(
            f"{current or 'before the first tensor'}: the engine's loader failed ({text}); start the "
            f"engine with the model of these weights; if it has that, {_ITS_OWN}"
        ) from error
    return Capture(recorder.landings, recorder.fills)


def boxes(
    convert: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, tuple[tuple[int, ...], Landing]]:
    """What `convert`, which renames, splits and reshapes tensors, makes of those of these shapes.

    By the name of each result: its shape, and the box that it is, as a landing in a dense tensor.
    Errors: InvalidArgument, naming the tensor that it transposes or computes with.
    """
    recorder = _Recorder({})
    given = {name: recorder.source(name, "BF16", shape) for name, shape in shapes.items()}
    with recorder:
        made = convert(given)
    found = {}
    for name, tensor in made.items():
        source, shape = recorder.origin(name, tensor)
        dense = torch.empty(tensor.shape, device="meta")
        found[name] = (tuple(tensor.shape), _landing(source, shape, tensor, name, dense, 0))
    return found


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Recorder(TorchDispatchMode):
    """Sees each operation below autograd. Knows tensors by their storages, which views share."""

    def __init__(self, targets: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.landings: list[Landing] = []
        self.fills: list[Fill] = []
        self._targets = {
            _storage(tensor): (name, tensor.storage_offset())
            for name, tensor in reversed(list(targets.items()))  # Of tied ones the first.
            if tensor.numel() > 0
        }
        self._sources: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._kept: list[Any] = list(targets.values())  # So that no storage's address is used again.

    def source(self, name: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        if dtype not in _DTYPES:
            raise InvalidArgument(
                f"{name} has dtype {dtype}, which torch's loaders do not know; publish it in another dtype"
            )
        with torch.utils._python_dispatch._disable_current_modes():
            tensor = torch.empty(shape, dtype=_DTYPES[dtype], device="meta")
        return self._known(tensor, name, tuple(shape))

    def origin(self, name: str, tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
        """Name and shape of the source of which `tensor` is a part."""
        if _storage(tensor) not in self._sources:
            raise InvalidArgument(f"{name}: the model's code computes it from others; {_FOLLOWED}")
        return self._sources[_storage(tensor)]

    def _known(self, tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self._sources[_storage(tensor)] = (name, shape)
        self._kept.append(tensor)
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in _flat(args) if isinstance(one, torch.Tensor)]
        read = next((one for one in tensors if _storage(one) in self._sources), None)
        if func is _aten.copy_.default and (read is not None or self._is_target(args[0])):
            return self._copied(args[0], args[1])
        if func in _FILLS and self._is_target(args[0]):
            return self._filled(args[0], args[1] if len(args) > 1 else 0)
        if read is None:
            return func(*args, **kwargs)
        return self._derived(func, args, kwargs, read)

    def _is_target(self, tensor: torch.Tensor) -> bool:
        return _storage(tensor) in self._targets

    def _derived(self, func: Any, args: Any, kwargs: Any, read: torch.Tensor) -> Any:
        """A view of a source, or what may pass for one."""
        name, shape = self._sources[_storage(read)]
        if func in _SAME_GEOMETRY:
            return self._like(read, kwargs.get("dtype") or read.dtype, name, shape)
        if not func.is_view:
            raise InvalidArgument(
                f"{name}: the model's code computes with it ({func}), which needs its bytes; {_FOLLOWED}"
            )
        return func(*args, **kwargs)

    def _like(self, tensor: torch.Tensor, dtype: torch.dtype, name: str, shape: Any) -> torch.Tensor:
        """Another tensor for the same box. Its storage is as long in elements: offsets mean the same."""
        if dtype == tensor.dtype:
            return _aten.alias.default(tensor)
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = torch.empty(elements, dtype=dtype, device="meta")
        self._known(whole, name, shape)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _copied(self, to: torch.Tensor, what: torch.Tensor) -> torch.Tensor:
        if _storage(what) not in self._sources:
            raise InvalidArgument(
                f"{self._targets[_storage(to)][0]}: the engine's loader writes a computed value to this "
                f"tensor; {_FOLLOWED}"
            )
        name, shape = self._sources[_storage(what)]
        if not self._is_target(to):
            raise InvalidArgument(
                f"{name}: the engine's loader copies it to a tensor that the model does not own; {_ITS_OWN}"
            )
        target, first = self._targets[_storage(to)]
        if [one for one in to.shape if one > 1] != [one for one in what.shape if one > 1]:
            raise InvalidArgument(
                f"{name}: the engine's loader copies {list(what.shape)} of it to {list(to.shape)} of "
                f"{target}; repeating a part cannot be followed: {_ITS_OWN}"
            )
        if what.numel() > 0:
            self.landings.append(_landing(name, shape, what, target, to, first))
        return to

    def _filled(self, to: torch.Tensor, value: Any) -> torch.Tensor:
        if to.numel() > 0:
            target, first = self._targets[_storage(to)]
            place = to.storage_offset() - first, tuple(to.shape), to.stride()
            self.fills.append(Fill(target, *place, float(value), len(self.landings)))
        return to


def _flat(args: Any) -> Iterator[Any]:
    for one in args:
        if isinstance(one, (list, tuple)):
            yield from _flat(one)
        else:
            yield one


def _landing(
    name: str, shape: tuple[int, ...], what: torch.Tensor, target: str, to: torch.Tensor, first: int
) -> Landing:
    """The box of `what` in its source, from its offset and strides, and where each of its elements goes."""
    offset, rest = [], what.storage_offset()
    steps = [math.prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    for step in steps:
        offset.append(rest // step if step else 0)
        rest -= offset[-1] * step
    size, strides = [1] * len(shape), [0] * len(shape)
    free = len(shape)  # Dimensions from here on have been found.
    for length, step, landed in reversed(_joined(what, to)):
        dimension = next((d for d in range(free) if steps[d] == step and shape[d] > 1), None)
        while dimension is not None and length > shape[dimension] and length % shape[dimension] == 0:
            size[dimension], strides[dimension] = shape[dimension], landed  # One of several in one.
            length, landed = length // shape[dimension], landed * shape[dimension]
            dimension = next((d for d in reversed(range(dimension)) if shape[d] > 1), None)
        if dimension is None or length > shape[dimension]:
            raise InvalidArgument(_no_box(name, shape, what, target))
        size[dimension], strides[dimension], free = length, landed, dimension
    if any(start + length > whole for start, length, whole in zip(offset, size, shape, strict=True)):
        raise InvalidArgument(_no_box(name, shape, what, target))
    start = to.storage_offset() - first
    return Landing(name, shape, tuple(offset), tuple(size), target, start, tuple(_filled_in(size, strides)))


def _joined(what: torch.Tensor, to: torch.Tensor) -> list[tuple[int, int, int]]:
    """Length, and strides of both, of each dimension; those that are one in both are made one.

    Dimensions of one element are left out: the two may have different numbers of those.
    """
    found: list[tuple[int, int, int]] = []
    steps = (
        [step for length, step in zip(one.shape, one.stride(), strict=True) if length > 1]
        for one in (what, to)
    )
    for length, step, landed in zip([one for one in what.shape if one > 1], *steps, strict=True):
        if found and found[-1][1:] == (length * step, length * landed):
            length *= found.pop()[0]
        found.append((length, step, landed))
    return found


def _no_box(name: str, shape: tuple[int, ...], what: torch.Tensor, target: str) -> str:
    steps = [step for length, step in zip(what.shape, what.stride(), strict=True) if length > 1]
    if steps != sorted(steps, reverse=True):
        return (
            f"{name}: the model's code transposes it for {target}; "
            "send it as the engine holds it, or train a model whose checkpoint has it so"
        )
    return (
        f"{name}: what the model's code takes for {target} is not a box of its shape {list(shape)}; "
        f"{_ITS_OWN}"
    )


def _filled_in(size: list[int], strides: list[int]) -> Iterator[int]:
    """Strides of dimensions of one element mean nothing; these make a dense box look dense."""
    inner = 1
    found = []
    for length, step in zip(reversed(size), reversed(strides), strict=True):
        found.append(inner if length == 1 else step)
        inner = length * found[-1]
    return iter(found[::-1])
