"""Lanes that are down: connections that are reset and cannot be made again for one update.

Each lane has a rate of its own, as where each takes another cable of a bond. Needs root.
"""

import random
import re
import subprocess
import time

from explain_hosts import host_of, scene_on_hosts
from explain_tally import BETWEEN, USUAL, Tally
from scene import Scene

from netns import Network

LANES = 6
MEGABITS = 150  # Of a lane.
SHAPE = (4, 1024, 1024)
PORTS = re.compile(r":(\d+) to [^ ,]+:(\d+)")  # A lane that comes back may take IPv6.
PATIENCE = 30  # Seconds.
Lane = tuple[str, str]  # Our port and the peer's.


def run_over_lanes(chance: random.Random, runs: int, tally: Tally, names: list[str]) -> None:
    with scene_on_hosts(names, SHAPE, LANES) as (scene, network):
        _plant(chance, runs, tally, scene, network)


def _plant(chance: random.Random, runs: int, tally: Tally, scene: Scene, network: Network) -> None:
    scene.update()
    _limit_all(scene, network)
    for _ in range(USUAL):
        tally.left_alone(scene.update())
    for _ in range(runs):
        victim, count = chance.choice(["trainer 0", "trainer 1"]), chance.randint(LANES - 2, LANES - 1)
        lanes = _lanes(scene.update())[victim]
        _take_down(network, victim, chance.sample(lanes, count))
        tally.planted([("lane_down", victim, count)], scene.update())
        _let_come_back(network, victim, lanes[0])
        _limit_all(scene, network)
        for _ in range(BETWEEN):
            tally.left_alone(scene.update())


def _lanes(update: dict) -> dict[str, list[Lane]]:
    """By the trainer's name; of none where one is down."""
    return {name: [] if "failed" in path else PORTS.findall(path) for name, path in _paths(update).items()}


def _paths(update: dict) -> dict[str, str]:
    """As the trainers describe their connections. Each sends to one engine."""
    return {
        source["name"]: span["path"]
        for source in update["sources"]
        for span in source["spans"]
        if span["kind"] == "write"
    }


def _limit_all(scene: Scene, network: Network) -> None:
    """An update, of which the trainers tell their lanes; and a rate for each."""
    for _ in range(PATIENCE):
        update = scene.update()
        lanes = _lanes(update)
        if len(lanes) == 2 and all(len(one) == LANES for one in lanes.values()):
            break
        time.sleep(1)
    else:
        raise AssertionError(f"not all {LANES} lanes are back; raise PATIENCE={PATIENCE}: {_paths(update)}")
    for name, own in lanes.items():
        _limit(network, host_of(name), own)


def _limit(network: Network, host: str, lanes: list[Lane]) -> None:
    tc = ["tc", "-n", network.namespace(host)]
    device = ["dev", network.interfaces[host]]
    subprocess.run([*tc, "qdisc", "del", *device, "root"], capture_output=True)
    rules = ["add table inet lanes", "flush table inet lanes"]
    rules.append("add chain inet lanes out { type filter hook postrouting priority 0; }")
    burst = ["burst", "256k", "cburst", "256k", "quantum", "60000"]
    classes = [["1:1", "htb", "rate", "10gbit", "burst", "1m"]]
    for number, (port, _) in enumerate(lanes, 2):
        classes.append([f"1:{number}", "htb", "rate", f"{MEGABITS}mbit", *burst])
        rules.append(f"add rule inet lanes out tcp sport {port} meta priority set {0x10000 + number:#x}")
    commands = [["qdisc", "add", *device, "root", "handle", "1:", "htb", "default", "1"]]
    commands += [["class", "add", *device, "parent", "1:", "classid", *one] for one in classes]
    for command in commands:
        subprocess.run([*tc, *command], check=True, capture_output=True, text=True)
    network.run(host, "nft", "; ".join(rules))


def _take_down(network: Network, trainer: str, lanes: list[Lane]) -> None:
    """New connections to the peers' listeners are dropped; so the lanes stay down."""
    host = host_of(trainer)
    rules = ["add table inet down"]
    rules.append("add chain inet down out { type filter hook output priority 0; }")
    for peer in {theirs for _, theirs in lanes}:
        rules.append(f"add rule inet down out tcp dport {peer} tcp flags & (syn | ack) == syn drop")
    network.run(host, "nft", "; ".join(rules))
    for port, peer in lanes:
        network.run(host, "ss", "-K", "sport", "=", port, "dport", "=", peer)


def _let_come_back(network: Network, trainer: str, lane: Lane) -> None:
    host, (_, peer) = host_of(trainer), lane
    network.run(host, "nft", "delete table inet down")
    established = ["ss", "-tnH", "state", "established", "dport", "=", peer]
    deadline = time.monotonic() + PATIENCE
    while len(network.run(host, *established).splitlines()) < LANES:
        assert time.monotonic() < deadline, f"the lanes of {trainer} do not come back"
        time.sleep(0.1)
    time.sleep(0.5)  # For greetings.
