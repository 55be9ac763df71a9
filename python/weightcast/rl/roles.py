"""Which rank of a torchrun does what."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

from .. import InvalidArgument
from .options import Options

Role = Literal["trainer", "inference", "controller", "idle"]


@dataclasses.dataclass(frozen=True)
class Roles:
    """Ranks of one torchrun. `controller` is None where it is a process of its own."""

    world_size: int
    trainers: tuple[int, ...]
    engines: tuple[int, ...]
    controller: int | None
    idle: tuple[int, ...]

    def of(self, rank: int) -> Role:
        if rank in self.trainers:
            return "trainer"
        if rank in self.engines:
            return "inference"
        return "controller" if rank == self.controller else "idle"


def roles_of(options: Options, world_size: int) -> Roles:
    """Trainers first, engines last. Raises InvalidArgument when the ranks cannot hold them."""
    trainers = tuple(range(options.num_training))
    if options.role == "trainer":
        if world_size != options.num_training:
            raise InvalidArgument(
                f"--role trainer: torchrun has {world_size} ranks, --num_training is "
                f"{options.num_training}; give both the same number"
            )
        return Roles(world_size, trainers, (), None, ())
    wanted = options.num_training + options.num_inference
    if world_size < wanted:
        raise InvalidArgument(
            f"{options.num_training} trainers and {options.num_inference} engines need {wanted} ranks, and "
            f"torchrun has {world_size}: start it with --nproc_per_node (times --nnodes) of at least {wanted}"
        )
    engines = tuple(range(world_size - options.num_inference, world_size))
    spare = range(options.num_training, world_size - options.num_inference)
    controller = options.controller_rank if options.controller_rank >= 0 else (spare[0] if spare else None)
    if options.controller:
        controller = None
    elif controller is not None and controller not in spare:
        free = f"{spare[0]} to {spare[-1]} are free" if spare else "no rank is free; leave it out"
        raise InvalidArgument(
            f"--controller_rank {controller} is not a rank between trainers and engines; {free}"
        )
    return Roles(
        world_size, trainers, engines, controller, tuple(rank for rank in spare if rank != controller)
    )


def from_environment(name: str) -> int:
    """RANK and the like, as torchrun sets them."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise InvalidArgument(
            f"the environment has no number {name}: start under torchrun, or an engine with --role inference"
        ) from None
