"""What ends a run with one line."""

import contextlib
from collections.abc import Iterator

import torch.distributed as dist


class Failure(Exception):
    """What is wrong, and what to do about it, in one line."""


@contextlib.contextmanager
def lost_ranks(when: str, then: str = "") -> Iterator[None]:
    """Makes one line of what gloo and the store raise when a rank is gone."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise Failure(
            f"lost another rank {when} ({first_line(error)}): look at its output, and start all ranks"
            f" again{then}"
        ) from None


def first_line(error: Exception) -> str:
    """Without the place in a library's source that gloo begins with."""
    text = str(error).strip().splitlines()[0]
    return text.partition("] ")[2] if text.startswith("[") and "] " in text else text
