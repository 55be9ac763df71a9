"""How asyncio waits for the core.

The core's thread never touches Python: it puts a number into a queue and makes a descriptor readable. Each
event loop has one such queue for all endpoints, and watches its descriptor.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from . import _weightcast as _core
from .errors import Error, TimedOut

Found = TypeVar("Found")


class Bells:
    """The futures of one event loop that wait for the core. For the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue = _core.CoreCompletions.create()
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        try:
            loop.add_reader(self.queue.fd, self._on_rung)
        except NotImplementedError:
            raise Error(
                f"the running event loop, a {type(loop).__name__}, cannot watch file descriptors; use "
                "asyncio's selector loop or uvloop"
            ) from None

    def new(self) -> tuple[int, asyncio.Future[None]]:
        """A number for the core to ring, and what is done when it has. `drop` it in the end."""
        self._last += 1
        future = asyncio.get_running_loop().create_future()
        self._futures[self._last] = future
        return self._last, future

    def drop(self, number: int) -> None:
        self._futures.pop(number, None)

    def _on_rung(self) -> None:
        for number in self.queue.take():
            future = self._futures.get(number)
            if future is not None and not future.done():
                future.set_result(None)


_bells: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bells] = weakref.WeakKeyDictionary()
_bells_lock = threading.Lock()


def bells() -> Bells:
    """Those of the running loop."""
    loop = asyncio.get_running_loop()
    with _bells_lock:
        found = _bells.get(loop)
        if found is None:
            found = _bells[loop] = Bells(loop)
        return found


async def next_of(
    core: Any, what: int, look: Callable[[], Found | None], timeout: float | None, complaint: str
) -> Found:
    """What `look` finds, now or after an event of this kind at the endpoint `core`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    mine = bells()
    while True:
        number, rung = mine.new()
        try:
            # Before the look: what comes after it rings.
            core.watch(what, mine.queue, number)
            if (found := look()) is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(complaint)
            await asyncio.wait([rung], timeout=left)
        finally:
            core.unwatch(what, mine.queue, number)
            mine.drop(number)


async def until_ended(transfer: Any) -> None:
    """Returns when a transfer of the core has ended; being cancelled cancels it."""
    mine = bells()
    number, rung = mine.new()
    try:
        transfer.ring_at_end(mine.queue, number)
        if not transfer.ended:  # Looked at last: an endpoint that is closed rings for nobody.
            await rung
    except asyncio.CancelledError:
        transfer.cancel()
        raise
    finally:
        mine.drop(number)
