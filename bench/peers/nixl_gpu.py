"""Whole updates between GPUs with NIXL: each source writes its share of a model to every target, tensor by
tensor in one transfer. Runs where nixl-cu13 and torch are installed.

Each rank is a process with one GPU. Before a round the sources write new bytes, after it every byte of the
targets is compared on the device; both are untimed. A round begins with the order to the first source and
ends when the last one has seen all its transfers done. Prints {"seconds": [...]}, the first round left out.
"""

import argparse
import os
from multiprocessing.connection import Connection
from typing import Any

from nixl_update import finish, introduce, places_of, shares_of, start, time_rounds, transfer_all

ALIGNMENT = 256


def memory_on(device: int, total: int) -> tuple[Any, Any]:
    """An agent, and memory that it knows."""
    import torch
    from nixl_cu13._api import nixl_agent, nixl_agent_config

    torch.cuda.set_device(device)
    memory = torch.zeros(total, dtype=torch.uint8, device=f"cuda:{device}")
    torch.cuda.synchronize()
    agent = nixl_agent(f"gpu-{os.getpid()}", nixl_agent_config(False, False, 0, backends=["UCX"]))
    agent.register_memory([(memory.data_ptr(), memory.numel(), device, "")], "VRAM")
    return agent, memory


def target(pipe: Connection, device: int, total: int, tensors: list[tuple[int, int]]) -> None:
    agent, memory = memory_on(device, total)
    pipe.send((agent.get_agent_metadata(), memory.data_ptr(), device))
    while True:
        while not pipe.poll(0):
            agent.get_new_notifs()  # Drives it.
        if (number := pipe.recv()) is None:
            return
        pipe.send(all(bool((memory[at : at + size] == number % 256).all()) for at, size in tensors))


def source(pipe: Connection, device: int, total: int, share: list[tuple[int, int]]) -> None:
    import torch

    agent, memory = memory_on(device, total)
    pipe.send("ready")
    prepared = []
    for metadata, there, their_device in pipe.recv():
        peer = agent.add_remote_agent(metadata)
        ours = agent.get_xfer_descs([(memory.data_ptr() + at, size, device) for at, size in share], "VRAM")
        theirs = agent.get_xfer_descs([(there + at, size, their_device) for at, size in share], "VRAM")
        prepared.append(agent.initialize_xfer("WRITE", ours, theirs, peer))
    pipe.send("met")
    while (number := pipe.recv()) is not None:
        memory.fill_(number % 256)
        torch.cuda.synchronize()
        pipe.send("filled")
        pipe.recv()
        transfer_all(agent, prepared)
        pipe.send("done")


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    import multiprocessing as mp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", required=True, type=numbers, help="bytes of each, comma separated")
    parser.add_argument("--sources", required=True, type=numbers, help="their GPUs")
    parser.add_argument("--targets", required=True, type=numbers, help="their GPUs")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # NIXL logs there.
    mp.set_start_method("spawn")
    tensors = places_of(arguments.tensors, ALIGNMENT)
    total = tensors[-1][0] + tensors[-1][1]
    targets = [start(target, device, total, tensors) for device in arguments.targets]
    split = shares_of(tensors, len(arguments.sources))
    sources = [
        start(source, device, total, share) for device, share in zip(arguments.sources, split, strict=True)
    ]
    pipes = [pipe for _, pipe in sources]
    introduce(pipes, [pipe for _, pipe in targets])

    def equal(number: int) -> bool:
        for _, pipe in targets:
            pipe.send(number)
        return all([pipe.recv() for _, pipe in targets])

    seconds = time_rounds(pipes, arguments.rounds, equal)
    finish(results, seconds, [process for process, _ in [*targets, *sources]])


if __name__ == "__main__":
    main()
