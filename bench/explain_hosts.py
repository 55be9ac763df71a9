"""A scene whose processes have a host each, in network namespaces. Needs root."""

import contextlib
from collections.abc import Iterator

from scene import Scene

from netns import Network


def host_of(name: str) -> str:
    """The name of the host on which "engine e0" runs."""
    return name.replace(" ", "")


@contextlib.contextmanager
def scene_on_hosts(
    names: list[str], shape: tuple[int, int, int], lanes: int | None = None
) -> Iterator[tuple[Scene, Network]]:
    """Over tcp. names: the controller first. lanes: as the setting."""
    network = Network()
    try:
        inside = {}
        for number, name in enumerate(names, 1):
            network.add_host(host_of(name), f"10.98.0.{number}/24")
            inside[name] = network.inside(host_of(name))
        settings = {"WEIGHTCAST_TRANSPORT": "tcp"}
        if lanes is not None:
            settings["WEIGHTCAST_LANES"] = str(lanes)
        scene = Scene(inside=inside, listen="10.98.0.1:29750", settings=settings, shape=shape)
        try:
            yield scene, network
        finally:
            scene.close()
    finally:
        network.close()
