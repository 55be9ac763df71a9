"""Takes the command lines of `weightcast.rl`: trainers add up by gloo and publish once, engines receive it.

What fails or waits is told by --misbehave: trainer-fails, engine-fails, trainer-waits, engine-waits.
"""

import argparse
import os
import socket
import sys
import time

import numpy as np

import weightcast as wc

SIZE = 1000


def _train(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    assert world == options.num_training, (world, options.num_training)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    queue = _queue(options.rollout_queue) if rank == 0 else None
    if rank == world - 1:
        _misbehave(options.misbehave, "trainer")
    with wc.Trainer.from_env(options.controller) as trainer:
        trainer.register({"w": np.full(SIZE, total.item(), np.float32)})
        trainer.publish(1, hold=True).wait(60)
        if queue is not None:
            for _ in range(options.num_inference):
                print(f"{queue.accept()[0].recv(100).decode()} has been here", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def _queue(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_server((host, int(port)))


def _generate(options: argparse.Namespace) -> None:
    _misbehave(options.misbehave, "engine")
    weights = np.zeros(SIZE, np.float32)
    with wc.Inference(options.controller, engine=options.engine) as engine:
        engine.register({"w": weights})
        version = engine.wait(timeout=60)
        host, port = options.rollout_queue.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as queue:
            queue.sendall(options.engine.encode())
    expected = sum(range(1, options.num_training + 1))
    assert (weights == expected).all(), weights
    print(f"version {version}: {weights[0]}, local rank {os.environ.get('LOCAL_RANK')}", flush=True)


def _misbehave(how: str, role: str) -> None:
    if how == f"{role}-fails":
        sys.exit("no more")
    if how == f"{role}-waits":
        print("waiting", flush=True)
        time.sleep(600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=("trainer", "inference"), required=True)
    for name in ("--controller", "--rollout_queue", "--engine", "--misbehave", "--text"):
        parser.add_argument(name, default="")
    parser.add_argument("--num_training", type=int)
    parser.add_argument("--num_inference", type=int)
    options = parser.parse_args()
    print("text", options.text, flush=True)
    _train(options) if options.role == "trainer" else _generate(options)


if __name__ == "__main__":
    main()
