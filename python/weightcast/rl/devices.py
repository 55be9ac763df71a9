"""On which device a process of the loop holds its weights and computes.

Each host counts for itself: its trainers have the first GPUs, its engines the next, or those that
--trainer_devices and --engine_devices name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from .. import InvalidArgument
from .options import Options
from .roles import Roles, from_environment

CPU = torch.device("cpu")


def device_of(options: Options, roles: Roles | None = None, rank: int = 0) -> torch.device:
    """Of this process. roles: of its torchrun; None: an engine of its own.

    Raises InvalidArgument for a GPU that is not here.
    """
    check(options)
    if not options.on_gpu:
        return CPU
    if roles is None:
        return _gpu(options, "engine", *_place_alone(options))
    first = rank - from_environment("LOCAL_RANK")
    host = range(first, first + from_environment("LOCAL_WORLD_SIZE"))
    trainers, engines = ([one for one in host if one in ranks] for ranks in (roles.trainers, roles.engines))
    if rank in trainers:
        return _gpu(options, "trainer", trainers.index(rank), len(trainers))
    if rank in engines:
        return _gpu(options, "engine", engines.index(rank), len(engines), behind=len(trainers))
    return CPU


def _place_alone(options: Options) -> tuple[int, int]:
    """Number and least count of the engine processes of this host, as whoever started this one says."""
    named = options.engine_devices
    if (named.count(",") + 1 if named else torch.cuda.device_count()) == 1:
        return 0, 1  # Its only GPU is its own: chosen by the user, or by Slurm for this task.
    place = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    return place, place + 1


def check(options: Options) -> None:
    """Raises InvalidArgument where the options want a GPU and torch sees none."""
    if options.on_gpu and not torch.cuda.is_available():
        raise InvalidArgument(
            f"--device cuda needs a GPU, and torch {torch.__version__} sees none in this process: look at "
            "nvidia-smi and CUDA_VISIBLE_DEVICES, install a torch with CUDA, or use --device cpu"
        )


def _gpu(options: Options, role: str, number: int, of: int, behind: int = 0) -> torch.device:
    """Of the process that has this number among those of its role and host, behind so many GPUs of others."""
    name = f"{role}_devices"
    text, count = getattr(options, name), torch.cuda.device_count()
    named = [int(one) for one in text.split(",") if one]
    if named and len(named) < of:
        raise InvalidArgument(
            f"--{name} {text} names {len(named)} GPUs, and this host has {of} {role}s: "
            "name one for each, and the same several times where they share it"
        )
    gpu = named[number] if named else behind + number
    if gpu >= count:
        raise InvalidArgument(
            f"there is no GPU {gpu} for {role} {number} of this host: torch sees {count}, from 0 on; "
            f"name others with --{name}, the same several times where they share it"
        )
    return torch.device("cuda", gpu)


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
    found = {"device": str(device)}
    if device.type == "cuda":
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda), "nccl": nccl}
    return found
