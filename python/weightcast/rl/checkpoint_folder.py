"""The folders of checkpoints: which are complete, of which run, and what is deleted. For any process.

A checkpoint is a folder `iteration-000012`. It is complete when it has the file `complete`, which is renamed
into place after every trainer has written and synchronised its part; a folder without it is the remains of a
crash. What else is in it is `checkpoint`'s.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .. import Error, InvalidArgument
from .records import replace_file

FORMAT = 2
COMPLETE = "complete"
_NAME = re.compile(r"iteration-(\d{6,})")
ADVICE = "; resume from another, or start without --resume"


@dataclass(frozen=True, kw_only=True)
class Complete:
    """What the file `complete` says, as JSON."""

    format: int = FORMAT
    iteration: int  # The last that is in it; the run goes on with the next.
    version: int  # Of the weights.
    run_id: str
    options: Mapping[str, Any]  # Those that matter: a run with others is another run.
    fingerprint: str  # Of these options.
    world_size: int  # Trainers.
    files: Mapping[str, int] = field(default_factory=dict)  # Bytes of each.


def fingerprint(options: Mapping[str, Any]) -> str:
    """The same for equal options, in any order."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def folder_of(folder: str | pathlib.Path, iteration: int) -> pathlib.Path:
    return pathlib.Path(folder) / f"iteration-{iteration:06d}"


def complete_ones(folder: str | pathlib.Path) -> list[pathlib.Path]:
    """All complete checkpoints there, by iteration."""
    found = [one for one in pathlib.Path(folder).glob("iteration-*") if _NAME.fullmatch(one.name)]
    found.sort(key=lambda one: int(one.name.partition("-")[2]))
    return [one for one in found if (one / COMPLETE).exists()]


def latest(folder: str | pathlib.Path) -> pathlib.Path | None:
    """The last complete checkpoint; None: there is none."""
    return next(reversed(complete_ones(folder)), None)


def find(path: str | pathlib.Path) -> pathlib.Path:
    """The checkpoint that `--resume PATH` means: PATH itself, or the last complete one in it.

    `InvalidArgument`: there is none.
    """
    path = pathlib.Path(path)
    if _NAME.fullmatch(path.resolve().name):
        path = path.resolve()  # So that its parent is the folder of checkpoints.
        if not (path / COMPLETE).exists():
            raise InvalidArgument(
                f"checkpoint {path} is not complete; give --checkpoint_dir {path.parent} for a complete one"
            )
        return path
    found = latest(path)
    if found is None:
        raise InvalidArgument(
            f"{path} has no complete checkpoint; start without --resume, or name another --checkpoint_dir"
        )
    return found


def check_new(folder: str | pathlib.Path) -> None:
    """`InvalidArgument` if a new run would write its checkpoints among those of another."""
    if found := latest(folder):
        what = f"--checkpoint_dir {folder} has {found.name} of a run"
        raise InvalidArgument(f"{what}; add --resume to go on with it, or name another folder")


def check(path: str | pathlib.Path, options: Mapping[str, Any] | None = None) -> Complete:
    """Reads `complete` and looks whether the files are whole, and the options those of this run.

    `InvalidArgument`: broken, or of another run; the line says what differs and what to do.
    """
    path = pathlib.Path(path)
    complete = _read_complete(path)
    for name, size in complete.files.items():
        file = path / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found} bytes of {size}"
            raise _broken(path, f"{name} {what}")
    if options is not None:
        theirs, ours = complete.options, json.loads(json.dumps(options))  # As they would come back.
        names = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
        if names:
            what = ", ".join(f"{one} is {theirs.get(one)!r} in it, {ours.get(one)!r} now" for one in names)
            raise InvalidArgument(
                f"checkpoint {path} is of another run: {what}; start with the options "
                "of the checkpoint, or without --resume"
            )
    return complete


def synchronise(folder: pathlib.Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_room(path: pathlib.Path) -> None:
    """Removes the remains of a crash, or a checkpoint of the same iteration."""
    _delete(path)
    path.mkdir(parents=True)


def _delete(path: pathlib.Path) -> None:
    if path.exists():
        (path / COMPLETE).unlink(missing_ok=True)  # First, so that a half deleted one is not complete.
        shutil.rmtree(path)


def finish(path: pathlib.Path, complete: Complete, keep: int) -> None:
    """Every trainer has written its part: says so, and deletes what is too old."""
    parts = {one.name.split("_")[2] for one in path.glob("__*_*.distcp")}
    missing = [rank for rank in range(complete.world_size) if str(rank) not in parts]
    if missing:
        raise Error(
            f"checkpoint {path} lacks trainer {missing[0]}'s files; share --checkpoint_dir among all trainers"
        )
    files = {one.name: one.stat().st_size for one in sorted(path.iterdir())}
    synchronise(path)
    replace_file(path / COMPLETE, json.dumps({**asdict(complete), "files": files}, indent=1))
    synchronise(path)
    synchronise(path.parent)
    _prune(path, complete.run_id, keep)


def _prune(newest: pathlib.Path, run_id: str, keep: int) -> None:
    """Leaves the run's last `keep` up to `newest`: later ones are of a past that it did not resume from."""
    past = [one for one in complete_ones(newest.parent) if one.name <= newest.name]
    kept = past[-max(keep, 1) :]
    for one in newest.parent.iterdir():
        if _NAME.fullmatch(one.name) and one not in kept and _run_of(one) in (None, run_id):
            _delete(one)


def _run_of(path: pathlib.Path) -> str | None:
    """None: it is not complete."""
    try:
        return _read_complete(path).run_id
    except InvalidArgument:
        return None


def _broken(path: pathlib.Path, what: str) -> InvalidArgument:
    return InvalidArgument(f"checkpoint {path} is broken: {what}; resume from one before it, or delete it")


def _read_complete(path: pathlib.Path) -> Complete:
    try:
        found = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise InvalidArgument(
                f"checkpoint {path} has format {found['format']}, this weightcast reads {FORMAT}{ADVICE}"
            )
        complete = Complete(**{one.name: found[one.name] for one in fields(Complete)})
        if not all(isinstance(one, dict) for one in (complete.options, complete.files)):
            raise ValueError("options and files must be JSON objects")
    except FileNotFoundError:
        raise InvalidArgument(f"checkpoint {path} is not complete{ADVICE}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _broken(path, f"its {COMPLETE!r} cannot be read ({type(error).__name__}: {error})") from None
    if complete.fingerprint != fingerprint(complete.options):
        raise _broken(path, f"its file {COMPLETE!r} has been changed")
    return complete
