"""Whole updates between GPUs with NCCL M2N: the sources hold the same tensors, every target gets all of them.

Runs where nccl-extensions, nccl4py and torch are installed, one process a GPU, sources first. Before a round
the sources write new bytes; after it every byte of the targets is compared on the device; both are untimed. A
round reshards all tensors in one group and ends when the last rank is done. Prints {"seconds": [...]},
the first two rounds left out.
"""

import argparse
import json
import os
import socket
import time
from typing import Any

WARM_UP = 2


def reshard_all(handle: Any, communicator: Any, pairs: list[tuple[Any, Any]], stream: Any) -> None:
    from nccl.m2n import group

    with group():
        for source, target in pairs:
            handle.reshard(communicator, source, target, stream=stream)


def rank_main(rank: int, sources: int, targets: int, port: int, sizes: list[int], rounds: int) -> None:
    import nccl.core as nccl
    import torch
    import torch.distributed as dist
    from nccl.m2n import DistTensor, Handle, Mesh, Replicate

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    world, device = sources + targets, torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    identity = [nccl.get_unique_id() if rank == 0 else None]
    dist.broadcast_object_list(identity, 0)
    communicator = nccl.Communicator.init(nranks=world, rank=rank, unique_id=identity[0])
    is_source = rank < sources
    memory = [torch.zeros(size, dtype=torch.int8, device=device) for size in sizes]
    meshes = Mesh((sources,), start_rank=0), Mesh((targets,), start_rank=sources)

    def side(tensor: Any, ours: bool, mesh: Any) -> Any:
        where = {"mesh": mesh, "placements": [Replicate()]}
        return DistTensor(tensor if ours else None, local_shape=tuple(tensor.shape), dtype="int8", **where)

    pairs = [(side(one, is_source, meshes[0]), side(one, not is_source, meshes[1])) for one in memory]
    stream = torch.cuda.Stream()
    found = []
    with Handle.create() as handle:
        for turn in range(rounds + WARM_UP):
            for one in memory:
                one.fill_(turn % 100 if is_source else -1)
            torch.cuda.synchronize()
            dist.barrier()
            began = time.perf_counter()
            reshard_all(handle, communicator, pairs, stream)
            stream.synchronize()
            took = torch.tensor([time.perf_counter() - began])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if not all(bool((one == turn % 100).all()) for one in memory):
                raise AssertionError(f"M2N round {turn}: rank {rank} has wrong bytes; try NCCL_P2P_DISABLE=1")
            found.append(float(took))
    if rank == 0:
        print(json.dumps({"seconds": found[WARM_UP:]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    import torch.multiprocessing as mp

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensors", required=True, help="sizes in bytes, with commas between")
    parser.add_argument("--sources", type=int, required=True, help="how many")
    parser.add_argument("--targets", type=int, required=True, help="how many")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    sizes = [int(one) for one in options.tensors.split(",")]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    count = options.sources + options.targets
    mp.spawn(
        rank_main, (options.sources, options.targets, port, sizes, options.rounds), nprocs=count, join=True
    )


if __name__ == "__main__":
    main()
