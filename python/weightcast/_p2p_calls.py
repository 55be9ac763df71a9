"""What the calls of `weightcast.p2p` share: reporting failures, waiting, checking arguments."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from .errors import Error, InvalidArgument
from .memory import memory_of

META_BYTES = 64

_P = ParamSpec("_P")
_log = logging.getLogger("weightcast.p2p")


class Misuse(InvalidArgument):
    """Raised, where the UCCL P2P engine raises RuntimeError; other errors become False."""


def told(*otherwise: Any) -> Callable[[Callable[_P, Any]], Callable[_P, Any]]:
    """A method of an endpoint that returns `ok` first, and `otherwise` after a False."""

    def decorate(call: Callable[_P, Any]) -> Callable[_P, Any]:
        @functools.wraps(call)
        def guarded(*arguments: _P.args, **named: _P.kwargs) -> Any:
            try:
                given = call(*arguments, **named)
            except Misuse:
                raise
            except (Error, OSError) as error:
                endpoint: Any = arguments[0]
                endpoint.last_error = str(error)
                _log.warning("%s: %s", call.__name__, error)
                return (False, *map(copy.copy, otherwise)) if otherwise else False
            if not otherwise:
                return True
            return (True, *given) if len(otherwise) > 1 else (True, given)

        return guarded

    return decorate


def blocking(begin: Callable[Concatenate[Any, _P], Any]) -> Callable[Concatenate[Any, _P], bool]:
    """The form of an asynchronous method that waits for the operation's end, and returns only `ok`."""

    @functools.wraps(begin)
    def call(self: Any, *arguments: _P.args, **named: _P.kwargs) -> bool:
        ok, transfer_id = begin(self, *arguments, **named)
        return ok and self._ended(transfer_id)

    call.__name__ = begin.__name__.removesuffix("_async")
    call.__qualname__ = begin.__qualname__.removesuffix("_async")
    call.__doc__ = f"ok, once the operation has ended; otherwise as `{begin.__name__}`."
    return call


def with_or_without_conn(call: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the main branch, which release 0.1.1 has with a connection in front.

    The number of arguments tells the forms apart. `forms` are the two signatures.
    """
    without = inspect.signature(call)
    own, *others = without.parameters.values()
    within = without.replace(parameters=[own, inspect.Parameter("conn_id", own.kind), *others])

    @functools.wraps(call)
    def either(self: Any, *arguments: Any, **named: Any) -> Any:
        form = without if len(arguments) + len(named) == len(others) else within
        given = form.bind(self, *arguments, **named).arguments
        if "conn_id" in given:
            self._check_conn(given.pop("conn_id"))
        return call(**given)

    either.forms = (without, within)  # type: ignore[attr-defined]
    return either


def pieces(
    mr_id_v: Sequence[int], ptr_v: Sequence[int], size_v: Sequence[int], num_iovs: int
) -> list[tuple[int, int, int]]:
    """Of registered memory."""
    if not len(mr_id_v) == len(ptr_v) == len(size_v) == num_iovs:
        raise Misuse(
            f"{len(mr_id_v)} memories, {len(ptr_v)} addresses and {len(size_v)} sizes for {num_iovs} pieces; "
            f"give {num_iovs} of each, or correct num_iovs"
        )
    return list(zip(mr_id_v, ptr_v, size_v, strict=True))


def temporary(ptr_v: Sequence[int], size_v: Sequence[int]) -> list[tuple[int, int, int]]:
    """Pieces that are registered for one call."""
    if len(ptr_v) != len(size_v):
        raise Misuse(f"{len(ptr_v)} addresses and {len(size_v)} sizes; give one size for each address")
    return pieces([0] * len(ptr_v), ptr_v, size_v, len(size_v))


def metas(blobs: Sequence[bytes], num_iovs: int) -> list[bytes]:
    """What `advertise` returned at the peer, one for each piece."""
    if len(blobs) != num_iovs:
        raise Misuse(f"{len(blobs)} metas for {num_iovs} pieces; give one for each")
    for place, blob in enumerate(blobs):
        if len(blob) != META_BYTES:
            raise Misuse(
                f"meta {place} has {len(blob)} bytes and must have exactly {META_BYTES} bytes; give it as "
                "advertise or advertise_ipc returned it at the peer"
            )
    return [bytes(blob) for blob in blobs]


def extent(tensor: Any, name: str) -> tuple[int, int]:
    """Where the bytes of a tensor or an array lie, and how many. name: in errors."""
    if not any(hasattr(tensor, one) for one in ("data_ptr", "ctypes", "__cuda_array_interface__")):
        raise InvalidArgument(f"{name} is a {type(tensor).__name__}; give a torch tensor or an array")
    found = memory_of(tensor, name)
    return found.address, found.nbytes
