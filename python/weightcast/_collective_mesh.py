"""How the ranks of a group meet, and the messages between them."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import _weightcast as _core
from ._collective_layouts import Layout
from .endpoint import Connection, Endpoint, Remote, Transfer
from .errors import (
    Cancelled,
    Error,
    Fenced,
    InvalidArgument,
    PeerDead,
    Permission,
    ProtocolError,
    TimedOut,
    Unavailable,
    error_for,
)
from .workers import Settings

ROLE = "rank"
# Bytes of a message, below the 32 KiB of a notice.
_MOST_TEXT = 30_000
# Seconds between two looks at everything else while one peer takes no messages.
_SLICE = 0.05
# Seconds that a rank's reason may come after the end of its connection.
_PATIENCE = 1.0


class Member(NamedTuple):
    """What a rank says of itself. `host`: ranks with the same word share a machine."""

    rank: int
    world_size: int
    name: str
    host: str
    incarnation: int
    addresses: list[str]


def host_of_this() -> str:
    """The same word for all processes under one running kernel, those of containers too."""
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


# --- Meeting ---------------------------------------------------------------------------------------


def listening_at(address: str, settings: Settings | None) -> Settings:
    """Settings of an endpoint that listens at this address; its transports take ports above."""
    port = _port_of(address)
    return {**(settings or {}), "port_range": f"{port}-{min(port + 64, 65535)}"}


def check_listens_at(address: str, endpoint: Endpoint) -> None:
    if not any(_port_of(one) == _port_of(address) for one in endpoint.addresses):
        raise Unavailable(f"the port of {address} is in use; choose another one or end who holds it")


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"'{address}' is no address; give one like 10.0.0.1:29800")
    return int(port)


def meet(
    endpoint: Endpoint, me: Member, rendezvous: Any, deadline: float
) -> tuple[list[Member], dict[int, Connection]]:
    """Who is there, by rank, and a connection to each other one. Raises by `deadline` (monotonic)."""
    found: dict[int, Connection] = {}
    if me.world_size == 1:
        return [me], found
    if not isinstance(rendezvous, str):
        texts = _exchange_of(rendezvous, me)(json.dumps(me).encode())
        members = _checked([_member(text) for text in texts], me)
    elif me.rank == 0:
        members, found = _receive_all(endpoint, me, deadline)
    else:
        members = _ask_first(endpoint, me, rendezvous, deadline)
    for one in members[: me.rank]:
        found[one.rank] = endpoint.connect(
            one.addresses, role=ROLE, rank=one.rank, incarnation=one.incarnation, timeout=_left(deadline)
        )
    awaited = {one.incarnation: one.rank for one in members[me.rank + 1 :]}
    while len(found) < me.world_size - 1:
        try:
            connection = endpoint.accept(_left(deadline))
        except TimedOut:
            missing = sorted(set(awaited.values()) - set(found))
            raise TimedOut(f"ranks {missing} have not connected to rank {me.rank} in time") from None
        if (rank := awaited.get(connection.peer.incarnation)) is not None:
            found[rank] = connection
    return members, found


def _member(text: bytes) -> Member:
    try:
        return Member(*json.loads(text))
    except (ValueError, TypeError):
        raise ProtocolError(f"the rendezvous gave what no rank has said: {text[:40]!r}") from None


def _checked(members: list[Member], me: Member) -> list[Member]:
    """By rank. Refuses what does not belong together, and says whose it is."""
    for one in members:
        if (one.world_size, one.name) != (me.world_size, me.name):
            raise InvalidArgument(
                f"rank {one.rank} is of a world of {one.world_size} named '{one.name}', "
                f"rank {me.rank} of one of {me.world_size} named '{me.name}'"
            )
    members = sorted(members)
    for rank, one in enumerate(members):
        if one.rank != rank:
            raise InvalidArgument(
                f"rank {one.rank} has come twice" if one.rank < rank else f"rank {rank} has not come"
            )
    if len(members) != me.world_size:
        raise InvalidArgument(f"rank {len(members)} has not come")
    return members


def _receive_all(
    endpoint: Endpoint, me: Member, deadline: float
) -> tuple[list[Member], dict[int, Connection]]:
    """Rank 0 hears everybody, then tells everybody."""
    members, callers = [me], []
    try:
        # All of them, also where one is to be refused: so all hear why.
        while len(members) < me.world_size:
            callers.append(endpoint.accept(_left(deadline)))
            members.append(_member(callers[-1].take_notice(_left(deadline))))
        ordered = _checked(members, me)
    except Error as error:
        if isinstance(error, TimedOut):
            missing = sorted(set(range(me.world_size)) - {one.rank for one in members})
            error = TimedOut(f"ranks {missing} have not called rank 0 in time")
        for caller in callers:
            with contextlib.suppress(Error):
                caller.notify(json.dumps({"code": error.code, "refused": str(error)}).encode(), 0)
        raise error from None
    for caller, one in itertools.product(callers, ordered):
        caller.notify(json.dumps(one).encode(), _left(deadline))
    by_incarnation = {one.incarnation: one.rank for one in ordered}
    return ordered, {by_incarnation[caller.peer.incarnation]: caller for caller in callers}


def _ask_first(endpoint: Endpoint, me: Member, address: str, deadline: float) -> list[Member]:
    while True:
        try:
            first = endpoint.connect(address, role=ROLE, rank=0, timeout=_left(deadline))
            break
        except Unavailable as error:
            if _left(deadline) == 0:
                raise TimedOut(f"rank 0 was not found at {address}: {error}") from None
            time.sleep(_SLICE)  # It may not have been started yet.
    first.notify(json.dumps(me).encode(), _left(deadline))
    members: list[Member] = []
    while len(members) < me.world_size:
        said = json.loads(first.take_notice(_left(deadline)))
        if isinstance(said, dict):
            raise error_for(said["code"], said["refused"])
        members.append(Member(*said))
    return _checked(members, me)


def _exchange_of(rendezvous: Any, me: Member) -> Callable[[bytes], list[bytes]]:
    """A function that gives everybody's bytes, by rank, for one's own."""
    if callable(rendezvous):
        return rendezvous
    if hasattr(rendezvous, "set") and hasattr(rendezvous, "get"):
        return lambda mine: _exchange_by_store(rendezvous, me, mine)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(rendezvous, distributed.ProcessGroup):
        return lambda mine: _exchange_by_group(distributed, rendezvous, me, mine)
    raise InvalidArgument(
        f"a {type(rendezvous).__name__} is no rendezvous; give rank 0's address, a store or process group of "
        "torch.distributed, or a function that exchanges bytes"
    )


def _exchange_by_store(store: Any, me: Member, mine: bytes) -> list[bytes]:
    # A number of its own for each group that the ranks make, one after another, through one store.
    turn = store.add(f"weightcast/{me.name}/{me.rank}", 1)
    store.set(f"weightcast/{me.name}/{turn}/{me.rank}", mine)
    return [bytes(store.get(f"weightcast/{me.name}/{turn}/{rank}")) for rank in range(me.world_size)]


def _exchange_by_group(distributed: Any, group: Any, me: Member, mine: bytes) -> list[bytes]:
    if (distributed.get_rank(group), distributed.get_world_size(group)) != (me.rank, me.world_size):
        raise InvalidArgument(f"rank {me.rank} of {me.world_size} is another one in the process group")
    found: list[bytes] = [b""] * me.world_size
    distributed.all_gather_object(found, mine, group=group)
    return found


# --- Messages --------------------------------------------------------------------------------------


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
                return self.links[rank].connection.notify(text, min(_SLICE, _left(deadline)))
            except TimedOut:
                self._check_alive()
                if _left(deadline) == 0:
                    raise TimedOut(f"rank {rank} has taken no messages in time") from None

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
        ready = self._poll.poll(_left(deadline) * 1000)
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
                        return Unavailable(f"rank {rank} has left the group")
            if _left(deadline) == 0:
                break
            time.sleep(_SLICE / 5)
        return error

    def say_farewell(self, message: list[Any]) -> None:
        """To whom it can be said at once."""
        text = json.dumps(message).encode()
        for link in self.links.values():
            with contextlib.suppress(Error):
                link.connection.notify(text, 0)

    def _heard(self, rank: int, link: Link, text: bytes) -> list[Any] | None:
        """Sees to what is the mesh's own; gives the rest."""
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
            raise ProtocolError(f"rank {rank} has sent what no rank sends: {text[:60]!r}") from None
        return None
