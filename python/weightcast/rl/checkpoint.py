"""Checkpoints of a run: what a later start needs to go on as if nothing had happened.

A checkpoint is a folder `iteration-000012` that torch.distributed.checkpoint wrote: model, value head,
optimizer, random states. It is complete when it has the file `complete`, which is renamed into place after
every trainer has written and synchronised its part; a folder without it is the remains of a crash. The folder
has to be shared by all trainers.

Functions that take `group` are for all ranks of that process group at once (None: the default one; or no
process group at all), the others for any process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from ..errors import Error, InvalidArgument

FORMAT = 1
COMPLETE = "complete"
_NAME = re.compile(r"iteration-(\d{6,})")


@dataclass(frozen=True)
class Complete:
    """What the file `complete` says, as JSON."""

    format: int
    iteration: int  # The last that is in it; the run goes on with the next.
    version: int  # Of the weights.
    run_id: str
    options: Mapping[str, Any]  # Those that matter: a run with others is another run.
    fingerprint: str  # Of these options.
    world_size: int  # Trainers.
    files: Mapping[str, int]  # Bytes of each.
    extra: Mapping[str, Any]  # What else the trainer wants back: schedules, an adaptive coefficient.


def fingerprint(options: Mapping[str, Any]) -> str:
    """The same for equal options, in any order."""
    return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]


def folder_of(folder: str | pathlib.Path, iteration: int) -> pathlib.Path:
    return pathlib.Path(folder) / f"iteration-{iteration:06d}"


def complete_ones(folder: str | pathlib.Path) -> list[pathlib.Path]:
    """All complete checkpoints there, by iteration."""
    found = {}
    if pathlib.Path(folder).is_dir():
        for one in pathlib.Path(folder).iterdir():
            name = _NAME.fullmatch(one.name)
            if name and (one / COMPLETE).exists():
                found[int(name[1])] = one
    return [found[iteration] for iteration in sorted(found)]


def latest(folder: str | pathlib.Path) -> pathlib.Path | None:
    """The last complete checkpoint; None: there is none."""
    return next(reversed(complete_ones(folder)), None)


def find(path: str | pathlib.Path) -> pathlib.Path:
    """The checkpoint that `--resume PATH` means: PATH itself, or the last complete one in it.

    `InvalidArgument`: there is none.
    """
    path = pathlib.Path(path)
    if _NAME.fullmatch(path.resolve().name):
        if not (path / COMPLETE).exists():
            raise InvalidArgument(
                f"checkpoint {path} is not complete; resume from the folder above it instead"
            )
        return path
    found = latest(path)
    if found is None:
        raise InvalidArgument(
            f"{path} has no complete checkpoint; start without --resume, or name another folder"
        )
    return found


def check_new(folder: str | pathlib.Path) -> None:
    """`InvalidArgument` if a new run would write its checkpoints among those of another."""
    if found := latest(folder):
        raise InvalidArgument(f"{folder} has {found.name} of a run; --resume it, or name another folder")


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
        _refuse_other_options(path, complete.options, options)
    return complete


def save(
    folder: str | pathlib.Path,
    *,
    iteration: int,
    version: int,
    run_id: str,
    options: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
    group: dist.ProcessGroup | None = None,
) -> pathlib.Path:
    """Writes a checkpoint and deletes all but the last `keep`; returns its folder on every rank.

    modules: by name, such as {"model": ..., "value": ...}; plain, DDP or FSDP2. optimizers: of their
    parameters; each has made a step. options, extra: values of JSON.
    `Error`: it could not be written; the checkpoints before it are as they were.
    """
    path = folder_of(folder, iteration)
    _together(group, lambda: _make_room(path))
    whole = torch.nn.ModuleDict(dict(modules))
    state = _state(whole, optimizers, _rank(group))
    with _torch_errors(f"checkpoint {path} could not be written", Error):
        dcp.save(state, checkpoint_id=path, process_group=group)
    complete = Complete(
        format=FORMAT,
        iteration=iteration,
        version=version,
        run_id=run_id,
        options=dict(options),
        fingerprint=fingerprint(options),
        world_size=_world_size(group),
        files={},
        extra=dict(extra or {}),
    )
    _together(group, lambda: _finish(path, complete, keep))
    return path


def load(
    path: str | pathlib.Path,
    *,
    options: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    group: dist.ProcessGroup | None = None,
) -> Complete:
    """Fills modules, optimizers and this process's random states; returns where the run goes on.

    The trainers may be another number, and sharded in another way; then random states stay as they are.
    `InvalidArgument`: broken, or of another run.
    """
    path = pathlib.Path(path)
    complete = check(path, options)
    whole = torch.nn.ModuleDict(dict(modules))
    same = complete.world_size == _world_size(group)
    state = _state(whole, optimizers, _rank(group) if same else None)
    with _torch_errors(f"checkpoint {path} is broken or of another model", InvalidArgument, _OTHER):
        dcp.load(state, checkpoint_id=path, process_group=group)
        set_state_dict(
            whole, optimizers, model_state_dict=state["modules"], optim_state_dict=state["optimizers"]
        )
    if same:
        _set_random(state["random"][str(_rank(group))])
    return complete


def export_hf(
    module: torch.nn.Module,
    tokenizer: Any,
    folder: str | pathlib.Path,
    group: dist.ProcessGroup | None = None,
) -> pathlib.Path:
    """Writes a transformers folder for `from_pretrained`, in place of an export that is there.

    module: a transformers model; plain, DDP or FSDP2. tokenizer: one of transformers;
    of others nothing is written.
    `InvalidArgument`: `folder` is something else than an export. `Error`: it could not be written.
    """
    folder = pathlib.Path(folder)
    gathered = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    inner = module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module
    _together(group, lambda: _write_export(inner, gathered, tokenizer, folder))
    return folder


_OTHER = "; resume from another, or start without --resume"


def _broken(path: pathlib.Path, what: str) -> InvalidArgument:
    return InvalidArgument(f"checkpoint {path} is broken: {what}; resume from one before it, or delete it")


def _read_complete(path: pathlib.Path) -> Complete:
    try:
        found = json.loads((path / COMPLETE).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise InvalidArgument(
                f"checkpoint {path} has format {found['format']}, this weightcast reads {FORMAT}{_OTHER}"
            )
        complete = Complete(**{one.name: found[one.name] for one in fields(Complete)})
        if not all(isinstance(one, dict) for one in (complete.options, complete.files, complete.extra)):
            raise ValueError("it is of another form")
    except FileNotFoundError:
        raise InvalidArgument(f"checkpoint {path} is not complete{_OTHER}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _broken(path, f"{COMPLETE} cannot be read ({type(error).__name__}: {error})") from None
    if complete.fingerprint != fingerprint(complete.options):
        raise _broken(path, f"{COMPLETE} has been changed")
    return complete


def _refuse_other_options(path: pathlib.Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    ours = json.loads(json.dumps(ours))  # As they would come back.
    names = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
    if names:
        differences = ", ".join(f"{one} {theirs.get(one)!r} there, {ours.get(one)!r} here" for one in names)
        raise InvalidArgument(
            f"checkpoint {path} is of another run: {differences}; start with its options, or without --resume"
        )


def _rank(group: dist.ProcessGroup | None) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def _world_size(group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def _together(group: dist.ProcessGroup | None, work: Callable[[], None]) -> None:
    """Rank 0 works, the others wait for it; its error is raised at all."""
    error: Exception | None = None
    if _rank(group) == 0:
        try:
            work()
        except Error as one:
            error = one
        except OSError as one:
            error = Error(f"cannot write {one.filename or 'the folder'}: {one.strerror or one}")
        except Exception as one:
            error = one
    if dist.is_initialized():
        outcome = [None if error is None else (isinstance(error, InvalidArgument), str(error))]
        first = 0 if group is None else dist.get_global_rank(group, 0)
        dist.broadcast_object_list(outcome, src=first, group=group)
        if error is None and outcome[0] is not None:
            invalid, text = outcome[0]
            error = InvalidArgument(text) if invalid else Error(text)
    if error is not None:
        raise error


@contextlib.contextmanager
def _torch_errors(what: str, kind: type[Error], advice: str = "") -> Iterator[None]:
    """Makes one line of what torch.distributed.checkpoint raises, and keeps its warnings quiet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except CheckpointException as error:
        rank, (reason, _) = next(iter(sorted(error.failures.items())))
        text = str(reason).strip().split("\n")[0]
        raise kind(f"{what}: trainer {rank}: {type(reason).__name__}: {text}{advice}") from error
    except (RuntimeError, ValueError, KeyError, OSError, EOFError) as error:
        if isinstance(error, Error):
            raise
        text = str(error).strip().split("\n")[0]
        raise kind(f"{what}: {type(error).__name__}: {text}{advice}") from error


def _state(
    whole: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], rank: int | None
) -> dict[str, Any]:
    """What goes into a checkpoint, and what it is read into. rank: whose random states; None: nobody's."""
    model, optimizer = get_state_dict(whole, list(optimizers))
    state: dict[str, Any] = {"modules": model, "optimizers": optimizer}
    if rank is not None:
        state["random"] = {str(rank): _get_random()}
    return state


def _get_random() -> dict[str, torch.Tensor]:
    """The global generators' states, as tensors of fixed shapes."""
    _, words, gauss = random.getstate()
    numpy: Any = np.random.get_state()
    _, keys, position, has_gauss, cached = numpy
    states = {
        "torch": torch.get_rng_state(),
        # Words below 2^32, exact in a float64; nan: no second number of a pair is left over.
        "python": torch.tensor([*words, float("nan") if gauss is None else gauss], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_gauss, cached], dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random(states: Mapping[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    *words, gauss = states["python"].tolist()
    random.setstate((3, tuple(int(word) for word in words), None if np.isnan(gauss) else gauss))
    *keys, position, has_gauss, cached = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(position), int(has_gauss), cached))
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def _synchronise(folder: pathlib.Path) -> None:
    """The names in it are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_room(path: pathlib.Path) -> None:
    """Removes the remains of a crash, or a checkpoint of the same iteration."""
    _delete(path)
    path.mkdir(parents=True)


def _delete(path: pathlib.Path) -> None:
    if path.exists():
        (path / COMPLETE).unlink(missing_ok=True)  # First, so that a half deleted one is not complete.
        shutil.rmtree(path)


def _finish(path: pathlib.Path, complete: Complete, keep: int) -> None:
    """Every trainer has written its part: says so, and deletes what is too old."""
    parts = {one.name.split("_")[2] for one in path.glob("__*_*.distcp")}
    missing = [rank for rank in range(complete.world_size) if str(rank) not in parts]
    if missing:
        raise Error(
            f"checkpoint {path} lacks the part of trainer {missing[0]}; all trainers must share the folder"
        )
    files = {one.name: one.stat().st_size for one in sorted(path.iterdir())}
    making = path / f".{COMPLETE}.making"
    with making.open("w", encoding="utf-8") as file:
        json.dump({**asdict(complete), "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _synchronise(path)
    making.replace(path / COMPLETE)
    _synchronise(path)
    _synchronise(path.parent)
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


@contextlib.contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Of transformers, on standard error."""
    from transformers.utils import logging

    quiet = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if quiet:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if quiet:
            logging.enable_progress_bar()


def _write_export(module: Any, tensors: Mapping[str, Any], tokenizer: Any, folder: pathlib.Path) -> None:
    if folder.exists() and not (folder / "config.json").exists() and any(folder.iterdir()):
        raise InvalidArgument(f"{folder} is not a transformers folder; export to another")
    making = folder.with_name(f".{folder.name}.making")
    before = folder.with_name(f".{folder.name}.before")
    for rest in (making, before):
        shutil.rmtree(rest, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    with _bars_on_terminals_only():
        module.save_pretrained(making, state_dict=dict(tensors))
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(making)
    for file in making.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    _synchronise(making)
    if folder.exists():
        folder.rename(before)
    making.rename(folder)
    _synchronise(folder.parent)
    shutil.rmtree(before, ignore_errors=True)
