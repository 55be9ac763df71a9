"""Checkpoints: all that the next step depends on, a file for each rank.

Ranks write at the same step, but a kill can fall between two of them. So each rank keeps its last two files,
and a start goes on from the newest step that all ranks have.
"""

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import torch

from failure import Failure

FORMAT = "ddp_gpt2 1"
KEPT = 2


class Checkpoints:
    """The files of one rank in `folder`, which ranks may share."""

    def __init__(self, folder: pathlib.Path, rank: int) -> None:
        self.folder, self._rank = folder, rank

    def steps(self) -> list[int]:
        pattern = re.compile(rf"step-(\d+)-rank-{self._rank}\.pt")
        names = [one.name for one in self.folder.iterdir()] if self.folder.is_dir() else []
        return sorted(int(found[1]) for name in names if (found := pattern.fullmatch(name)))

    def path(self, step: int) -> pathlib.Path:
        return self.folder / f"step-{step:08}-rank-{self._rank}.pt"

    def save(self, step: int, settings: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """The file is there whole, or not at all. Deletes all but the last two."""
        path = self.path(step)
        partial = path.with_suffix(".partial")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                torch.save({"format": FORMAT, "settings": dict(settings), "step": step, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _synchronise(self.folder)
            for old in self.steps()[:-KEPT]:
                self.path(old).unlink()
        except (OSError, RuntimeError) as error:  # torch says in a RuntimeError that a disk is full.
            reason = str(error).strip().splitlines()[0]
            raise Failure(
                f"checkpoint {path} cannot be written ({reason}): make room, or give another --checkpoint"
            ) from None

    def load(self, step: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        path = self.path(step)
        remedy = "delete the file to go on from the step before, or give another --checkpoint"
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # Whatever torch's unpickler meets in bytes that are no checkpoint.
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise Failure(f"checkpoint {path} cannot be read ({reason}): {remedy}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("step") != step:
            raise Failure(f"{path} is not a checkpoint of this program: {remedy}")
        for name, value in settings.items():
            if found["settings"].get(name) != value:
                raise Failure(
                    f"checkpoint {path} is of a run with {name} {found['settings'].get(name)}, and this run"
                    f" has {name} {value}: start with what it had, or give another --checkpoint"
                )
        return found


def newest_common(steps_of_ranks: list[list[int]], folder: pathlib.Path) -> int:
    """0: no rank has any, and the run begins."""
    if not any(steps_of_ranks):
        return 0
    common = set.intersection(*map(set, steps_of_ranks))
    if not common:
        has = ", ".join(f"rank {rank} {steps or 'none'}" for rank, steps in enumerate(steps_of_ranks))
        raise Failure(
            f"the ranks have no step in common in {folder} ({has}): bring the missing files back, or delete"
            " the folder on every host and begin again"
        )
    return max(common)


def _synchronise(folder: pathlib.Path) -> None:
    """So that a new name outlives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
