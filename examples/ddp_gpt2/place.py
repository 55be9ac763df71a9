"""Where a rank is among all, as its environment says."""

import dataclasses
from collections.abc import Mapping

from failure import Failure

EXAMPLE = "RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"


@dataclasses.dataclass(frozen=True)
class Place:
    """What torchrun or the user has put into the environment of this rank."""

    rank: int
    world_size: int
    local_rank: int
    master: str
    port: int
    torchrun: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Place":
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if missing := [name for name in names if not environment.get(name)]:
            raise Failure(f"{', '.join(missing)} must be set: start with torchrun, or with {EXAMPLE}")
        world_size = _integer(environment, "WORLD_SIZE", 1, 1 << 16)
        return cls(
            rank=_integer(environment, "RANK", 0, world_size - 1),
            world_size=world_size,
            local_rank=_integer({"LOCAL_RANK": "0", **environment}, "LOCAL_RANK", 0, world_size - 1),
            master=environment["MASTER_ADDR"],
            port=_integer(environment, "MASTER_PORT", 1, 65535),
            torchrun=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def _integer(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment[name]
    if not text.isdecimal() or not least <= int(text) <= most:
        raise Failure(f"{name}={text} must be an integer in [{least}, {most}]: ranks count from 0")
    return int(text)
