"""weightcast.p2p with memory of GPUs, between two processes on the fake driver: every call that takes any."""

import multiprocessing as mp
import time

import numpy as np
import pytest

from endpoints import PATIENCE, pattern
from gpus import Face, Machine, of
from weightcast import p2p
from weightcast.errors import InvalidArgument

SIZE = (3 << 20) + 4096
CUTS = [1 << 20, 4096, SIZE - (1 << 20) - 4096]
A_WHILE = 0.2


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_LEASE", "2")
    monkeypatch.setenv("WEIGHTCAST_PORT_RANGE", "20000-60000")


class Side:
    """One of two processes with an endpoint each, and a way to say things to the other."""

    def __init__(self, rank: int, pipe) -> None:
        self.rank, self._pipe = rank, pipe
        self.machine = Machine(rank)
        self.endpoint = p2p.Endpoint(rank)
        ok, self.conn = self.endpoint.add_remote_endpoint(self.exchange(self.endpoint.get_metadata()))
        assert ok, self.endpoint.last_error

    def exchange(self, said=None):
        """Gives what the other side has said at the same place."""
        self._pipe.send(said)
        assert self._pipe.poll(PATIENCE), "the other side says nothing"
        return self._pipe.recv()

    def call(self, name: str, *arguments):
        """What a call gives beside ok; one that begins an operation is waited for, too."""
        given = getattr(self.endpoint, name)(*arguments)
        ok, *rest = given if isinstance(given, tuple) else (given,)
        assert ok, f"{name}: {self.endpoint.last_error}"
        if name.endswith("_async"):
            self.wait(rest[0])
        return rest[0] if rest else None

    def wait(self, transfer_id: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            ok, done = self.endpoint.poll_async(transfer_id)
            assert ok, self.endpoint.last_error
            if done:
                return
            assert time.monotonic() < deadline

    def is_under_way(self, transfer_id: int) -> bool:
        ok, done = self.endpoint.poll_async(transfer_id)
        assert ok, self.endpoint.last_error
        return not done


def side_by_side(gpus, work, *arguments) -> None:
    ends = mp.get_context("spawn").Pipe()
    children = [gpus(work, rank, end, *arguments) for rank, end in enumerate(ends)]
    for child in children:
        child.value(4 * PATIENCE)


def cut(address: int) -> list[int]:
    return [address, address + CUTS[0], address + CUTS[0] + CUTS[1]]


class Held:
    """Memory of this side in a place, "host" or a GPU."""

    def __init__(self, side: Side, place) -> None:
        self._machine = side.machine
        self.array = np.zeros(SIZE, np.uint8)
        self.pointer = self.array.ctypes.data
        if place != "host":
            self.array = side.machine.array(self.array, place)
            self.pointer, _ = of(self.array)

    def fill(self, seed: int) -> None:
        if isinstance(self.array, np.ndarray):
            self.array[:] = pattern(SIZE, seed)
        else:
            self._machine.write(self.array, pattern(SIZE, seed))

    def check(self, seed: int, what: str) -> None:
        found = self.array if isinstance(self.array, np.ndarray) else self._machine.read(self.array)
        assert np.array_equal(found, pattern(SIZE, seed)), what


def every_call(rank: int, pipe, transport: str, places) -> None:
    """Rank 0 sends, writes and reads; rank 1 receives and advertises."""
    side = Side(rank, pipe)
    held = Held(side, places[rank])
    whole = (held.pointer, SIZE)
    pieces = (cut(held.pointer), CUTS)
    mr = side.call("reg", *whole)
    mrs = side.call("regv", *pieces)

    for turn, (name, other, arguments) in enumerate(
        [
            (send + end, recv + end, given)
            for send, recv, given in (
                ("send", "recv", (mr, *whole)),
                ("sendv", "recvv", (mrs, *pieces, 3)),
                ("send_ipc", "recv_ipc", whole),
            )
            for end in ("", "_async")
        ]
    ):
        held.fill(turn if rank == 0 else 100)
        side.call(name if rank == 0 else other, side.conn, *arguments)
        side.exchange()
        held.check(turn, name)

    if rank == 1:
        adverts = {
            "": side.call("advertise", side.conn, mr, *whole),
            "v": side.call("advertisev", mrs, *pieces, 3),
            "_ipc": side.call("advertise_ipc", side.conn, *whole),
            "v_ipc": side.call("advertisev_ipc", side.conn, *pieces),
        }
        descs = side.endpoint.register_memory([held.array])
        side.exchange((adverts, side.endpoint.get_serialized_descs(descs)))
    else:
        adverts, blob = side.exchange()
        remote = side.endpoint.deserialize_descs(blob)
        descs = side.endpoint.register_memory([held.array])
    forms = [
        ("", (mr, *whole), ()),
        ("v", (mrs, *pieces), (3,)),
        ("_ipc", whole, ()),
        ("v_ipc", pieces, ()),
    ]
    calls = [(verb, form, end) for verb in ("write", "read") for form in forms for end in ("", "_async")]
    for turn, (verb, (form, here, behind), end) in enumerate(calls, 200):
        writes = verb == "write"
        held.fill(turn if writes == (rank == 0) else 100)
        side.exchange()
        name = verb + form + end
        if rank == 0:
            side.call(name, side.conn, *here, adverts[form], *behind)
        side.exchange()
        held.check(turn, name)
        side.exchange()
    for turn, verb in enumerate(("write", "read"), 300):
        held.fill(turn if (verb == "write") == (rank == 0) else 100)
        side.exchange()
        if rank == 0:
            side.wait(side.call("transfer", side.conn, verb, descs, remote))
        side.exchange()
        held.check(turn, f"transfer {verb}")
        side.exchange()
    side.endpoint.deregister_memory(descs)
    for one in (mr, *mrs):
        side.call("dereg", one)
    side.exchange()


@pytest.mark.parametrize(
    "places", [(0, 1), (1, 1), (0, "host"), ("host", 1)], ids=["two", "one", "source", "target"]
)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_call(gpus, monkeypatch, transport, places):
    monkeypatch.setenv("WEIGHTCAST_TRANSPORT", transport)
    side_by_side(gpus, every_call, transport, places)


# --- Streams


def sources_wait(rank: int, pipe) -> None:
    """Nothing is read before what the current stream holds is over; nobody waits for it."""
    side = Side(rank, pipe)
    machine, held = side.machine, Held(side, rank)
    mr = side.call("reg", held.pointer, SIZE)
    _, meta = side.exchange((side.call("advertise", mr, held.pointer, SIZE),) * 2)
    _, info = side.exchange((side.call("advertise_ipc", side.conn, held.pointer, SIZE),) * 2)
    here, one = (mr, held.pointer, SIZE), ([mr], [held.pointer], [SIZE])
    remote = p2p.XferDesc(held.pointer, SIZE, meta=meta)
    desc = p2p.XferDesc(held.pointer, SIZE, mr)
    for turn, (name, other, arguments) in enumerate(
        [
            ("send_async", "recv_async", here),
            ("sendv_async", "recvv_async", (*one, 1)),
            ("send_ipc_async", "recv_ipc_async", here[1:]),
            ("write_async", None, (*here, meta)),
            ("writev_async", None, (*one, [meta], 1)),
            ("write_ipc_async", None, (*here[1:], info)),
            ("writev_ipc_async", None, (*one[1:], [info])),
            ("transfer", None, ("write", [desc], [remote])),
        ]
    ):
        held.fill(500 + rank)
        side.exchange()
        if rank == 1:
            tid = side.endpoint.recv_async(side.conn, *here)[1] if other else None
            side.exchange()
            held.check(501, f"{name} was early")  # The other side's stream has not got so far.
            side.exchange()
            if tid is not None:
                side.wait(tid)
        else:
            with machine.held(0, gpu=0):
                machine.fill(held.array, turn, 0)
                ok, tid = getattr(side.endpoint, name)(side.conn, *arguments)
                assert ok, side.endpoint.last_error
                time.sleep(A_WHILE)
                assert side.is_under_way(tid), name
                side.exchange()
                side.exchange()
                assert side.is_under_way(tid), name
            side.wait(tid)
        side.exchange()
        found = machine.read(held.array)
        assert (found == turn).all(), name
        side.exchange()


def test_sources_wait_for_the_current_stream(gpus):
    side_by_side(gpus, sources_wait)


def targets_wait(rank: int, pipe) -> None:
    """Nothing lands before what the current stream holds is over: it may still use the memory."""
    side = Side(rank, pipe)
    machine, held = side.machine, Held(side, 1)
    mr = side.call("reg", held.pointer, SIZE)
    _, meta = side.exchange((side.call("advertise", mr, held.pointer, SIZE),) * 2)
    here, one = (mr, held.pointer, SIZE), ([mr], [held.pointer], [SIZE])
    for name, arguments in (
        ("recv_async", here),
        ("recvv_async", (*one, 1)),
        ("recv_ipc_async", here[1:]),
        ("read_async", (*here, meta)),
        ("readv_async", (*one, [meta], 1)),
    ):
        held.fill(600 + rank)
        side.exchange()
        if rank == 0:
            tid = side.endpoint.send_async(side.conn, *here)[1] if name.startswith("recv") else None
            side.exchange()
            if tid is not None:
                side.wait(tid)
        else:
            with machine.held(0, gpu=1):
                machine.fill(held.array, 5, 0)
                ok, tid = getattr(side.endpoint, name)(side.conn, *arguments)
                assert ok, side.endpoint.last_error
                time.sleep(A_WHILE)
                assert side.is_under_way(tid), name
                held.check(601, name)
            side.exchange()
            side.wait(tid)
        held.check(600, name)
        side.exchange()


def test_targets_wait_for_the_current_stream(gpus):
    side_by_side(gpus, targets_wait)


def torchs_stream(rank: int, pipe) -> None:
    """Where torch is, its current stream counts; and a stream that nobody named holds nothing up."""
    import sys
    import types

    side = Side(rank, pipe)
    machine, held = side.machine, Held(side, rank)
    current, foreign = machine.stream(rank), machine.stream(rank)
    torch = types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_stream=lambda gpu: types.SimpleNamespace(cuda_stream={rank: current}[gpu]),
    )
    sys.modules["torch"] = torch
    mr = side.call("reg", held.pointer, SIZE)
    before = machine.calls("cuCtxSynchronize", "cuStreamSynchronize")
    if rank == 1:
        side.call("recv", side.conn, mr, held.pointer, SIZE)
        assert (machine.read(held.array) == 7).all()
    else:
        other = machine.array(np.zeros(4096, np.uint8))
        with machine.held(foreign):
            machine.fill(other, 1, foreign)
            with machine.held(0):
                machine.fill(held.array, 7, current)
                side.call("send", side.conn, mr, held.pointer, SIZE)
                assert machine.is_busy(foreign) and machine.is_busy(0)
    assert machine.calls("cuCtxSynchronize", "cuStreamSynchronize") == before == 0
    side.exchange()


def test_torchs_current_stream_counts_and_no_other(gpus):
    side_by_side(gpus, torchs_stream)


def lost_stream(rank: int, pipe) -> None:
    side = Side(rank, pipe)
    machine, held = side.machine, Held(side, rank)
    mr = side.call("reg", held.pointer, SIZE)
    if rank == 0:
        with machine.held(0):
            machine.fill(held.array, 7, 0)
            ok, tid = side.endpoint.send_async(side.conn, mr, held.pointer, SIZE)
            assert ok, side.endpoint.last_error
            assert side.is_under_way(tid)
            machine.lose(0)
            deadline = time.monotonic() + PATIENCE
            while (told := side.endpoint.poll_async(tid)) == (True, False):
                assert time.monotonic() < deadline
            assert told == (False, True)
            assert "the stream of this operation's memory is lost" in side.endpoint.last_error
    else:
        assert not side.endpoint.recv(side.conn, mr, held.pointer, SIZE)
        assert side.endpoint.last_error
    side.exchange()


def test_an_operation_of_a_lost_stream_ends(gpus):
    side_by_side(gpus, lost_stream)


# --- What cannot work


def refusals(transport: str) -> None:
    machine = Machine()
    a, b = p2p.Endpoint(0), p2p.Endpoint(1)
    ok, conn = a.add_remote_endpoint(b.get_metadata())
    assert ok, a.last_error
    array = machine.array(np.zeros(SIZE, np.uint8))
    pointer, size = of(array)
    ok, _ = a.reg(pointer, size + (1 << 20))
    assert not ok and "beyond the end of their allocation" in a.last_error
    strided = Face(array, (4, 4), typestr="<f4", strides=(32, 4))
    with pytest.raises(InvalidArgument, match="not contiguous"):
        a.register_memory([strided])
    ok, mr = a.reg(pointer, size)
    assert ok
    machine.capture(0, True)
    ok, _ = a.send_async(conn, mr, pointer, size)
    assert not ok and "outside of the capture" in a.last_error
    machine.capture(0, False)


def test_refusals_are_named(gpus):
    gpus(refusals, "shm").value(PATIENCE)


def advertised_again() -> None:
    """Other memory at the address of what was advertised and freed is other memory."""
    machine = Machine()
    a, b = p2p.Endpoint(0), p2p.Endpoint(1)
    ok, conn = a.add_remote_endpoint(b.get_metadata())
    assert ok, a.last_error
    first = machine.array(pattern(SIZE, 1))
    pointer, size = of(first)
    ok, info = b.advertise_ipc(conn, pointer, size)
    assert ok
    assert b.advertise_ipc(conn, pointer, size) == (True, info)
    del first
    second = machine.array(pattern(SIZE, 2))
    assert of(second)[0] == pointer, "this driver gives the same address again"
    ok, again = b.advertise_ipc(conn, pointer, size)
    assert ok and again != info, b.last_error
    target = np.zeros(SIZE, np.uint8)
    assert not a.read_ipc(conn, target.ctypes.data, SIZE, info)
    assert a.read_ipc(conn, target.ctypes.data, SIZE, again), a.last_error
    assert np.array_equal(target, pattern(SIZE, 2))


def test_memory_at_the_address_of_freed_memory_is_advertised_anew(gpus):
    gpus(advertised_again).value(PATIENCE)
