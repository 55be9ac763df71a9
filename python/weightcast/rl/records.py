"""Files of JSON lines that survive a crash, and where else an iteration's numbers can go."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidArgument


def finite(value: Any) -> Any:
    """The same with null for what JSON has no number for (nan, inf)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value


class Lines:
    """Appends objects to a file, each a line that is flushed at once."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, *entries: Mapping[str, Any]) -> None:
        text = "".join(json.dumps(finite(entry), allow_nan=False) + "\n" for entry in entries)
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """All objects of a file; without a last line that a crash cut short. No file: none.

    `InvalidArgument`: another line is no JSON object.
    """
    if not path.exists():
        return []
    found: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lines.pop()  # Empty, or cut short.
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise InvalidArgument(f"{path}: line {number} is no JSON object; remove that line")
        found.append(entry)
    return found


def keep_lines(path: pathlib.Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Drops all other lines, by a new file that is renamed into place; returns what is left."""
    kept = [entry for entry in read_lines(path) if keep(entry)]
    if path.exists():
        making = path.with_name(f".{path.name}.making")
        with making.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in kept)
            file.flush()
            os.fsync(file.fileno())
        making.replace(path)
    return kept


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: pathlib.Path, first: int) -> None:
        """first: the iteration from which on events of before are void."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidArgument(f"--log tensorboard: {error}; pip install tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=first)

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def wandb_mode(environment: Mapping[str, str]) -> str:
    """WANDB_MODE, or else offline unless there is a key."""
    return environment.get("WANDB_MODE") or ("online" if environment.get("WANDB_API_KEY") else "offline")


class Wandb:
    """A run of Weights & Biases; offline, into the run's folder, unless the environment says otherwise."""

    def __init__(self, folder: pathlib.Path, run_id: str, options: Mapping[str, Any]) -> None:
        try:
            import wandb  # type: ignore[import-not-found]
        except ImportError:
            raise InvalidArgument("--log wandb: wandb is not installed; pip install wandb") from None
        mode = wandb_mode(os.environ)
        # An offline run is resumed by `wandb sync`, which joins those of one id.
        resume = "allow" if mode == "online" else None
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "weightcast"),
            dir=str(folder),
            id=run_id,
            resume=resume,
            mode=mode,
            config=dict(options),
        )

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=iteration)

    def close(self) -> None:
        self._run.finish()
