"""What has gone wrong, in one line for the user."""

from __future__ import annotations

from .. import ProtocolError

_GLOO = "/gloo/"
_NCCL = "DistBackendError"  # By name: only a process that computes imports torch.
_LONGEST = 300


def is_lost_rank(error: BaseException) -> bool:
    """Whether torch.distributed says with this that another rank is gone."""
    if type(error).__name__ == _NCCL:
        return True
    return isinstance(error, RuntimeError) and _GLOO in str(error)


def in_one_line(error: BaseException) -> str:
    """An error's words; gloo's without the place in its source and the advice."""
    words = " ".join(str(error).split()) or type(error).__name__
    if not is_lost_rank(error):
        return words
    said = words[:_LONGEST] if _GLOO not in words else words.partition("] ")[2].partition(". ")[0]
    return f"another rank has ended, see what it says ({said})"


def other_release(what: str) -> ProtocolError:
    """Of what no process of this release sends."""
    return ProtocolError(f"{what}; use one release of weightcast in all processes")
