"""Files of JSON lines that survive a crash, and where else an iteration's numbers can go."""

from __future__ import annotations

import json
import logging
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from .. import InvalidArgument

_log = logging.getLogger("weightcast.rl")
_MOST_WAITING = 64 << 20  # Bytes of lines that could not be written yet.


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
    """Appends objects to a file, each a line that is written at once.

    Where that fails, as on a full disk, a warning says so once, and the lines wait for the next `write`, in
    order: so the file is whole again as soon as there is room, and meanwhile ends in a line cut short.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._waiting = bytearray()
        self._failing = False
        self._lost = 0

    def write(self, *entries: Mapping[str, Any]) -> None:
        for entry in entries:
            if len(self._waiting) < _MOST_WAITING:
                self._waiting += (json.dumps(finite(entry), allow_nan=False) + "\n").encode()
            else:
                self._lost += 1
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
        except OSError as error:
            if not self._failing:
                _log.warning(
                    "%s cannot be written now: %s; the run continues, make room there or its lines are lost",
                    self._path,
                    error.strerror,
                )
            self._failing = True
        else:
            if self._failing:
                _log.warning("%s can be written again; %d lines are lost", self._path, self._lost)
            self._failing = False

    def close(self) -> None:
        self.write()
        if self._failing:
            lost = self._lost + self._waiting.count(b"\n")
            _log.warning(
                "%s could not be written to the end; its last %d lines are lost. An earlier warning says why",
                self._path,
                lost,
            )
        os.close(self._descriptor)


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
            raise InvalidArgument(f"{path}: line {number} is not a JSON object; correct or remove that line")
        found.append(entry)
    return found


def keep_lines(path: pathlib.Path, keep: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Drops all other lines, by a new file that is renamed into place; returns what is left."""
    kept = [entry for entry in read_lines(path) if keep(entry)]
    if path.exists():
        replace_file(path, "".join(json.dumps(entry) + "\n" for entry in kept))
    return kept


def replace_file(path: pathlib.Path, text: str) -> None:
    """By a new one that is renamed into place when its text is on the disk; the rename need not be yet."""
    making = path.with_name(f".{path.name}.making")
    with making.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    making.replace(path)


class Sink:
    """Where else an iteration's numbers go. One that fails is named once, and the run goes on without it."""

    def __init__(
        self, name: str, write: Callable[[int, Mapping[str, float]], None], close: Callable[[], None]
    ):
        self._name, self._write, self._close = name, write, close
        self._works = True

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        self._guard(lambda: self._write(iteration, scalars))

    def close(self) -> None:
        self._guard(self._close)

    def _guard(self, work: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            work()
        except Exception as error:  # Whatever a library raises that only reports.
            self._works = False
            _log.warning(
                "--log %s gets nothing from now on, and the run continues (%s: %s); correct that for later",
                self._name,
                type(error).__name__,
                error,
            )


def tensorboard(folder: pathlib.Path, first: int) -> Sink:
    """Event files for TensorBoard. first: the iteration from which on events of before are void."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InvalidArgument(f"--log tensorboard: {error}; pip install tensorboard") from None
    writer = SummaryWriter(str(folder), purge_step=first)

    def write(iteration: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, iteration)
        writer.flush()

    return Sink("tensorboard", write, writer.close)


def wandb(folder: pathlib.Path, run_id: str, options: Mapping[str, Any]) -> Sink:
    """A run of Weights & Biases; offline, into the run's folder, unless the environment says otherwise."""
    try:
        import wandb as library  # type: ignore[import-not-found]
    except ImportError:
        raise InvalidArgument("--log wandb: wandb is not installed; pip install wandb") from None
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    # An offline run is resumed by `wandb sync`, which joins those of one id.
    resume = "allow" if mode == "online" else None
    run = library.init(
        project=os.environ.get("WANDB_PROJECT", "weightcast"),
        dir=str(folder),
        id=run_id,
        resume=resume,
        mode=mode,
        config=dict(options),
    )
    return Sink("wandb", lambda iteration, scalars: run.log(dict(scalars), step=iteration), run.finish)
