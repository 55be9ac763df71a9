#!/usr/bin/env python3
"""Plants slowness in real updates and counts what `weightcast explain` says of it.

Cause, victim and size of each run come from --seed. Runs of one kind share a job; between two planted updates
some are left alone, and these must not be called slow. Prints a confusion matrix as Markdown. A run is right
if cause and victim are; of two causes that are planted at once, the one of the longer size. The kinds that
need network namespaces need root.

    bench/explain_matrix.py --seed 7 --runs 100
"""

import argparse
import collections
import contextlib
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "explain"))

from scene import Scene  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "python"))

from netns import Network  # noqa: E402

USUAL = 12  # Updates before the first that is planted.
BETWEEN = 3  # And between two.
NAMES = ["controller", "trainer 0", "trainer 1", "engine e0", "engine e1"]
Plant = tuple[str, str, int]  # Cause, who is planted on, milliseconds.


def worker_named(name: str) -> str:
    """As a verdict names it."""
    return {"controller": ""}.get(name, f"{name} rank 0" if name.startswith("engine") else name)


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


class Tally:
    def __init__(self) -> None:
        self.matrix: collections.Counter[tuple[str, str]] = collections.Counter()
        self.runs = self.right = self.quiet = self.alarms = 0

    def planted(self, plants: list[Plant], update: dict) -> None:
        cause, who, size = max(plants, key=lambda plant: plant[2])
        verdict = update["verdict"]
        said = verdict["cause"] if verdict["slow"] else "not slow"
        named = verdict["victim"] if cause == "link" else verdict["worker"]
        right = said == cause and named == worker_named(who)
        self.runs += 1
        self.right += right
        self.matrix[cause, said if right or said != cause else f"{said}, other victim"] += 1
        if not right:
            print(f"planted {plants}: {verdict['text']}", file=sys.stderr)

    def left_alone(self, update: dict) -> None:
        self.quiet += 1
        if update["verdict"]["slow"]:
            self.alarms += 1
            print(f"false alarm: {update['verdict']['text']}", file=sys.stderr)

    def text(self) -> str:
        said = sorted({column for _, column in self.matrix})
        rows = [f"| planted | {' | '.join(said)} |", "|---" * (len(said) + 1) + "|"]
        for cause in sorted({row for row, _ in self.matrix}):
            rows.append(f"| {cause} | {' | '.join(str(self.matrix[cause, column]) for column in said)} |")
        return "\n".join(
            [
                *rows,
                "",
                f"{self.right} of {self.runs} planted updates were named with cause and victim;"
                f" {self.alarms} of {self.quiet} updates that were left alone were called slow.",
            ]
        )


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
    network = Network()
    try:
        inside = {}
        for number, name in enumerate(NAMES, 1):
            network.add_host(name.replace(" ", ""), f"10.98.0.{number}/24")
            inside[name] = network.inside(name.replace(" ", ""))
        scene = Scene(
            inside=inside,
            listen="10.98.0.1:29750",
            settings={"WEIGHTCAST_TRANSPORT": "tcp"},
            shape=(4, 512, 1024),
        )
        try:
            for _ in range(USUAL):
                tally.left_alone(scene.update())
            for _ in range(runs):
                victim = chance.choice(["engine e0", "engine e1"])
                megabits = chance.randint(40, 120)
                network.limit(victim.replace(" ", ""), megabits)
                update = scene.update()
                unlimit(network, victim.replace(" ", ""))
                tally.planted([("link", victim, megabits)], update)
                for _ in range(BETWEEN):
                    tally.left_alone(scene.update())
        finally:
            scene.close()
    finally:
        network.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="of causes, victims and sizes")
    parser.add_argument("--runs", type=int, default=100, help="planted updates (default 100)")
    parser.add_argument(
        "--links", type=int, default=None, help="of these over shaped links (default a sixth)"
    )
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    links = arguments.runs // 6 if arguments.links is None else arguments.links
    tally = Tally()
    try:
        run_on_one_host(chance, arguments.runs - links, tally)
        if links:
            run_over_links(chance, links, tally)
    finally:
        print(tally.text())


if __name__ == "__main__":
    main()
