"""The process group of all ranks, and how they end together."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from failure import Failure, lost_ranks
from meeting import meet
from place import Place
from traffic import Interface

Result = TypeVar("Result")


def join(place: Place, interface: Interface, timeout: float) -> None:
    """Makes the default process group, over gloo on this interface."""
    store = meet(place, interface, timeout)
    os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    limit = timedelta(seconds=timeout)
    with lost_ranks("while gloo connected them"):
        dist.init_process_group(
            "gloo", store=store, rank=place.rank, world_size=place.world_size, timeout=limit
        )


def together(work: Callable[[], Result]) -> Result:
    """Works on all ranks; where one fails, all do."""
    result, failure = None, None
    try:
        result = work()
    except Failure as error:
        failure = str(error)
    for rank, text in enumerate(gather(failure)):
        if text is not None:
            raise Failure(text if rank == dist.get_rank() else f"rank {rank}: {text}")
    return result  # type: ignore[return-value]


def gather(mine: Any) -> list[Any]:
    """What each rank has given, in the order of ranks."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def check_equal(settings: Mapping[str, Any]) -> None:
    """settings: by the option that they come from."""
    first, *others = gather(dict(settings))
    for rank, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise Failure(
                    f"{name} is {value} at rank 0 and {other[name]} at rank {rank}: start all ranks with the"
                    " same options and the same dataset"
                )
