"""A file as training data: its bytes are the tokens, so there is no tokenizer to download."""

import hashlib
import pathlib

import torch

from failure import Failure


def read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Failure(f"--dataset {path} cannot be read ({error.strerror}): give a readable file") from None


class Batches:
    """Windows of the text in an order that `seed` shuffles for each epoch; ranks share each step's.

    Each window is `sequence` inputs and the bytes that follow them. What does not fill a step is left out.
    """

    def __init__(self, data: bytes, *, sequence: int, batch: int, rank: int, world_size: int, seed: int):
        windows = (len(data) - 1) // sequence
        self._taken = world_size * batch
        if windows < self._taken:
            raise Failure(
                f"the dataset has {len(data):,} bytes, and a step of {world_size} ranks needs"
                f" {self._taken * sequence + 1:,}: give a longer --dataset, a smaller --batch or --sequence"
            )
        self._data = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._sequence, self._batch, self._rank, self._seed = sequence, batch, rank, seed
        self._windows = windows
        self._start_epoch(0)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of this rank: [batch, sequence] each."""
        if self._position + self._taken > self._windows:
            self._start_epoch(self._epoch + 1)
        first = self._position + self._rank * self._batch
        self._position += self._taken
        starts = (self._order[first : first + self._batch] * self._sequence).tolist()
        rows = torch.stack([self._data[start : start + self._sequence + 1] for start in starts]).long()
        return rows[:, :-1], rows[:, 1:]

    def position(self) -> dict[str, int]:
        """For `go_to`; the same on every rank."""
        return {"epoch": self._epoch, "window": self._position}

    def go_to(self, position: dict[str, int]) -> None:
        self._start_epoch(position["epoch"])
        self._position = position["window"]

    def _start_epoch(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0
        generator = torch.Generator().manual_seed(self._seed + epoch)
        self._order = torch.randperm(self._windows, generator=generator)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
