"""The connections of a rank to all others, and the messages between them."""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import time
from collections.abc import Iterator
from typing import Any

from . import _weightcast as _core
from ._collective_layouts import Layout
from ._collective_rendezvous import left_the_group, left_until
from .endpoint import Connection, Endpoint, Remote, Transfer
from .errors import (
    Cancelled,
    Error,
    Fenced,
    PeerDead,
    Permission,
    ProtocolError,
    TimedOut,
    Unavailable,
    error_for,
)

# Bytes of a message, below the 32 KiB of a notice.
_MOST_TEXT = 30_000
# Seconds between two looks at everything else while one peer takes no messages.
_SLICE = 0.05
# Seconds that a rank's reason may come after the end of its connection.
_PATIENCE = 1.0


class Link:
    """The connection to one peer, and what each side knows of the other's lists of tensors."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.told: set[int] = set()
        self.lists: dict[int, list[Remote]] = {}
        self.has_left = False


class Mesh:
    """The links of a rank: one queue for all that comes and all that ends. For one thread at a time."""

    def __init__(self, endpoint: Endpoint, connections: dict[int, Connection]) -> None:
        self.links = {rank: Link(connection) for rank, connection in connections.items()}
        self._endpoint = endpoint
        self._queue = _core.CoreCompletions.create()
        self._poll = select.poll()
        self._poll.register(self._queue.fd, select.POLLIN)
        self._transfers: dict[int, Transfer] = {}
        self._numbers = itertools.count(len(connections) + 1)  # Lower ones are ranks.
        self.was_told = False  # By another rank, why the group fails.
        self._rung = set(self.links)  # Ranks that may have said something.

    def say(self, rank: int, message: list[Any], deadline: float) -> None:
        """Sends it; waits while the peer takes none. Raises when the connection has ended."""
        text = json.dumps(message).encode()
        while True:
            try:
                return self.links[rank].connection.notify(text, min(_SLICE, left_until(deadline)))
            except TimedOut:
                self._check_alive()
                if left_until(deadline) == 0:
                    raise TimedOut(
                        f"rank {rank} has taken no messages within the timeout of this call; check that it "
                        "runs, and make a new group with a longer timeout if it is only slow"
                    ) from None

    def tell_list(self, rank: int, layout: Layout, deadline: float) -> None:
        """Makes the peer know a list, once."""
        link = self.links[rank]
        if layout.number in link.told:
            return
        link.told.add(layout.number)
        part: list[str] = []
        room = _MOST_TEXT
        for descriptor in (region.descriptor.hex() for region in layout.regions):
            room -= len(descriptor) + 4
            if room < 0:
                self.say(rank, ["list", layout.number, part], deadline)
                part, room = [], _MOST_TEXT - len(descriptor)
            part.append(descriptor)
        self.say(rank, ["list", layout.number, part], deadline)

    def forget_lists(self, numbers: list[int], deadline: float) -> None:
        for rank, link in self.links.items():
            if gone := link.told.intersection(numbers):
                link.told -= gone
                with contextlib.suppress(Error):  # Whoever is gone need not know; a call finds out.
                    self.say(rank, ["forget", *gone], deadline)

    def begin(self, transfer: Transfer) -> None:
        """`wait` returns when it has ended."""
        number = next(self._numbers)
        self._transfers[number] = transfer
        transfer._core.ring_at_end(self._queue, number)

    def wait(self, deadline: float) -> bool:
        """Until something has come or ended; False: the time is over. Raises what made a transfer fail."""
        if self._rung:
            return True
        ready = self._poll.poll(left_until(deadline) * 1000)
        for number in self._queue.take():
            if number in self.links:
                self._rung.add(number)
            elif (transfer := self._transfers.pop(number, None)) is not None:
                transfer.wait(0)
        return bool(ready)

    def messages(self) -> Iterator[tuple[int, list[Any]]]:
        """All that have come, with the rank that said each. Raises when a peer is gone that has not left."""
        while self._rung:
            rank = self._rung.pop()
            link = self.links[rank]
            core = link.connection._core
            self._endpoint._core.watch(core.peer.incarnation, self._queue, rank)
            try:
                while (text := core.try_take_notice()) is not None:
                    message = self._heard(rank, link, text)
                    if message is not None:
                        yield rank, message
            except Error:
                if not link.has_left:
                    raise

    def _check_alive(self) -> None:
        for link in self.links.values():
            try:
                link.connection.check()
            except PeerDead:
                raise
            except Error:
                continue  # It may have left: its messages say so.

    def cause_of(self, error: Error) -> Error:
        """Why a call has failed. What another rank says of it counts more than that its connection has ended,
        and comes a moment later."""
        deadline = time.monotonic() + _PATIENCE
        while not self.was_told and isinstance(error, (Cancelled, Fenced, Permission, Unavailable)):
            for rank, link in self.links.items():
                try:
                    while (text := link.connection._core.try_take_notice()) is not None:
                        self._heard(rank, link, text)
                except Error as found:
                    if self.was_told or isinstance(found, PeerDead):
                        return found
                    if link.has_left and link.connection.address in str(error):
                        return Unavailable(left_the_group(rank))
            if left_until(deadline) == 0:
                break
            time.sleep(_SLICE / 5)
        return error

    def say_leaving(self, message: list[Any]) -> None:
        """To whom it can be said at once."""
        text = json.dumps(message).encode()
        for link in self.links.values():
            with contextlib.suppress(Error):
                link.connection.notify(text, 0)

    def _heard(self, rank: int, link: Link, text: bytes) -> list[Any] | None:
        """Handles the mesh's own messages; returns the others."""
        try:
            message = json.loads(text)
            match message:
                case ["list", int(number), list(part)]:
                    imported = [link.connection.import_region(bytes.fromhex(one)) for one in part]
                    link.lists.setdefault(number, []).extend(imported)
                case ["forget", *numbers]:
                    for number in numbers:
                        link.lists.pop(number, None)
                case ["left"]:
                    link.has_left = True
                case ["failed", str(code), str(reason)]:
                    self.was_told = True
                    raise error_for(code, reason)
                case [str(), *_]:
                    return message
                case _:
                    raise ValueError
        except (ValueError, TypeError) as error:
            if isinstance(error, Error):
                raise
            raise ProtocolError(
                f"rank {rank} sent a malformed message: {text[:60]!r}; "
                "use one release of weightcast in all processes"
            ) from None
        return None
