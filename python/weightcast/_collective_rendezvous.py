"""How the ranks of a group find and reach each other: by an address of rank 0, or by a rendezvous."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .endpoint import Connection, Endpoint
from .errors import Error, InvalidArgument, ProtocolError, TimedOut, Unavailable, error_for
from .workers import Settings

ROLE = "rank"
# Seconds between two attempts to reach rank 0.
_RETRY = 0.05


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


def left_until(deadline: float) -> float:
    """Seconds until this moment (monotonic), 0 from then on."""
    return max(0.0, deadline - time.monotonic())


def left_the_group(rank: int) -> str:
    return f"rank {rank} has left the group; see its log, correct that, and make a new group on all ranks"


def listening_at(address: str, settings: Settings | None) -> Settings:
    """Settings of an endpoint that listens at this address; its transports take ports above."""
    port = _port_of(address)
    return {**(settings or {}), "port_range": f"{port}-{min(port + 64, 65535)}"}


def check_listens_at(address: str, endpoint: Endpoint) -> None:
    if not any(_port_of(one) == _port_of(address) for one in endpoint.addresses):
        raise Unavailable(f"the port of {address} is in use; choose another, or end its process (ss -ltnp)")


def _port_of(address: str) -> int:
    port = address.rpartition(":")[2]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"rendezvous '{address}' is not an address; give one like 10.0.0.1:29800")
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
        advice = "give one that returns the bytes of each rank, in the order of the ranks"
        found_by = (f"the rendezvous returned for rank {rank}" for rank in range(len(texts)))
        members = _checked([_member(*one, advice) for one in zip(texts, found_by, strict=True)], me)
    elif me.rank == 0:
        members, found = _receive_all(endpoint, me, deadline)
    else:
        members = _ask_first(endpoint, me, rendezvous, deadline)
    for one in members[: me.rank]:
        found[one.rank] = endpoint.connect(
            one.addresses, role=ROLE, rank=one.rank, incarnation=one.incarnation, timeout=left_until(deadline)
        )
    awaited = {one.incarnation: one.rank for one in members[me.rank + 1 :]}
    while len(found) < me.world_size - 1:
        try:
            connection = endpoint.accept(left_until(deadline))
        except TimedOut:
            missing = sorted(set(awaited.values()) - set(found))
            raise TimedOut(
                f"ranks {missing} have not connected to rank {me.rank} within the timeout of this call; "
                f"check that they run and can reach {', '.join(endpoint.addresses)}"
            ) from None
        if (rank := awaited.get(connection.peer.incarnation)) is not None:
            found[rank] = connection
    return members, found


def _member(text: bytes, sender: str, advice: str) -> Member:
    try:
        return Member(*json.loads(text))
    except (ValueError, TypeError):
        raise ProtocolError(f"{sender} {text[:40]!r}, which no rank of a group sends; {advice}") from None


def _checked(members: list[Member], me: Member) -> list[Member]:
    """By rank. Refuses what does not belong together, and says whose it is."""
    for one in members:
        if (one.world_size, one.name) != (me.world_size, me.name):
            raise InvalidArgument(
                f"rank {one.rank} has world_size {one.world_size} and name '{one.name}', rank {me.rank} has "
                f"world_size {me.world_size} and name '{me.name}'; give all ranks the same two"
            )
    members = sorted(members)
    for rank, one in enumerate(members):
        if one.rank != rank:
            raise InvalidArgument(
                f"two processes have rank {one.rank}, that at {members[rank - 1].addresses[0]} and that at "
                f"{one.addresses[0]}; give each process its own rank"
                if one.rank < rank
                else f"no process has rank {rank}; start one process for each rank"
            )
    if len(members) != me.world_size:
        raise InvalidArgument(f"no process has rank {len(members)}; start one process for each rank")
    return members


def _receive_all(
    endpoint: Endpoint, me: Member, deadline: float
) -> tuple[list[Member], dict[int, Connection]]:
    """Rank 0 hears everybody, then tells everybody."""
    members, callers = [me], []
    try:
        # All of them, also where one is to be refused: so all hear why.
        while len(members) < me.world_size:
            callers.append(endpoint.accept(left_until(deadline)))
            said = callers[-1].take_notice(left_until(deadline))
            caller = f"{callers[-1].peer} ({callers[-1].address}) sent"
            members.append(_member(said, caller, "use one release of weightcast in all processes"))
        ordered = _checked(members, me)
    except Error as error:
        if isinstance(error, TimedOut):
            missing = sorted(set(range(me.world_size)) - {one.rank for one in members})
            error = TimedOut(
                f"ranks {missing} have not called rank 0 within the timeout of this call; check that they "
                f"run and can reach {', '.join(endpoint.addresses)}"
            )
        for caller in callers:
            with contextlib.suppress(Error):
                caller.notify(json.dumps({"code": error.code, "refused": str(error)}).encode(), 0)
        raise error from None
    for caller, one in itertools.product(callers, ordered):
        caller.notify(json.dumps(one).encode(), left_until(deadline))
    by_incarnation = {one.incarnation: one.rank for one in ordered}
    return ordered, {by_incarnation[caller.peer.incarnation]: caller for caller in callers}


def _ask_first(endpoint: Endpoint, me: Member, address: str, deadline: float) -> list[Member]:
    while True:
        try:
            first = endpoint.connect(address, role=ROLE, rank=0, timeout=left_until(deadline))
            break
        except Unavailable as error:
            if left_until(deadline) == 0:
                raise TimedOut(
                    f"rank 0 was not found at {address}, which must be its address: {error}"
                ) from None
            time.sleep(_RETRY)  # It may not have been started yet.
    first.notify(json.dumps(me).encode(), left_until(deadline))
    members: list[Member] = []
    while len(members) < me.world_size:
        try:
            said = json.loads(first.take_notice(left_until(deadline)))
        except TimedOut:
            raise TimedOut(
                f"rank 0 at {address} has not named all ranks within the timeout of this call; check that "
                f"{me.world_size} ranks run"
            ) from None
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
        f"a {type(rendezvous).__name__} is not a rendezvous; give rank 0's address, a store or process group "
        "of torch.distributed, or a function that exchanges bytes"
    )


def _exchange_by_store(store: Any, me: Member, mine: bytes) -> list[bytes]:
    # A number of its own for each group that the ranks make, one after another, through one store.
    turn = store.add(f"weightcast/{me.name}/{me.rank}", 1)
    store.set(f"weightcast/{me.name}/{turn}/{me.rank}", mine)
    return [bytes(store.get(f"weightcast/{me.name}/{turn}/{rank}")) for rank in range(me.world_size)]


def _exchange_by_group(distributed: Any, group: Any, me: Member, mine: bytes) -> list[bytes]:
    if (distributed.get_rank(group), distributed.get_world_size(group)) != (me.rank, me.world_size):
        raise InvalidArgument(
            f"rank {me.rank} of {me.world_size} is rank {distributed.get_rank(group)} of "
            f"{distributed.get_world_size(group)} in the process group; pass the group's own rank and "
            "world_size"
        )
    found: list[bytes] = [b""] * me.world_size
    distributed.all_gather_object(found, mine, group=group)
    return found
