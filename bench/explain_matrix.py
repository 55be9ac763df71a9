#!/usr/bin/env python3
"""Plants slowness in real updates and counts what `weightcast explain` says of it.

Cause, victim and size of each run come from --seed. Runs of one kind share a job; between two planted updates
some are left alone, and these must not be called slow. Prints a confusion matrix as Markdown. A run is right
if cause and victim are; of two causes that are planted at once, the one of the longer size. Half of the runs
are on one host, without root. A tenth each has shaped links, slow disks, small chunks, tiny tensors, and
lanes that are down; links, disks and lanes need root.

    bench/explain_matrix.py --seed 7 --runs 100
    bench/explain_matrix.py --seed 7 --runs 10 --only disks
    bench/explain_matrix.py --seed 7 --runs 50 --only nothing
"""

import argparse
import contextlib
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "explain"), str(ROOT / "tests" / "python")]

from explain_disk import run_on_disks  # noqa: E402
from explain_hosts import host_of, scene_on_hosts  # noqa: E402
from explain_lanes import run_over_lanes  # noqa: E402
from explain_restart import run_with_small_chunks, run_with_tiny_tensors  # noqa: E402
from explain_tally import BETWEEN, USUAL, Plant, Tally  # noqa: E402
from scene import Scene  # noqa: E402

from netns import Network  # noqa: E402

NAMES = ["controller", "trainer 0", "trainer 1", "engine e0", "engine e1"]


@contextlib.contextmanager
def stopped_for(scene: Scene, name: str, milliseconds: int) -> Iterator[None]:
    with scene.stopped(name):
        yield
        time.sleep(milliseconds / 1000)


@contextlib.contextmanager
def starved_for(scene: Scene, name: str, milliseconds: int) -> Iterator[None]:
    """Its threads that cast."""
    with scene.starved(name, "wc-send"):
        yield
        time.sleep(milliseconds / 1000)


def update_with(scene: Scene, plants: list[Plant]) -> dict:
    """One update in which all of these are planted."""
    late = {who: size for cause, who, size in plants if cause in ("late_trainer", "late_engine")}
    stops = [(who, size) for cause, who, size in plants if cause == "stopped"]
    busy = [size for cause, _, size in plants if cause == "busy_controller"]
    with contextlib.ExitStack() as stop:
        for cause, who, size in plants:
            if cause == "slow_cast":
                stop.enter_context(starved_for(scene, who, size))
        for who, size in stops:
            stop.enter_context(stopped_for(scene, who, size))
        if busy:
            # An engine holds the update open until the controller does not run any more.
            with scene.stopped("engine e0"):
                scene.begin(late)
                time.sleep(0.1)
                stop.enter_context(stopped_for(scene, "controller", busy[0]))
        else:
            scene.begin(late)
    return scene.end()


def choose(chance: random.Random) -> list[Plant]:
    """One cause, or in a fifth of the runs two."""
    kinds: list[Callable[[int], Plant]] = [
        lambda size: ("late_trainer", chance.choice(["trainer 0", "trainer 1"]), size),
        lambda size: ("late_engine", chance.choice(["engine e0", "engine e1"]), size),
        lambda size: ("stopped", chance.choice(["engine e0", "engine e1"]), size),
        lambda size: ("busy_controller", "controller", size),
        lambda size: ("slow_cast", chance.choice(["trainer 0", "trainer 1"]), size),
    ]
    long = chance.randint(500, 1500)
    plants = [chance.choice(kinds)(long)]
    # The second is a third as long, and of a kind whose length does not depend on the first.
    other = chance.choice(kinds[:2])(long // 3)
    # Who is stopped cannot be told to be late; engine e0 is, while the controller is made busy.
    stopped = {plants[0][1], "engine e0"}
    return [*plants, other] if chance.random() < 0.2 and other[1] not in stopped else plants


def run_on_one_host(chance: random.Random, runs: int, tally: Tally) -> None:
    scene = Scene(dtype="BF16", shape=(2, 256, 1024))
    try:
        for _ in range(USUAL):
            tally.left_alone(scene.update())
        for _ in range(runs):
            plants = choose(chance)
            tally.planted(plants, update_with(scene, plants))
            for _ in range(BETWEEN):
                tally.left_alone(scene.update())
    finally:
        scene.close()


def unlimit(network: Network, name: str) -> None:
    port = f"p{list(network.interfaces).index(name)}"
    for namespace, device in ((network.namespace(name), network.interfaces[name]), (network.hub, port)):
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], check=True)


def run_over_links(chance: random.Random, runs: int, tally: Tally) -> None:
    """The wire of one engine's host carries less for one update."""
    with scene_on_hosts(NAMES, (4, 512, 1024)) as (scene, network):
        for _ in range(USUAL):
            tally.left_alone(scene.update())
        for _ in range(runs):
            victim = chance.choice(["engine e0", "engine e1"])
            megabits = chance.randint(40, 120)
            network.limit(host_of(victim), megabits)
            update = scene.update()
            unlimit(network, host_of(victim))
            tally.planted([("link", victim, megabits)], update)
            scene.update()  # TCP (BBR) may begin it at the rate that it has learned: slow, and rightly so.
            for _ in range(BETWEEN):
                tally.left_alone(scene.update())


def run_unplanted(chance: random.Random, runs: int, tally: Tally) -> None:
    """Half of the updates on one host, half with a host for each process."""
    here = Scene(dtype="BF16", shape=(2, 256, 1024))
    try:
        _leave_alone(here, runs - runs // 2, tally)
    finally:
        here.close()
    with scene_on_hosts(NAMES, (4, 512, 1024)) as (scene, _):
        _leave_alone(scene, runs // 2, tally)


def _leave_alone(scene: Scene, runs: int, tally: Tally) -> None:
    """Behind as many as a history needs."""
    for _ in range(USUAL):
        scene.update()
    for _ in range(runs):
        tally.left_alone(scene.update())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds: dict[str, Callable[[random.Random, int, Tally], None]] = {
        "links": run_over_links,
        "disks": lambda *arguments: run_on_disks(*arguments, options.disk),
        "chunks": run_with_small_chunks,
        "tensors": run_with_tiny_tensors,
        "lanes": lambda *arguments: run_over_lanes(*arguments, NAMES),
    }
    parser.add_argument("--seed", type=int, required=True, help="of causes, victims and sizes")
    parser.add_argument("--runs", type=int, default=100, help="planted updates (default 100)")
    parser.add_argument(
        "--only",
        choices=[*kinds, "nothing"],
        help="all of one kind, or updates that are left alone; without it each kind has a tenth",
    )
    parser.add_argument(
        "--disk", type=pathlib.Path, default="/var/tmp", help="a folder on a block device (default /var/tmp)"
    )
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tally = Tally()
    try:
        if options.only:
            {**kinds, "nothing": run_unplanted}[options.only](chance, options.runs, tally)
            return
        each = options.runs // 10
        run_on_one_host(chance, options.runs - len(kinds) * each, tally)
        for run in kinds.values() if each else ():
            run(chance, each, tally)
    finally:
        print(tally.text())


if __name__ == "__main__":
    main()
