"""One broadcast or all-gather as one rank sees it: what it reads from whom, and who reads from it."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Any

from ._collective_layouts import Layout
from ._collective_mesh import Mesh
from ._collective_rendezvous import left_the_group
from .endpoint import Remote, Transfer
from .errors import InvalidArgument, ProtocolError, TimedOut, Unavailable

# Bytes of a read, of one into memory of a GPU, and how many of a rank are under way at a time
# (docs/collective.md).
CHUNK = 1 << 20
DEVICE_CHUNK = 16 << 20
DEPTH = 4

Message = list[Any]


def parents_of(root: int, hosts: Sequence[str], shape: str) -> list[int | None]:
    """From whom each rank reads the root's bytes: one rank of each host, in a chain, then within the host.

    hosts: of each rank. shape: within a host "star", all from the one, or "chain", each from the one before.
    """
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    parents: list[int | None] = [None] * len(hosts)
    before = None
    for host in _from(hosts[root], list(members)):
        ranks = members[host]
        # Roots differ in an all-gather: their bytes enter a host by different ranks.
        first = root if host == hosts[root] else ranks[root % len(ranks)]
        parents[first], before = before, first
        above = first
        for rank in _from(first, ranks)[1:]:
            parents[rank] = above
            above = rank if shape == "chain" else first
    return parents


def _from(first: Any, ring: list[Any]) -> list[Any]:
    at = ring.index(first)
    return ring[at:] + ring[:at]


class Flow:
    """The bytes of one root, from `begin` to `end` of everybody's list. All counts are offsets in it."""

    def __init__(self, rank: int, root: int, parents: Sequence[int | None], begin: int, end: int) -> None:
        self.root, self.end = root, end
        above = parents[rank]
        # From whom this rank reads: at the root itself, which has everything.
        self.parent = rank if above is None else above
        self.whole = above is None
        self.children = {one for one, parent in enumerate(parents) if parent == rank}
        # What the parent has said: that it is in this call, where its bytes are, up to where they are good.
        self.has_begun = False
        self.remote: list[Remote] = []
        self.offered = begin
        # Up to where bytes were asked for, are here, and the children know that they are.
        self.asked = begin
        self.here = end if self.whole else begin
        self.told = begin
        self.reads: collections.deque[tuple[Transfer, int]] = collections.deque()

    @property
    def done(self) -> bool:
        return self.whole and not self.children


class Call:
    """`run` returns when this rank's bytes are here and nobody reads from it any more.

    number: of this call in its group. what: "broadcast from rank 0", the same at all ranks, as the list is.
    deadline: monotonic.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        number: int,
        what: str,
        layout: Layout,
        flows: list[Flow],
        deadline: float,
    ) -> None:
        self._mesh, self._rank, self._number = mesh, rank, number
        self._text, self._layout = f"{what} of {layout.text}", layout
        # One's own first, then those of the ranks after it: so all do not begin at one.
        self._flows = {flow.root: flow for flow in sorted(flows, key=lambda one: (one.root < rank, one.root))}
        self._begun, self._deadline = time.monotonic(), deadline

    def run(self, early: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
        """early: messages that have come before this call. Returns those for later ones."""
        for flow in self._flows.values():
            for child in sorted(flow.children):
                self._offer(flow, child)
        later = [said for said in early if not self._hear(*said)]
        while unfinished := [flow for flow in self._flows.values() if not flow.done]:
            for flow in unfinished:
                self._advance(flow)
            self._read(unfinished)
            if all(flow.done for flow in unfinished):
                break
            self._check_present(unfinished)
            if not self._mesh.wait(self._deadline):
                self._give_up(unfinished[0])
            later += [said for said in self._mesh.messages() if not self._hear(*said)]
        return later

    def _offer(self, flow: Flow, child: int) -> None:
        layout = self._layout
        self._mesh.tell_list(child, layout, self._deadline)
        said = ["offer", self._number, flow.root, self._text, layout.digest, layout.number, flow.here]
        self._mesh.say(child, said, self._deadline)
        flow.told = flow.here

    def _advance(self, flow: Flow) -> None:
        """Tells the children what has come, and the parent when all has."""
        while flow.reads and flow.reads[0][0].ended:
            transfer, flow.here = flow.reads.popleft()
            transfer.wait(0)  # Raises what made it fail.
        if flow.here > flow.told:
            for child in sorted(flow.children):
                self._mesh.say(child, ["have", self._number, flow.root, flow.here], self._deadline)
            flow.told = flow.here
        if flow.has_begun and not flow.whole and flow.here == flow.end:
            flow.whole = True
            self._mesh.say(flow.parent, ["taken", self._number, flow.root], self._deadline)

    def _read(self, flows: list[Flow]) -> None:
        """Asks for what the parents have, as much as may be under way."""
        room = DEPTH - sum(len(flow.reads) for flow in flows)
        chunk = DEVICE_CHUNK if self._layout.devices else CHUNK
        for flow in flows:
            while room > 0 and flow.asked < flow.offered:
                stop = min(flow.asked + chunk, flow.offered)
                pairs = self._layout.pairs(flow.remote, flow.asked, stop)
                limit = max(0.0, self._deadline - time.monotonic())
                transfer = self._mesh.links[flow.parent].connection.read(pairs, timeout=limit, stream=False)
                self._mesh.begin(transfer)
                flow.reads.append((transfer, stop))
                flow.asked = stop
                room -= 1

    def _hear(self, rank: int, message: Message) -> bool:
        """False: it is for a later call."""
        match message:
            case [_, int(number), *_] if number > self._number:
                return False
            case ["offer", int(number), _, text, *_] if number < self._number:
                raise InvalidArgument(
                    f"rank {rank} calls {text}, which rank {self._rank} has not called; "
                    "all ranks must make the same calls in one order"
                )
            case ["offer", self._number, root, text, digest, number, here]:
                self._compare(rank, text, digest)
                flow = self._flow_from(rank, root)
                flow.has_begun, flow.offered = True, here
                flow.remote = self._mesh.links[rank].lists[number]
            case ["have", self._number, root, here]:
                self._flow_from(rank, root).offered = here
            case ["taken", self._number, root] if rank in self._flows[root].children:
                self._flows[root].children.remove(rank)
            case _:
                raise ProtocolError(
                    f"rank {rank} sent an unknown message: {message}; "
                    "use one release of weightcast in all processes"
                )
        return True

    def _flow_from(self, rank: int, root: int) -> Flow:
        flow = self._flows[root]
        if flow.parent != rank:
            raise InvalidArgument(
                f"rank {rank} and rank {self._rank} disagree about who reads from whom; make the group with "
                "the same shape and rendezvous on every rank"
            )
        return flow

    def _compare(self, rank: int, text: str, digest: str) -> None:
        if text != self._text:
            raise InvalidArgument(
                f"rank {rank} calls {text}, rank {self._rank} {self._text}; "
                "all ranks must make the same calls in one order, with equal lists of tensors"
            )
        if digest != self._layout.digest:
            raise InvalidArgument(
                f"rank {rank} and rank {self._rank} call {text}, but single tensors differ in size or "
                "dtype; give equal lists on all ranks"
            )

    def _check_present(self, flows: list[Flow]) -> None:
        for flow in flows:
            needed = flow.children if flow.whole else {*flow.children, flow.parent}
            for rank in needed:
                if self._mesh.links[rank].has_left:
                    raise Unavailable(left_the_group(rank))

    def _give_up(self, flow: Flow) -> None:
        rank = flow.parent if not flow.whole else min(flow.children)
        state = f"{flow.here} of {flow.end} bytes from rank {flow.root} are here"
        if flow.whole:
            state = f"rank {rank} has not taken all bytes from rank {flow.root}"
        elif not flow.has_begun:
            state = f"rank {rank} has not begun the call"
        raise TimedOut(
            f"{self._text}: rank {self._rank} has waited for rank {rank} for "
            f"{time.monotonic() - self._begun:.3g} s: {state}; check that it runs, or give the call more time"
        )
