"""What has gone wrong, in one line for the user."""

from __future__ import annotations

_GLOO = "/gloo/"


def is_lost_rank(error: BaseException) -> bool:
    """Whether torch.distributed says with this that another rank is gone."""
    return isinstance(error, RuntimeError) and _GLOO in str(error)


def in_one_line(error: BaseException) -> str:
    """An error's words; gloo's without the place in its source and the advice."""
    words = " ".join(str(error).split()) or type(error).__name__
    if not is_lost_rank(error):
        return words
    return f"another rank has ended, see what it says ({words.partition('] ')[2].partition('. ')[0]})"
