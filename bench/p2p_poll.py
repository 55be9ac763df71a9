#!/usr/bin/env python3
"""What a poll loop of weightcast.p2p costs beside the blocking call.

Two processes of this host. Batches of calls that block take turns with batches that begin and poll until
done, so that what else happens on the machine meets both alike. `write`, `read`: the peer sleeps. `ping`: a
send and the recv of its answer; both sides block, or both poll. Prints the median time of one operation in µs
and the ratio poll / blocking: the median of the turns' ratios, in brackets the least and the greatest.
"""

import argparse
import functools
import itertools
import json
import multiprocessing as mp
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

MODES = ("blocking", "poll")
OPS = ("write", "read", "ping")
BATCH = 20


class Side:
    """One process' endpoint, its memory and the way in which it calls."""

    def __init__(self, index: int, size: int) -> None:
        from weightcast import p2p  # After the settings are in the environment.

        self.endpoint = p2p.Endpoint(index)
        self.memory = np.zeros(size, np.uint8)
        ok, mr_id = self.endpoint.reg(self.memory.ctypes.data, size)
        assert ok, self.endpoint.last_error
        self.buffer = (mr_id, self.memory.ctypes.data, size)

    def do(self, mode: str, name: str, *arguments: object) -> None:
        if mode == "blocking":
            assert getattr(self.endpoint, name)(*arguments), self.endpoint.last_error
            return
        ok, transfer_id = getattr(self.endpoint, f"{name}_async")(*arguments)
        done = False
        while ok and not done:
            ok, done = self.endpoint.poll_async(transfer_id)
        assert ok, self.endpoint.last_error

    def ping(self, mode: str, conn_id: int, first: str, then: str) -> None:
        self.do(mode, first, conn_id, *self.buffer)
        self.do(mode, then, conn_id, *self.buffer)


def peer(size: int, pipe: Connection) -> None:
    side = Side(1, size)
    pipe.send(side.endpoint.get_metadata())
    ok, _, _, conn_id = side.endpoint.accept()
    assert ok, side.endpoint.last_error
    pipe.send(side.endpoint.advertise(conn_id, *side.buffer)[1])
    while mode := pipe.recv():
        for _ in range(BATCH):
            side.ping(mode, conn_id, "recv", "send")


def times_of(call: Callable[[], None]) -> list[float]:
    """Of a batch, in µs."""
    times = []
    for _ in range(BATCH):
        begun = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begun) / 1000)
    return times


def measure(size: int, calls: int, turns: int) -> dict[str, dict[str, list[float]]]:
    ours, theirs = mp.Pipe()
    process = mp.Process(target=peer, args=(size, theirs))
    process.start()
    side = Side(0, size)
    ip, port, gpu = side.endpoint.parse_metadata(ours.recv())
    ok, conn_id = side.endpoint.connect(ip, gpu, port)
    assert ok, side.endpoint.last_error
    meta = ours.recv()
    times = {op: {mode: [] for mode in MODES} for op in OPS}
    for turn, op in itertools.product(range(turns + 1), OPS):
        found = {mode: [] for mode in MODES}
        for mode in MODES * (calls // BATCH):
            if op == "ping":
                ours.send(mode)
                call = functools.partial(side.ping, mode, conn_id, "send", "recv")
            else:
                call = functools.partial(side.do, mode, op, conn_id, *side.buffer, meta)
            found[mode] += times_of(call)
        if turn:  # The first warms up.
            for mode in MODES:
                times[op][mode].append(statistics.median(found[mode]))
    ours.send("")
    process.join(60)
    return times


def row_of(transport: str, size: int, op: str, times: dict[str, list[float]]) -> dict[str, object]:
    blocking, poll = (times[mode] for mode in MODES)
    ratios = [slow / fast for slow, fast in zip(poll, blocking, strict=True)]
    return {
        "transport": transport,
        "bytes": size,
        "op": op,
        "blocking_us": statistics.median(blocking),
        "poll_us": statistics.median(poll),
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transports", default="shm,tcp")
    parser.add_argument("--bytes", default="65536", help="sizes of one operation (65536)")
    parser.add_argument("--calls", type=int, default=300, help="of each kind in one turn (300)")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    mp.set_start_method("spawn")
    rows = []
    for transport in options.transports.split(","):
        os.environ |= {"WEIGHTCAST_TRANSPORT": transport, "WEIGHTCAST_PORT_RANGE": "20000-60000"}
        for size in map(int, options.bytes.split(",")):
            for op, times in measure(size, options.calls, options.turns).items():
                rows.append(row_of(transport, size, op, times))
    if options.json:
        print(json.dumps({"results": rows}))
        return
    for row in rows:
        least, most = row["ratios"]
        print(
            f"{row['transport']:4} {row['bytes']:>9} {row['op']:5} blocking {row['blocking_us']:9.1f} µs"
            f"  poll {row['poll_us']:9.1f} µs  ratio {row['ratio']:.2f} [{least:.2f} {most:.2f}]"
        )


if __name__ == "__main__":
    main()
