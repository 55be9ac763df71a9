#!/usr/bin/env python3
"""How much slower a GPU computes while it sends weights: by weightcast, and by NCCL.

A thread of the sending process multiplies matrices in BF16 on a stream of its own, without a pause. Measured
is the mean time of a product, first alone, then while whole updates of Qwen2.5-7B's shape go from GPU 0 to
GPU 1 one after the other; the last version is compared on the device. Needs two GPUs.
"""

import argparse
import os
import pathlib
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "gpu" / "cases"))

from cluster import SPAWN, Cluster  # noqa: E402
from gpu import on_fake  # noqa: E402
from models import bytes_of, qwen  # noqa: E402
from products import Products  # noqa: E402


def slowdown(alone: float, beside: float) -> float:
    return 100 * (beside / alone - 1)


def weightcast(model: str, seconds: float) -> tuple[float, float, int]:
    """Mean milliseconds of a product alone and beside updates, and how many updates that were."""
    with Cluster(qwen(model), [0], [1]) as cluster:
        (trainer,) = cluster.trainers
        cluster.write(1)
        cluster.update(1)
        alone = trainer.call("products", seconds)
        trainer.call("begin_products")
        version, ends = 1, time.monotonic() + seconds
        while time.monotonic() < ends:
            version += 1
            cluster.update(version, check=False)
        beside = trainer.call("end_products")
        cluster.write(version + 1)
        cluster.update(version + 1)
        return alone, beside, version - 1


def nccl_rank(rank: int, port: int, sizes: list[int], seconds: float, out: Any) -> None:
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=2, device_id=device)
    tensors = [torch.full((size,), rank, dtype=torch.uint8, device=device) for size in sizes]
    products = Products(device) if rank == 0 else None

    def broadcast() -> None:
        for one in tensors:
            dist.broadcast(one, 0)
        torch.cuda.current_stream().synchronize()

    broadcast()
    alone = products.run_for(seconds) if products is not None else 0.0
    dist.barrier()
    if products is not None:
        products.begin()
    count, ends = 0, time.monotonic() + seconds
    more = torch.ones(1, device=device)
    while True:
        broadcast()
        count += 1
        more.fill_(float(time.monotonic() < ends))
        dist.broadcast(more, 0)
        if float(more) == 0.0:
            break
    if products is not None:
        out.put((alone, products.end(), count))
    dist.destroy_process_group()


def nccl(model: str, seconds: float) -> tuple[float, float, int]:
    import socket

    import torch.multiprocessing as mp

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    out = SPAWN.SimpleQueue()
    sizes = [bytes_of([shape]) for shape in qwen(model)]
    mp.spawn(nccl_rank, (port, sizes, seconds, out), nprocs=2, join=True)
    return out.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="7b", choices=("0.5b", "7b"))
    parser.add_argument("--seconds", type=float, default=3, help="of each of the four measurements")
    options = parser.parse_args()
    if on_fake():
        print("left out: the fake driver multiplies no matrices")
        return
    print("| who | product alone, ms | beside updates, ms | slower by | updates |\n|---|---|---|---|---|")
    for who, measure in (("weightcast", weightcast), ("NCCL, broadcast tensor by tensor", nccl)):
        alone, beside, count = measure(options.model, options.seconds)
        slower = slowdown(alone, beside)
        print(f"| {who} | {alone:.3f} | {beside:.3f} | {slower:.1f}% | {count} |", flush=True)


if __name__ == "__main__":
    main()
