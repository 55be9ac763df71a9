"""Calls that wait for others, as coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401
import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import _weightcast as _core

_stops: weakref.WeakSet[Any] = weakref.WeakSet()


def _stop_all() -> None:
    """Python waits for these threads when it ends, before it calls what `atexit` has."""
    for stop in list(_stops):
        stop.set()


# After the executors' own: what was registered last is called first.
with contextlib.suppress(AttributeError, RuntimeError):
    threading._register_atexit(_stop_all)  # type: ignore[attr-defined]


async def on_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    """Runs a call that waits on a thread; being cancelled interrupts it."""
    stop = _core.CoreInterrupt()
    _stops.add(stop)

    def run() -> Any:
        _core.interrupt_when(stop)
        try:
            return call(*arguments)
        finally:
            _core.interrupt_when(None)

    future = asyncio.get_running_loop().run_in_executor(None, run)
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


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call returns; None if it fails, or is interrupted because it takes longer."""
    stop = _core.CoreInterrupt()
    _stops.add(stop)
    result: list[Any] = []

    def run() -> None:
        _core.interrupt_when(stop)
        with contextlib.suppress(Exception):
            result.append(call())

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(seconds)
    stop.set()
    asking.join()
    return result[0] if result else None
