"""Lists of tensors as one run of bytes: registered once, described to peers, cut into pieces."""

from __future__ import annotations

import bisect
import collections
import hashlib
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .endpoint import Endpoint, Local, Remote
from .errors import Error, InvalidArgument
from .memory import Memory, memory_of

_log = logging.getLogger("weightcast.collective")
_MOST_LISTS = 64
# In place of the array, which the region would keep alive.
_NOBODY = object()


@dataclass
class Layout:
    """A list of tensors, end to end. `starts` has where each begins, in bytes; empty ones are left out."""

    number: int
    nbytes: int
    starts: list[int]
    regions: list[Any]
    text: str
    digest: str
    read_only: int | None  # The first tensor that cannot be written.
    devices: set[int]  # GPUs that hold some of it.
    owners: list[weakref.ref[Any]] = field(repr=False)

    @property
    def alive(self) -> bool:
        return bool(self.owners) and all(owner() is not None for owner in self.owners)

    def pairs(self, remote: Sequence[Remote], begin: int, end: int) -> Iterator[tuple[Local, Remote]]:
        """The bytes from `begin` to `end` here, each piece with its like of a peer's list."""
        at = bisect.bisect_right(self.starts, begin) - 1
        while begin < end:
            start, region = self.starts[at], self.regions[at]
            here = slice(begin - start, min(end - start, region.nbytes))
            yield region[here], remote[at][here]
            begin, at = start + here.stop, at + 1


class Layouts:
    """The lists that an endpoint has registered: each once, until one of its tensors is gone or is elsewhere.

    Tensors are known by weak references, so this keeps none alive. Whoever uses a list has to.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._known: collections.OrderedDict[tuple[Any, ...], Layout] = collections.OrderedDict()
        self._made = 0

    def of(self, tensors: Sequence[Any]) -> Layout:
        memories = [memory_of(tensor, f"tensor {place} of the list") for place, tensor in enumerate(tensors)]
        kinds = [_dtype_of(tensor) for tensor in tensors]
        key = tuple((one.address, one.nbytes, kind) for one, kind in zip(memories, kinds, strict=True))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(tensors, memories, kinds)
        self._known.move_to_end(key)
        return found

    def forget(self) -> list[int]:
        """Deregisters the lists with a tensor that is gone, and the oldest of too many; their numbers."""
        over = [key for key, layout in self._known.items() if not layout.alive]
        left = [key for key in self._known if key not in over]
        over += left[: max(0, len(left) - _MOST_LISTS)]
        gone = [self._known.pop(key) for key in over]
        for layout in gone:
            for region in layout.regions:
                region.close()
        return [layout.number for layout in gone]

    def _make(self, tensors: Sequence[Any], memories: Sequence[Memory], kinds: Sequence[str]) -> Layout:
        starts, regions, owners, at = [], [], [], 0
        for place, (tensor, memory) in enumerate(zip(tensors, memories, strict=True)):
            if memory.nbytes == 0:
                continue
            starts.append(at)
            at += memory.nbytes
            region = self._endpoint._core.register(
                memory.address, memory.nbytes, _NOBODY, memory.writable, "read", memory.device
            )
            regions.append(region)
            on_end = _closing(region) if memory.device >= 0 else None
            owners.append(weakref.ref(_owner_of(tensor, place), on_end))
        self._made += 1
        sizes = ",".join(f"{kind}:{one.nbytes}" for kind, one in zip(kinds, memories, strict=True))
        count = f"{len(memories)} tensor{'' if len(memories) == 1 else 's'}"
        text = f"{count}, {at} bytes" + "".join(f", {kind}" for kind in sorted(set(kinds)))
        digest = hashlib.sha256(sizes.encode()).hexdigest()[:16]
        read_only = next((place for place, one in enumerate(memories) if not one.writable), None)
        devices = {one.device for one in memories if one.device >= 0}
        return Layout(self._made, at, starts, regions, text, digest, read_only, devices, owners)


def _closing(region: Any) -> Callable[[Any], None]:
    """For the moment at which the memory goes: the driver must not free what a peer has mapped."""

    def close(_: Any) -> None:
        try:
            region.close()
        except Error as error:
            _log.warning(
                "memory of a GPU is freed that a peer may still use: %s. Keep the tensors until all ranks "
                "have returned from the call",
                error,
            )

    return close


def tensors_of(value: Any) -> list[Any]:
    """One tensor, array or buffer as a list; a list, tuple or iterator of them as it is."""
    if isinstance(value, (list, tuple)):
        return list(value)
    torch = sys.modules.get("torch")
    alone = (
        isinstance(value, (np.ndarray, bytearray, memoryview))
        or hasattr(value, "__cuda_array_interface__")
        or (torch is not None and isinstance(value, torch.Tensor))
    )
    if not alone and hasattr(value, "__iter__") and not hasattr(value, "__buffer__"):
        return list(value)
    return [value]


def _dtype_of(tensor: Any) -> str:
    """The same word for numpy's, ml_dtypes' and torch's."""
    kind = getattr(tensor, "dtype", None)
    if kind is None and hasattr(tensor, "__cuda_array_interface__"):
        kind = np.dtype(tensor.__cuda_array_interface__["typestr"])
    if kind is None:
        return "uint8"
    return kind.name if isinstance(kind, np.dtype) else str(kind).removeprefix("torch.")


def _owner_of(tensor: Any, place: int) -> Any:
    """What exists as long as the memory does: a tensor's storage, the array that a view is a view of."""
    if not isinstance(tensor, np.ndarray):
        storage = getattr(tensor, "untyped_storage", None)
        return storage() if storage is not None else _weakly(tensor, place)
    while isinstance(tensor.base, np.ndarray):
        tensor = tensor.base
    return tensor


def _weakly(buffer: Any, place: int) -> Any:
    try:
        weakref.ref(buffer)
    except TypeError:
        raise InvalidArgument(
            f"tensor {place} of the list is a {type(buffer).__name__}, and nobody can tell when its memory "
            "is freed; give numpy.frombuffer of it, another numpy array, or a torch tensor"
        ) from None
    return buffer
