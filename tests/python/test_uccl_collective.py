"""The calls of uccl.collective in weightcast.collective, between three processes of torch.distributed."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from test_torch_processes import values  # noqa: E402
from torch_ranks import process_group  # noqa: E402
from weightcast import collective  # noqa: E402

WORLD = 3


def numbered(rank: int, size: int = 100_000):
    return torch.arange(size, dtype=torch.float32) * (rank + 1)


def pairs(rank: int) -> None:
    left, right = (rank - 1) % WORLD, (rank + 1) % WORLD
    mine, got = numbered(rank), torch.zeros(100_000)
    turns = [lambda: collective.send(mine, right), lambda: collective.recv(got, left)]
    for turn in turns if rank == 0 else reversed(turns):
        turn()
    assert torch.equal(got, numbered(left))
    first, second = torch.zeros(100_000), torch.zeros(100_000)
    handles = [collective.irecv(first, left), collective.irecv(second, left)]
    handles += [collective.isend(mine, right), collective.isend(-mine, right)]
    while not collective.test(handles[0]):
        pass
    collective.wait_all(handles)
    assert torch.equal(first, numbered(left)) and torch.equal(second, -numbered(left))
    assert collective.isend(mine, rank) == collective.irecv(got, rank) == -1
    empty = [collective.isend(torch.zeros(0), right), collective.irecv(torch.zeros(0), left)]
    collective.wait_all(empty)
    collective.send(mine, rank)
    assert collective.test(-1) and collective.wait(-1) is None


def batches(rank: int) -> None:
    kinds = [(collective.isend, collective.irecv), ("send", "recv"), (collective.send, collective.recv)]
    for send, recv in kinds:
        mine, got = numbered(rank).to(torch.bfloat16), torch.zeros(WORLD, 100_000, dtype=torch.bfloat16)
        ops = [collective.P2POp(send, mine, peer) for peer in range(WORLD)]
        handles = collective.batch_isend_irecv([*ops, *((recv, got[peer], peer) for peer in range(WORLD))])
        assert len(handles) == 2 * (WORLD - 1)
        collective.wait_all(handles)
        for peer in {0, 1, 2} - {rank}:
            assert torch.equal(got[peer], numbered(peer).to(torch.bfloat16))
    whole, later = torch.zeros(WORLD * 7), torch.zeros(WORLD, 7)
    collective.allgather(numbered(rank, 7), whole)
    mine = numbered(rank, 7)
    collective.wait_all(collective.iallgather(mine, later))
    assert whole.tolist() == later.view(-1).tolist() == [n * (r + 1) for r in range(WORLD) for n in range(7)]


def registered(rank: int) -> None:
    context = collective.get_collective()
    tensor = torch.zeros(WORLD, 1000)
    assert context.check_tensor_registered(tensor) is None
    known = collective.register_tensor(tensor)
    assert known == collective.register_tensor(tensor[1]) == context.check_tensor_registered(tensor[2, 5:9])
    context.allgather(torch.full((1000,), float(rank)), tensor)
    assert [row.unique().tolist() for row in tensor] == [[0], [1], [2]]
    assert not collective.deregister_tensor(tensor[1])
    assert collective.deregister_tensor(tensor) and not collective.deregister_tensor(tensor)
    assert context.check_tensor_registered(tensor) is None


def mistakes() -> None:
    tensor = torch.zeros(4, 4)
    for wrong, said in (
        (lambda: collective.isend(tensor, WORLD), "send with rank 3: give send or recv, a rank of 3"),
        (lambda: collective.batch_isend_irecv([("gather", tensor, 0)]), "gather with rank 0"),
        (lambda: collective.recv(tensor[:, 1], 0), "contiguous"),
        (lambda: collective.send(tensor.tolist(), 0), "is a list"),
        (
            lambda: collective.allgather(tensor, tensor),
            "recv_tensor has 64 bytes; give 3 x 64 of torch.float32",
        ),
        (lambda: collective.allgather(tensor, torch.zeros(48, dtype=torch.int32)), "torch.float32"),
    ):
        with pytest.raises(RuntimeError, match=said):
            wrong()
    with pytest.raises(AttributeError):
        collective.gather(tensor)


def uninitialized() -> None:
    tensor, nothing = torch.zeros(4), (lambda: collective.test(7), collective.get_collective)
    one = [
        lambda name=name: getattr(collective, name)(tensor)
        for name in ("register_tensor", "deregister_tensor")
    ]
    two = [
        lambda name=name: getattr(collective, name)(tensor, 0) for name in ("isend", "irecv", "send", "recv")
    ]
    more = [lambda: collective.allgather(tensor, tensor), lambda: collective.wait_all([7])]
    more += [lambda: collective.batch_isend_irecv([("send", tensor, 0)])]
    for call in (*nothing, *one, *two, *more):
        with pytest.raises(RuntimeError, match="not initialized; call init_collective"):
            call()
    collective.finalize_collective()


def script(folder: str, rank: int) -> None:
    torch.set_num_threads(1)
    with pytest.raises(RuntimeError, match="call its init_process_group first"):
        collective.init_collective()
    with process_group(folder, rank, WORLD):
        for turn in range(2):
            uninitialized()
            collective.init_collective(num_cpus=2, local_gpu_idx=5 if turn else None, disable_uccl_intra=True)
            context = collective.get_collective()
            assert context.initialized and context.ep is not None
            assert (context.rank, context.world_size, context.num_cpus) == (rank, WORLD, 2)
            assert context.local_gpu_idx == (5 if turn else rank)
            pairs(rank)
            batches(rank)
            registered(rank)
            mistakes()
            torch.distributed.barrier()
            collective.finalize_collective()
            assert not context.initialized and context.ep is None
        own = collective.CollectiveContext(4, None, True)
        own.init()
        got = torch.zeros(9)
        ops = [own.P2POp(own.isend, numbered(rank, 9), (rank + 1) % WORLD), ("recv", got, (rank - 1) % WORLD)]
        own.wait_all(own.batch_isend_irecv(ops))
        assert torch.equal(got, numbered((rank - 1) % WORLD, 9))
        torch.distributed.barrier()


def test_a_script_of_uccl_finds_its_calls(spawn, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_BIND", "127.0.0.1")
    values([spawn(script, str(tmp_path), rank) for rank in range(WORLD)])


def test_torch_is_not_imported_before_init():
    code = (
        "import sys; from weightcast import collective; collective.isend; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
