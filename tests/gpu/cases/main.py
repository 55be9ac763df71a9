"""One case of the runs on GPUs: `main.py CASE`. Status 0 when all of it held."""

import json
import os
import random
import signal
import statistics
import sys
import time
from typing import Any

from cluster import Cluster, Failed
from gpu import Shape, on_fake
from models import qwen

MIB = 1 << 19  # Elements of 2 bytes.
STOPPED_SECONDS = 0.2  # Below the lease: nobody may be declared dead.


def figure(experiment: str, predicted: Any, measured: Any, unit: str, note: str = "") -> None:
    one = {"experiment": experiment, "predicted": predicted, "measured": measured, "unit": unit, "note": note}
    print(json.dumps(one), flush=True)


def some_tensors() -> list[Shape]:
    """Large and small ones, of lengths that are no multiple of a page."""
    large = 2 * MIB if on_fake() else 512 * MIB
    return [(large + 8,), (896, 128), (7,), (3, 5, 11), (large // 4,)]


def updates(cluster: Cluster, first: int, last: int) -> list[float]:
    found = []
    for version in range(first, last + 1):
        cluster.write(version)
        found.append(cluster.update(version))
    return found


def tensors() -> None:
    with Cluster(some_tensors(), [0], [0]) as cluster:
        seconds = updates(cluster, 1, 4)
        size = sum(_bytes(shape) for shape in some_tensors())
        took = round(1e3 * statistics.median(seconds), 2)
        figure(f"{size / 1e9:.2f} GB, in place, one GPU", "", took, "ms", f"median of {len(seconds)}")


def shadow() -> None:
    with Cluster(some_tensors(), [0], [0, 0], landing="shadow") as cluster:
        updates(cluster, 1, 4)


def graph() -> None:
    """Captured work of the engine runs while updates land in the spare copy, and shows each afterwards."""
    with Cluster(some_tensors(), [0], [0], landing="shadow") as cluster:
        updates(cluster, 1, 1)
        (engine,), (trainer,) = cluster.engines, cluster.trainers
        engine.call("capture")
        engine.call("shows", 1)
        for version in range(2, 8):
            cluster.write(version)
            engine.order("replay_and_receive", 20)
            trainer.call("publish", version)
            if engine.answer() != version:
                raise Failed(f"version {version} was not received")
            cluster.check(version)
            engine.call("shows", version)


def ordering() -> None:
    """The kernels that write a version are still to run when publish is called."""
    with Cluster(some_tensors(), [0], [0]) as cluster:
        for version in range(1, 9):
            cluster.update(version, "write_and_publish")


def cast(settings: dict[str, str] | None = None) -> None:
    """FP32 at the trainer; BF16, on the fake FP16, at the engine."""
    shapes: list[Shape] = [(1000, 256), (77,)]
    target = "float16" if on_fake() else "bfloat16"
    with Cluster(shapes, [0], [0], dtypes=("float32", target), settings=settings) as cluster:
        updates(cluster, 1, 3)


def compare() -> None:
    """Updates that end with a comparison of what has landed with what was sent."""
    settings = {"compare": "1"}
    cast(settings)
    with Cluster(some_tensors(), [0], [0], landing="shadow", settings=settings) as cluster:
        seconds = updates(cluster, 1, 4)
        took = round(1e3 * statistics.median(seconds), 2)
        figure("the same as a shadow, compared", "", took, "ms", f"median of {len(seconds)}")


def digest() -> None:
    with Cluster(some_tensors(), [0], [0]) as cluster:
        for version in (1, 2):
            updates(cluster, version, version)
            trainer, engine = cluster.trainers[0].call("digest"), cluster.engines[0].call("digest")
            if trainer != engine or not trainer:
                raise Failed(f"digests of version {version} differ: {trainer[:2]}, {engine[:2]}")


def qwen_7b() -> None:
    """The whole model from one process to another on one GPU."""
    model = "small" if on_fake() else "7b"
    shapes = qwen(model)
    with Cluster(shapes, [0], [0]) as cluster:
        seconds = updates(cluster, 1, 2 if on_fake() else 7)[1:]
        size = sum(_bytes(shape) for shape in shapes)
        median = statistics.median(seconds)
        predicted = "" if on_fake() else "10.5-13.0 (H100)"
        figure(
            f"Qwen2.5 {model}, one GPU to itself", predicted, round(1e3 * median, 2), "ms",
            f"{size / 1e9:.2f} GB, {size / median / 1e9:.0f} GB/s, median of {len(seconds)}",
        )  # fmt: skip


def _bytes(shape: Shape) -> int:
    size = 2
    for length in shape:
        size *= length
    return size


def endure() -> None:
    """Updates without end, in one of fifty a process is killed or stopped."""
    count, dice = int(os.environ.get("WC_GPU_UPDATES", "1000")), random.Random(5)
    every = 50 if count >= 500 else 10
    settings = {"lease": "3", "connect_timeout": "5", "timeout": "20", "commit_timeout": "5"}
    device = 0 if on_fake() else int(os.environ.get("WC_GPU_LAST", "0"))
    kills, stops, lost = 0, 0, 0
    shapes: list[Shape] = [(MIB,), (1000, 7)] if on_fake() else [(64 * MIB,), (1000, 7)]
    with Cluster(shapes, [0], [device, device], settings=settings) as cluster:
        for version in range(1, count + 1):
            cluster.write(version)
            fault = version % every == every // 2
            if not fault:
                cluster.update(version)
                continue
            kind, killed = dice.choice(("engine", "stop")), dice.choice((0, 1))
            kills, stops = kills + (kind == "engine"), stops + (kind == "stop")
            lost += not _with_fault(cluster, version, kind, killed)
    if lost > kills:
        raise Failed(f"{lost} updates were aborted, and only {kills} engines killed")
    figure("endured updates", count, count - lost, "updates", f"{kills} kills, {stops} stops, {lost} aborted")


def _with_fault(cluster: Cluster, version: int, kind: str, which: int) -> bool:
    """One update amid which an engine is killed, or stopped for a while. Whether it was committed."""
    victim, (trainer,) = cluster.engines[which], cluster.trainers
    other = cluster.engines[1 - which]
    for one in cluster.engines:
        one.call("begin")
        one.order("take", version)
    trainer.order("publish", version)
    if kind == "stop":
        os.kill(victim.process.pid or 0, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        os.kill(victim.process.pid or 0, signal.SIGCONT)
    else:
        victim.kill()
        cluster.restart(victim)
    committed = True
    for one in (trainer, other) if kind == "engine" else (trainer, other, victim):
        try:
            one.answer()
        except Failed as failed:
            print(f"version {version}, {kind}: {failed}", flush=True)
            committed = False
            continue
        if one is not trainer:  # What it took is whole, whatever became of the victim.
            one.call("check", version)
    return committed


CASES = {
    "tensors": tensors, "shadow": shadow, "graph": graph, "ordering": ordering, "cast": cast,
    "digest": digest, "compare": compare, "qwen2.5-7b": qwen_7b, "endure": endure,
}  # fmt: skip

if __name__ == "__main__":
    CASES[sys.argv[1]]()
