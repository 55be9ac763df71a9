"""On which device a process of the loop holds its weights and computes.

Each host counts for itself: its trainers have the first GPUs, its engines the next, or those that
--trainer_devices and --engine_devices name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from .. import InvalidArgument
from .options import Options
from .roles import Roles, from_environment

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Seat:
    """A process among those of its host: the number of its role's, of how many, behind how many trainers."""

    role: Literal["trainer", "engine"]
    number: int
    of: int
    behind: int = 0


def device_of(options: Options, roles: Roles | None = None, rank: int = 0) -> torch.device:
    """Of this process. roles: of its torchrun; None: an engine of its own.

    Raises InvalidArgument for a GPU that is not here.
    """
    check(options)
    if not options.on_gpu:
        return CPU
    seat = Seat("engine", 0, 1) if roles is None else seat_of(roles, rank, _own_host(rank))
    if seat is None:
        return CPU
    return torch.device("cuda", number_of(options, seat, torch.cuda.device_count()))


def check(options: Options) -> None:
    """Raises InvalidArgument where the options want a GPU and torch sees none."""
    if options.on_gpu and not torch.cuda.is_available():
        raise InvalidArgument(
            f"--device cuda needs a GPU, and torch {torch.__version__} sees none here: look at nvidia-smi "
            "and CUDA_VISIBLE_DEVICES, install a torch with CUDA, or use --device cpu"
        )


def _own_host(rank: int) -> range:
    """The ranks of this host, as torchrun numbers them."""
    first = rank - from_environment("LOCAL_RANK")
    return range(first, first + from_environment("LOCAL_WORLD_SIZE"))


def seat_of(roles: Roles, rank: int, host: Sequence[int]) -> Seat | None:
    """host: the ranks of the rank's host. None: this rank holds no weights."""
    trainers = [one for one in host if one in roles.trainers]
    engines = [one for one in host if one in roles.engines]
    if rank in trainers:
        return Seat("trainer", trainers.index(rank), len(trainers))
    if rank in engines:
        return Seat("engine", engines.index(rank), len(engines), len(trainers))
    return None


def number_of(options: Options, seat: Seat, count: int) -> int:
    """The GPU of this process, of `count` that are here."""
    role, name = seat.role, f"{seat.role}_devices"
    named = numbers(getattr(options, name))
    if named and len(named) < seat.of:
        raise InvalidArgument(
            f"--{name} {getattr(options, name)} names {len(named)}, and this host has {seat.of} {role}s: "
            "name one for each, and one several times where they share it"
        )
    number = named[seat.number] if named else seat.behind + seat.number
    if number >= count:
        raise InvalidArgument(
            f"there is no GPU {number} for {role} {seat.number} of this host: torch sees {count}, from 0 on; "
            f"name others with --{name}, one several times where they share it"
        )
    return number


def numbers(text: str) -> list[int]:
    """Of a list such as "0,1"."""
    return [int(one) for one in text.split(",") if one]


def check_nccl(places: Sequence[tuple[str, str]], ranks: Sequence[int]) -> None:
    """NCCL refuses two ranks on one GPU. places: host and device of each rank."""
    seen: dict[tuple[str, str], int] = {}
    for rank in ranks:
        other = seen.setdefault(places[rank], rank)
        if other != rank:
            host, device = places[rank]
            raise InvalidArgument(
                f"ranks {other} and {rank} share {device} of {host}, which NCCL refuses: give each its own, "
                "or take --backend gloo with --sync p2p"
            )


def backend_of(options: Options) -> str:
    """Of torch.distributed between ranks with weights: objects and barriers stay in host memory."""
    return "cpu:gloo,cuda:nccl" if options.uses_nccl else "gloo"


def described(device: torch.device) -> dict[str, str]:
    """What a report says of it."""
    if device.type != "cuda":
        return {"device": str(device)}
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device),
        "cuda": str(torch.version.cuda),
        "nccl": nccl,
    }
