"""Ranks of examples/ddp_gpt2 as a user starts them, and the table that they print."""

import os
import pathlib
import re
import socket
import sys
from dataclasses import dataclass

from conftest import ROOT
from processes import Process

FOLDER = ROOT / "examples" / "ddp_gpt2"
PARAMETERS = 462_336  # Of --model simple.
GRADIENTS = 4 * PARAMETERS
PATIENCE = 150
# In its middle, or while it was saved: a kill comes when it comes.
LOST = (
    r"lost another rank (in step \d+|while step \d+ was saved) \(.+\): look at its output, and start all"
    r" ranks again; the run goes on (after step \d+|from a checkpoint)"
)
_ROW = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +(\S+)$", re.M)
_WEIGHTS = re.compile(r"^weights: sha256 (\w+), equal on (\d+) ranks$", re.M)


@dataclass(frozen=True)
class Row:
    loss: str  # As it was printed: nine digits, which tell any two float32 apart.
    sent: float  # Bytes, with headers, as those below.
    received: float
    headers: float
    ratio: float


def rows(text: str) -> dict[int, Row]:
    """By step."""
    return {
        int(one[1]): Row(one[2], *(1e6 * float(one[index]) for index in (4, 5, 6)), float(one[7]))
        for one in _ROW.finditer(text)
    }


def losses(text: str) -> dict[int, str]:
    return {step: row.loss for step, row in rows(text).items()}


def weights(text: str) -> str:
    """Their digest, after a run to its end."""
    found = _WEIGHTS.search(text)
    assert found, text
    return found[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def environment(**ours: object) -> dict[str, str]:
    """None of the machine's own settings."""
    unset = ("GLOO_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    return {**kept, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in ours.items()}}


class Rank(Process):
    """A process on this machine, or behind `prefix`; killed with the `with` block that it is in."""

    def __init__(self, log: pathlib.Path, *options: object, prefix: list[str] | None = None, **ours: object):
        command = [*(prefix or []), sys.executable, FOLDER / "train.py", *options]
        super().__init__(*command, environment=environment(**ours), log=log)

    def wait_for(self, step: int) -> None:
        """Until it has printed the row of this step or a later one."""
        self.wait_until(lambda: max(rows(self.log.read_text()), default=0) >= step, PATIENCE)

    def good_end(self) -> str:
        assert self.wait(PATIENCE) == 0, self.said()
        return self.log.read_text()

    def failure(self) -> str:
        """The one line with which it has ended."""
        assert self.wait(PATIENCE) == 1, self.said()
        lines = [one for one in self.errors().splitlines() if not one.startswith("waiting for ")]
        assert len(lines) == 1, self.said()
        return lines[0]
