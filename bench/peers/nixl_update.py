"""A whole update with NIXL, as weightcast's benchmark makes one: two sources, each with a replica, write two
targets' copies of a model together, tensor by tensor. Runs inside NIXL's environment.

Each of the four is a process. Half of each target's bytes come from each source. Before each round the
sources write new bytes, after it the targets read them once, both untimed.
"""

import argparse
import json
import multiprocessing as mp
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SOURCES, TARGETS = 2, 2


Place = tuple[int, int]  # Offset and bytes.


def places_of(tensors: list[int], alignment: int = 1) -> list[Place]:
    """Of each tensor in one allocation."""
    places, at = [], 0
    for size in tensors:
        places.append((at, size))
        at += -(-size // alignment) * alignment
    return places


def shares_of(places: list[Place], sources: int) -> list[list[Place]]:
    """For each source its tensors, so that all have about as many bytes: the largest first."""
    shares: list[list[Place]] = [[] for _ in range(sources)]
    for place in sorted(places, key=lambda one: -one[1]):
        min(shares, key=lambda share: sum(size for _, size in share)).append(place)
    return [sorted(share) for share in shares]


def agent_with(memory: Any) -> Any:
    from nixl_cu13._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(f"update-{os.getpid()}", nixl_agent_config(False, False, 0, backends=["UCX"]))
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    return agent


def target(pipe: Connection, total: int) -> None:
    import numpy as np

    memory = np.zeros(total // 8, dtype=np.uint64)
    agent = agent_with(memory)
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    pipe.recv()
    while True:
        while not pipe.poll(0):
            agent.get_new_notifs()  # Drives it.
        if pipe.recv() is None:
            return
        pipe.send(int(memory.sum(dtype=np.uint64)))


def transfer_all(agent: Any, prepared: list[Any]) -> None:
    """Begins all of them and polls until they are done."""
    waiting = list(prepared)
    for transfer in waiting:
        agent.transfer(transfer)
    while waiting:
        states = [(transfer, agent.check_xfer_state(transfer)) for transfer in waiting]
        if failed := {state for _, state in states} - {"PROC", "DONE"}:
            raise RuntimeError(
                f"NIXL: transfers ended as {failed}; run nixl_update.py alone with UCX_LOG_LEVEL=info"
            )
        waiting = [transfer for transfer, state in states if state == "PROC"]


def source(pipe: Connection, tensors: list[int], share: list[tuple[int, int]]) -> None:
    import numpy as np

    memory = np.zeros(sum(tensors) // 8, dtype=np.uint64)
    agent = agent_with(memory)
    pipe.send("ready")
    prepared = []
    for metadata, there in pipe.recv():
        peer = agent.add_remote_agent(metadata)
        ours = agent.get_xfer_descs([(memory.ctypes.data + at, size, 0) for at, size in share], "DRAM")
        theirs = agent.get_xfer_descs([(there + at, size, 0) for at, size in share], "DRAM")
        prepared.append(agent.initialize_xfer("WRITE", ours, theirs, peer))
    pipe.send("met")
    while (number := pipe.recv()) is not None:
        memory[:] = number
        pipe.send("filled")
        pipe.recv()
        transfer_all(agent, prepared)
        pipe.send("done")


def start(run: Any, *arguments: Any) -> tuple[Any, Connection]:
    ours, theirs = mp.Pipe()
    process = mp.Process(target=run, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, ours


def time_rounds(sources: list[Connection], rounds: int, equal: Callable[[int], bool]) -> list[float]:
    """Seconds of each round but the first, which connects. `equal`: whether the targets have the number's
    bytes."""
    times = []
    for number in range(1, rounds + 2):
        for pipe in sources:
            pipe.send(number)
        for pipe in sources:
            pipe.recv()
        begun = time.perf_counter()
        for pipe in sources:
            pipe.send("go")
        for pipe in sources:
            pipe.recv()
        times.append(time.perf_counter() - begun)
        if not equal(number):
            sys.exit("bytes differ after an update")
    return times[1:]


def introduce(sources: list[Connection], targets: list[Connection]) -> None:
    """Tells all sources of all targets, and waits until they have met."""
    hellos = [pipe.recv() for pipe in targets]
    for pipe in sources:
        pipe.recv()
        pipe.send(hellos)
    for pipe in sources:
        pipe.recv()


def finish(results: Any, seconds: Any, processes: list[Any]) -> None:
    json.dump({"seconds": seconds}, results)
    results.flush()
    for process in processes:
        process.kill()  # A graceful end of such engines may hang.
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensors", required=True, help="bytes of each, comma separated")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    mp.set_start_method("spawn")
    # Rounded up to words, so that all can be summed.
    tensors = [(int(size) + 7) // 8 * 8 for size in arguments.tensors.split(",")]
    targets = [start(target, sum(tensors)) for _ in range(TARGETS)]
    sources = [start(source, tensors, share) for share in shares_of(places_of(tensors), SOURCES)]
    pipes = [pipe for _, pipe in sources]
    introduce(pipes, [pipe for _, pipe in targets])
    for _, pipe in targets:
        pipe.send("met")

    def equal(number: int) -> bool:
        for _, pipe in targets:
            pipe.send("sum")
        return all([pipe.recv() == number * (sum(tensors) // 8) for _, pipe in targets])

    seconds = statistics.median(time_rounds(pipes, arguments.rounds, equal))
    finish(results, seconds, [process for process, _ in [*targets, *sources]])


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # This file's folder must not stand in front of what it imports.
    main()
