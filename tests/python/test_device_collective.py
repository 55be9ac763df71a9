"""weightcast.collective with memory of GPUs, between processes, on the fake driver."""

import gc

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE, pattern
from gpus import USED, WAITS_FOR_ALL, Face, Machine
from test_collective import free_address
from weightcast import collective

SIZES = [4096, 0, (1 << 20) + 3, 7, 20 << 20]
A_WHILE = 0.3


def group_of(rank: int, world: int, address: str, transport: str = "shm") -> collective.Group:
    settings = {"bind": "127.0.0.1", "lease": 5, "transport": transport}
    return collective.Group(rank, world, address, settings=settings, timeout=3 * PATIENCE)


def run_all(gpus, world: int, work, *arguments) -> None:
    address = free_address()
    children = [gpus(work, rank, world, address, *arguments) for rank in range(world)]
    for child in children:
        child.value(4 * PATIENCE)


def placed(machine: Machine, data: np.ndarray, place) -> object:
    """place: a GPU, or "host"."""
    if place == "host" or data.size == 0:
        return data.copy()
    return machine.array(data, place)


def found(machine: Machine, array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else machine.read(array)


def calls(rank: int, world: int, address: str, transport: str, places) -> None:
    machine = Machine(rank)
    with group_of(rank, world, address, transport) as group:
        for root in range(world):
            arrays = [
                placed(machine, pattern(size, turn) if rank == root else np.zeros(size, np.uint8), place)
                for turn, (size, place) in enumerate(zip(SIZES, places[rank] * len(SIZES), strict=False))
            ]
            group.broadcast(arrays, root)
            for turn, (size, array) in enumerate(zip(SIZES, arrays, strict=True)):
                assert np.array_equal(found(machine, array), pattern(size, turn)), f"{size} bytes from {root}"
        for size in (4096, (1 << 20) + 4):
            whole = np.concatenate([pattern(size, one) for one in range(world)])
            place = places[rank][0]
            out = placed(machine, np.zeros(world * size, np.uint8), place)
            group.all_gather(out, placed(machine, pattern(size, rank), place))
            assert np.array_equal(found(machine, out), whole)
            # What is gathered may lie elsewhere than where it is gathered.
            out = placed(machine, np.zeros(world * size, np.uint8), place)
            group.all_gather(out, placed(machine, pattern(size, rank), 1 if place == 0 else "host"))
            assert np.array_equal(found(machine, out), whole)
            out = placed(machine, np.zeros(world * size, np.uint8), "host")
            group.all_gather(out, placed(machine, pattern(size, rank), place))
            assert np.array_equal(out, whole)
            apart = [placed(machine, np.zeros(size, np.uint8), place) for _ in range(world)]
            group.all_gather(apart, placed(machine, pattern(size, rank), place))
            assert np.array_equal(np.concatenate([found(machine, one) for one in apart]), whole)
            # A part of `out` is not copied.
            out = machine.array(np.zeros(world * size, np.uint8), rank % USED)
            mine = Face(out, (size,), offset=rank * size)
            machine.write(mine, pattern(size, rank))
            group.all_gather(out, mine)
            assert np.array_equal(machine.read(out), whole)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    "places", [([0], [1]), ([0], [0], ["host"]), ([0, "host"], ["host", 1])], ids=["two", "one+host", "mixed"]
)
def test_calls(gpus, transport, places):
    run_all(gpus, len(places), calls, transport, places)


def streams(rank: int, world: int, address: str) -> None:
    """A call comes behind what the named, or current, stream holds, at the root and where bytes land."""
    machine, size = Machine(rank), 1 << 20
    foreign, named = machine.stream(rank), machine.stream(rank)
    other = machine.array(np.zeros(4096, np.uint8), rank)
    array = machine.array(np.zeros(size, np.uint8), rank)
    out = machine.array(np.zeros(world * size, np.uint8), rank)
    with group_of(rank, world, address) as group:
        group.broadcast(array, 0)
        group.all_gather(out, array)
        before = machine.calls(*WAITS_FOR_ALL)
        with machine.held(foreign, rank):
            machine.fill(other, 1, foreign)
            for turn, stream in enumerate((named, 0), 10):
                for slow in range(world):
                    if slow == rank:
                        # Filled late: by the root what is sent, elsewhere what is overwritten.
                        work = machine.late(stream, rank, A_WHILE)
                        machine.fill(array, turn if rank == 0 else 99, stream)
                    elif rank == 0:
                        machine.write(array, np.full(size, turn, np.uint8))
                    group.broadcast(array, 0, stream=stream or None)
                    if slow == rank:
                        work.join()
                    assert (machine.read(array) == turn).all(), f"{slow} was slow"
            work = machine.late(named, rank, A_WHILE)
            machine.fill(array, 20 + rank, named)
            group.all_gather(out, array, stream=named)
            work.join()
            gathered = machine.read(out).reshape(world, size)
            assert (gathered == 20 + np.arange(world)[:, None]).all()
            assert machine.is_busy(foreign, rank)
        assert machine.calls(*WAITS_FOR_ALL) == before


def test_calls_come_behind_their_streams(gpus):
    run_all(gpus, 2, streams)


def stuck(rank: int, world: int, address: str) -> None:
    machine = Machine(rank)
    array = machine.array(np.zeros(4096, np.uint8))
    group = group_of(rank, world, address)
    group.broadcast(array)
    with machine.held(0):
        machine.fill(array, 1, 0)
        with pytest.raises(wc.TimedOut, match="the stream of device 0 has not finished its work"):
            group.broadcast(array, timeout=1.0 if rank == 0 else None)


def test_a_stream_that_never_gets_so_far_fails_the_call_at_all_ranks(gpus):
    run_all(gpus, 2, stuck)


def freed(rank: int, world: int, address: str) -> None:
    """Memory that goes is taken from the peers first: the fake ends whoever frees what others have mapped."""
    machine = Machine(rank)
    with group_of(rank, world, address, "shm") as group:
        for turn in range(5):
            array = machine.array(np.full(1 << 20, turn if rank == 0 else 99, np.uint8), rank)
            group.broadcast(array)
            assert (machine.read(array) == turn).all()
            del array
            gc.collect()


def test_memory_that_is_freed_between_calls(gpus):
    run_all(gpus, 2, freed)


def wrong(rank: int, world: int, address: str) -> None:
    machine = Machine(rank)
    group = group_of(rank, world, address)
    both = [machine.array(np.zeros(64, np.uint8), gpu) for gpu in range(USED)]
    with pytest.raises(wc.InvalidArgument, match=r"devices \[0, 1\], and a stream is of one"):
        group.broadcast(both, stream=machine.stream())


def test_a_stream_for_two_gpus_is_refused(gpus):
    run_all(gpus, 2, wrong)
