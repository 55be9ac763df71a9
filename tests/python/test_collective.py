"""weightcast.collective between processes: what arrives, what is refused, what happens when a rank dies."""

import gc
import os
import signal
import socket
import time

import numpy as np
import pytest

import weightcast as wc
from endpoints import PATIENCE, SETTINGS, pattern
from weightcast import collective
from weightcast._collective_call import parents_of

TRANSPORTS = ["shm", "tcp"]
SIZES = [0, 1, 7, 4095, 65537, (1 << 20) + 3, 64 << 20]
LONG = 64 << 20
SLACK = 5.0


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def group_of(rank: int, world: int, address: str, transport: str = "shm", **more) -> collective.Group:
    settings = {**SETTINGS, "transport": transport}
    return collective.Group(rank, world, address, settings=settings, timeout=PATIENCE, **more)


def run_all(spawn, world: int, work, *arguments) -> list:
    """What `work(rank, world, address, …)` gives in each of `world` processes."""
    address = free_address()
    children = [spawn(work, rank, world, address, *arguments) for rank in range(world)]
    return [child.value(2 * PATIENCE) for child in children]


def outcomes(children) -> list[tuple[str, str]]:
    return [child.outcome(2 * PATIENCE) for child in children]


# --- What arrives ----------------------------------------------------------------------------------


def broadcast_sizes(rank: int, world: int, address: str, transport: str, shape: str) -> None:
    with group_of(rank, world, address, transport, shape=shape) as group:
        for turn, size in enumerate(SIZES):
            root = turn % world
            array = pattern(size, turn) if rank == root else np.zeros(size, np.uint8)
            group.broadcast(array, root)
            assert np.array_equal(array, pattern(size, turn)), f"{size} bytes from {root}"


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("world", "shape"), [(2, "star"), (3, "star"), (3, "chain"), (5, "chain")])
def test_a_broadcast_of_any_size_from_any_root(spawn, world, shape, transport):
    run_all(spawn, world, broadcast_sizes, transport, shape)


def gather_sizes(rank: int, world: int, address: str, transport: str, shape: str) -> None:
    with group_of(rank, world, address, transport, shape=shape) as group:
        for size in SIZES[:-1]:
            whole = np.concatenate([pattern(size, one) for one in range(world)])
            out = np.zeros(world * size, np.uint8)
            group.all_gather(out, pattern(size, rank))
            assert np.array_equal(out, whole)
            apart = [np.zeros(size, np.uint8) for _ in range(world)]
            group.all_gather(apart, pattern(size, rank))
            assert np.array_equal(np.concatenate(apart), whole)
            out[:] = 0
            mine = out[rank * size : (rank + 1) * size]
            mine[:] = pattern(size, rank)
            group.all_gather(out, mine)
            assert np.array_equal(out, whole)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("world", "shape"), [(2, "star"), (3, "star"), (5, "chain")])
def test_an_all_gather_into_one_array_or_several(spawn, world, shape, transport):
    run_all(spawn, world, gather_sizes, transport, shape)


def many_in_a_row(rank: int, world: int, address: str) -> None:
    sizes = [3, 0, 40_000, 1, 5 << 20, 12_345]
    with group_of(rank, world, address) as group:
        arrays = [np.zeros(size, np.uint8) for size in sizes]
        for turn in range(100):
            root = turn % world
            for number, array in enumerate(arrays):
                array[:] = (turn + number) % 251 if rank == root else 255
            group.broadcast(arrays, root)
            for number, array in enumerate(arrays):
                assert (array == (turn + number) % 251).all(), f"turn {turn}, array {number}"
            arrays[turn % len(arrays)][:] = 252  # It has returned, so this reaches nobody.


def test_a_hundred_lists_from_all_roots_which_change_at_once_afterwards(spawn):
    run_all(spawn, 3, many_in_a_row)


def over_hosts(rank: int, world: int, address: str) -> None:
    with group_of(rank, world, address, host="ab"[rank % 2]) as group:
        array = pattern(9 << 20, 5) if rank == 3 else np.zeros(9 << 20, np.uint8)
        group.broadcast(array, 3)
        assert np.array_equal(array, pattern(9 << 20, 5))
        out = np.zeros((world, 1000), np.uint8)
        group.all_gather(out, np.full(1000, rank, np.uint8))
        assert (out == np.arange(world)[:, None]).all()


def test_hosts(spawn):
    run_all(spawn, 5, over_hosts)


def test_bytes_enter_each_host_once():
    hosts = list("aabbbc")
    assert parents_of(0, hosts, "star") == [None, 0, 0, 2, 2, 2]
    assert parents_of(0, hosts, "chain") == [None, 0, 0, 2, 3, 2]
    assert parents_of(3, hosts, "star") == [1, 5, 3, None, 3, 3]
    for root in range(6):
        for shape in ("star", "chain"):
            parents = parents_of(root, hosts, shape)
            crossing = [one for one, up in enumerate(parents) if up is not None and hosts[one] != hosts[up]]
            assert len(crossing) == 2 and parents[root] is None


def torch_tensors(rank: int, world: int, address: str) -> None:
    import torch

    with group_of(rank, world, address) as group:
        made = [
            torch.full((1000, 33), 1.5, dtype=torch.bfloat16),
            torch.arange(7, dtype=torch.int64),
            torch.tensor(2.5),
            torch.zeros(0),
            torch.nn.Parameter(torch.full((5, 5), 3.0)),
        ]
        mine = made if rank == 1 else [torch.zeros_like(one) for one in made]
        group.broadcast(mine, root=1)
        assert all(torch.equal(one, other) for one, other in zip(mine, made, strict=True))
        out = torch.zeros(world, 3, dtype=torch.bfloat16)
        group.all_gather(out, torch.full((3,), rank + 0.5, dtype=torch.bfloat16))
        assert out[:, 0].tolist() == [0.5, 1.5, 2.5]
        # Moved, then gone: known again, then forgotten.
        mine[0].data = mine[0] + rank
        group.broadcast(mine, root=2)
        assert (mine[0] == 3.5).all()
        assert len(group._layouts._known) == 2
        del mine, out, made
        gc.collect()
        group.broadcast(np.zeros(1))
        assert len(group._layouts._known) == 1


def test_torch_tensors_that_move_and_go(spawn):
    pytest.importorskip("torch")
    run_all(spawn, 3, torch_tensors)


def by_store(rank: int, world: int, address: str, port: int) -> None:
    import torch.distributed as dist

    host = address.rpartition(":")[0]
    store = dist.TCPStore(host, port, world, rank == 0)
    for _ in range(2):
        with group_of(rank, world, store) as group:
            array = np.full(10, rank)
            group.broadcast(array)
            assert not array.any()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    with group_of(rank, world, dist.group.WORLD) as group:
        array = np.full(10, rank)
        group.broadcast(array, 1)
        assert (array == 1).all()
    dist.barrier()  # The store is rank 0's.
    dist.destroy_process_group()


def test_ranks_that_meet_by_torch(spawn):
    pytest.importorskip("torch")
    run_all(spawn, 3, by_store, int(free_address().rpartition(":")[2]))


def test_a_world_of_one_needs_nobody():
    with collective.Group(0, 1, None, settings=SETTINGS) as group:
        out = np.zeros(3)
        group.broadcast(out)
        group.all_gather(out, np.ones(3))
        assert out.tolist() == [1, 1, 1]


# --- What is refused -------------------------------------------------------------------------------


def differing(rank: int, world: int, address: str, what: str) -> None:
    with group_of(rank, world, address) as group:
        odd = rank == 2
        if what == "size":
            group.broadcast(np.zeros(8 if odd else 9))
        elif what == "dtype":
            group.broadcast(np.zeros(8, np.int64 if odd else np.float64))
        elif what == "order":
            sizes = (1, 2) if odd else (2, 1)
            group.broadcast([np.zeros(size) for size in sizes])
        elif what == "call":
            group.all_gather(np.zeros(9), np.zeros(3)) if odd else group.broadcast(np.zeros(9))
        elif what == "root":
            group.broadcast(np.zeros(9), 1 if odd else 0)
        group.broadcast(np.zeros(1))  # Who was done with the first finds out here.


@pytest.mark.parametrize("what", ["size", "dtype", "order", "call", "root"])
def test_ranks_that_call_something_else_are_named(spawn, what):
    address = free_address()
    children = [spawn(differing, rank, 3, address, what) for rank in range(3)]
    for kind, text in outcomes(children):
        assert kind in ("InvalidArgument", "Unavailable"), text
        assert "rank 2" in text


def in_world(rank: int, world: int, address: str) -> None:
    group_of(rank, world, address).close()


def test_a_rank_of_another_world_is_named(spawn):
    address = free_address()
    children = [spawn(in_world, rank, world, address) for rank, world in enumerate([3, 3, 4])]
    told = outcomes(children)
    assert {kind for kind, _ in told} == {"InvalidArgument"}
    assert all("rank 2 has world_size 4" in text for _, text in told), told


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(wc.TimedOut, match=r"ranks \[1, 2\] have not called rank 0"):
        collective.Group(0, 3, free_address(), settings=SETTINGS, timeout=0.3)
    with pytest.raises(wc.TimedOut, match="rank 0 was not found at"):
        collective.Group(1, 3, free_address(), settings=SETTINGS, timeout=0.3)


def test_an_address_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(wc.Unavailable, match="is in use"):
            collective.Group(0, 2, address, settings=SETTINGS, timeout=0.3)


def test_arguments_that_cannot_be():
    with pytest.raises(
        wc.InvalidArgument,
        match=r"rank is 2, world_size is 2; rank must be an integer in \[0, world_size - 1\]",
    ):
        collective.Group(2, 2, "127.0.0.1:1")
    with pytest.raises(wc.InvalidArgument, match="is not an address"):
        collective.Group(0, 2, "localhost", settings=SETTINGS)
    with pytest.raises(wc.InvalidArgument, match="not a rendezvous"):
        collective.Group(0, 2, 5, settings=SETTINGS)
    with collective.Group(0, 1, None, settings=SETTINGS) as group:
        with pytest.raises(wc.InvalidArgument, match="root is 1"):
            group.broadcast(np.zeros(1), 1)
        with pytest.raises(wc.InvalidArgument, match="one array of 24"):
            group.all_gather(np.zeros(4), np.zeros(3))


# --- What fails ------------------------------------------------------------------------------------


def until_it_fails(rank: int, world: int, address: str, transport: str, ready, shape: str):
    """The error, and when it came."""
    group = group_of(rank, world, address, transport, shape=shape)
    array = np.zeros(LONG, np.uint8)
    ready.put(os.getpid())
    try:
        for _ in range(100_000):
            group.broadcast(array, 0)
    except wc.Error as error:
        now = time.monotonic()
        with pytest.raises(wc.Cancelled, match="the group is closed; make a new one on all ranks: "):
            group.broadcast(array, 0)
        return type(error).__name__, str(error), now


@pytest.mark.parametrize(
    ("transport", "shape", "end"),
    [
        ("shm", "star", "SIGKILL"),
        ("shm", "chain", "SIGKILL"),
        ("tcp", "star", "SIGKILL"),
        ("tcp", "chain", "SIGSTOP"),
    ],
)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_is_named_by_all_others_within_the_lease(spawn, transport, shape, end, victim):
    import multiprocessing as mp

    address, ready, world = free_address(), mp.get_context("spawn").Manager().Queue(), 4
    children = [spawn(until_it_fails, rank, world, address, transport, ready, shape) for rank in range(world)]
    for _ in children:
        ready.get(timeout=PATIENCE)
    time.sleep(0.3)
    killed = time.monotonic()
    os.kill(children[victim].process.pid, getattr(signal, end))
    for rank, child in enumerate(children):
        if rank != victim:
            kind, text, when = child.value(2 * PATIENCE)
            assert f"rank {victim}" in text, f"rank {rank}: {kind}: {text}"
            assert when - killed < 2 * SETTINGS["lease"] + SLACK
    children[victim].process.kill()


def slow_rank(rank: int, world: int, address: str) -> None:
    with group_of(rank, world, address) as group:
        if rank == 1:
            time.sleep(3)
        group.broadcast(np.zeros(10), timeout=0.5)


def test_a_call_that_takes_too_long_says_who_was_waited_for(spawn):
    address = free_address()
    told = outcomes([spawn(slow_rank, rank, 2, address) for rank in range(2)])
    assert told[0][0] == "TimedOut" and "waited for rank 1" in told[0][1]
    assert told[1][0] == "TimedOut" and "rank 0" in told[1][1]


def leave_early(rank: int, world: int, address: str) -> None:
    with group_of(rank, world, address) as group:
        for _ in range(1 if rank == 2 else 3):
            group.broadcast(np.zeros(10))


def test_a_rank_that_left_is_named(spawn):
    address = free_address()
    told = outcomes([spawn(leave_early, rank, 3, address) for rank in range(3)])
    assert told[2] == ("ok", None)
    for kind, text in told[:2]:
        assert kind == "Unavailable" and "rank 2 has left" in text


def raise_inside(rank: int, world: int, address: str) -> None:
    with group_of(rank, world, address) as group:
        group.broadcast(np.zeros(10))
        if rank == 1:
            raise RuntimeError("the trainer has failed")
        group.broadcast(np.zeros(10), root=1)


def test_an_exception_at_one_rank_reaches_the_others(spawn):
    address = free_address()
    told = outcomes([spawn(raise_inside, rank, 3, address) for rank in range(3)])
    assert told[1][0] == "RuntimeError"
    for kind, text in (told[0], told[2]):
        assert kind == "Cancelled" and "rank 1: RuntimeError('the trainer has failed')" in text
