#!/usr/bin/env python3
"""What an idle endpoint costs: processor time of a process whose endpoint has connections and nothing to do.

The peers live in another process. Each connection has moved bytes once. Prints the share of one core, for
each transport; heartbeats (four in a lease of 5 s, both ways) are all that happens.
"""

import argparse
import json
import multiprocessing as mp
import resource
import time
from multiprocessing.connection import Connection

import numpy as np

import weightcast as wc


def used() -> float:
    """Seconds of processor time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peers(addresses: list[str], count: int, transport: str, pipe: Connection) -> None:
    settings = {"transport": transport}
    endpoints = [wc.Endpoint(role="peer", rank=rank, settings=settings) for rank in range(count)]
    for endpoint in endpoints:
        connection = endpoint.connect(addresses, role="idle", timeout=30)
        remote = connection.import_region(connection.take_notice(30))
        connection.write(endpoint.register(np.arange(64)), remote).wait(30)
    pipe.send("connected")
    pipe.recv()
    for endpoint in endpoints:
        endpoint.close()


def share_of_a_core(transport: str, count: int, seconds: float) -> float:
    ours, theirs = mp.Pipe()
    with wc.Endpoint(role="idle", settings={"transport": transport}) as endpoint:
        region = endpoint.allocate((64,), np.int64, access="readwrite")
        other = mp.Process(target=peers, args=(endpoint.addresses, count, transport, theirs))
        other.start()
        for _ in range(count):
            endpoint.accept(timeout=60).notify(region.descriptor)
        assert ours.recv() == "connected"
        time.sleep(1)
        before, begun = used(), time.monotonic()
        time.sleep(seconds)
        share = (used() - before) / (time.monotonic() - begun)
        ours.send("done")
        other.join(60)
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mp.set_start_method("spawn")
    shares = {t: share_of_a_core(t, options.connections, options.seconds) for t in ("shm", "tcp")}
    if options.json:
        print(json.dumps({"connections": options.connections, "share_of_a_core": shares}))
    else:
        for transport, share in shares.items():
            print(f"{transport}: {options.connections} idle connections use {share:.4%} of a core")


if __name__ == "__main__":
    main()
