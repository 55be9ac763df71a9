"""weightcast.rl.collectives: every way brings the trainers' weights to the engines."""

import pathlib

import pytest

from endpoints import SETTINGS
from test_collective import free_address, run_all

TRAINERS, ENGINES = 2, 2
NAMES = [
    "tensor by tensor",
    "packed",
    "all roots",
    "hierarchical",
    "fsdp2 gather",
    "plain copy",
    "weightcast.collective",
]


def move_all_ways(rank: int, world: int, address: str, port: int) -> None:
    import os

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    from weightcast.rl.collectives import WAYS, Roles, buckets_of, tensors_of

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    roles = Roles([0, 1], [2, 3], ["a", "a", "b", "c"])
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 7).to(torch.bfloat16))
    model.append(model[0])  # Tied: moved once.
    assert [len(one) for one in buckets_of(tensors_of(model))] == [2, 2]
    assert [len(one) for one in buckets_of(tensors_of(model), 100)] == [1, 1, 2]
    trains = rank in roles.trainers
    mesh = DeviceMesh("cpu", roles.trainers)
    for value, name in enumerate(NAMES, 1):
        way = WAYS[name](roles, **({"settings": SETTINGS} if name.startswith("weightcast") else {}))
        seen: list[tuple[int, int]] = []
        way.progress = lambda *of, seen=seen: seen.append(of)
        for turn in range(2):
            expected = value + 10 * turn
            for tensor in model.state_dict().values():
                tensor.fill_(expected if trains else 0)
            if trains and name == "fsdp2 gather":
                parts = [distribute_tensor(one.detach(), mesh, [Shard(0)]) for one in tensors_of(model)]
                way.send({str(number): part for number, part in enumerate(parts)})
            else:
                moved = (way.send if trains else way.receive)(model)
                assert moved == 4 * 40 + 2 * 42
            assert all((one == expected).all() for one in model.state_dict().values()), name
        # All bytes of both turns are told of, where this rank moves all, one after another.
        if rank in (0, 2) and not name.startswith("weightcast") and (rank, name) != (0, "all roots"):
            assert seen[-1] == (4 * 40 + 2 * 42,) * 2 and len(seen) >= 4, (name, seen)
        way.close()
    dist.barrier()  # All have closed.
    assert not list(pathlib.Path("/dev/shm").glob("weightcast-rl-*"))
    dist.barrier()
    dist.destroy_process_group()


def test_every_way_brings_the_weights_to_every_engine(spawn):
    pytest.importorskip("torch")
    run_all(spawn, TRAINERS + ENGINES, move_all_ways, int(free_address().rpartition(":")[2]))
