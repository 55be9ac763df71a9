"""Calls that wait for others, as coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import _weightcast as _core

_P = ParamSpec("_P")
_R = TypeVar("_R")
_stops: weakref.WeakSet[Any] = weakref.WeakSet()


def _stop_all() -> None:
    """Python waits for these threads when it ends, before it calls what `atexit` has."""
    for stop in list(_stops):
        stop.set()


# After the executors' own: what was registered last is called first.
with contextlib.suppress(AttributeError, RuntimeError):
    threading._register_atexit(_stop_all)  # type: ignore[attr-defined]


def _interruptible(stop: Any, call: Callable[..., Any], *arguments: Any) -> Any:
    """On a thread of its own."""
    _core.interrupt_when(stop)
    try:
        return call(*arguments)
    finally:
        _core.interrupt_when(None)


async def on_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call that waits on a thread; being cancelled interrupts it."""
    stop = _core.CoreInterrupt()
    _stops.add(stop)

    future = asyncio.get_running_loop().run_in_executor(None, _interruptible, stop, call, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop.set()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue  # It ends soon, and must have ended first.
        future.exception()  # Has been looked at.
        raise


def asynchronous(
    call: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _R]]:
    """The asyncio form of a method that waits."""

    @functools.wraps(call)
    async def waiting(self: Any, *arguments: _P.args, **named: _P.kwargs) -> _R:
        return await on_thread(functools.partial(getattr(self, call.__name__), *arguments, **named))

    waiting.__name__ += "_async"
    waiting.__qualname__ += "_async"
    return waiting


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call returns; None if it fails, or is interrupted because it takes longer."""
    stop = _core.CoreInterrupt()
    _stops.add(stop)
    result: list[Any] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            result.append(_interruptible(stop, call))

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(seconds)
    stop.set()
    asking.join()
    return result[0] if result else None
