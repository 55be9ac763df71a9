"""What weightcast is measured beside: each peer is a module with a class `Peer` like the one below."""

import pathlib
from typing import Protocol


class Missing(Exception):
    """Why a peer cannot be measured here."""


class Peer(Protocol):
    name: str
    paths: tuple[
        str, ...
    ]  # Of "tcp", "any" (memory of any kind, one host) and "mapped" (memory both sides map).
    reuse: bool  # It sends the same bytes every time, which nobody reads: so does then weightcast.

    def __init__(self, folder: pathlib.Path) -> None:
        """Installs it below `folder`, unless it is there, and nothing outside. Raises Missing."""

    def measure(self, path: str, sizes: list[str], seconds: float, cores: list[int]) -> dict[str, float]:
        """Microseconds of one write of each size that it can do ("64K", "200x64K"), between two processes
        that are pinned to one core each; about `seconds` for each size. Raises subprocess.SubprocessError."""
