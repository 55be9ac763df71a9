"""Checkpoints of a run: what a later start needs to go on as if nothing had happened.

torch.distributed.checkpoint writes them, into folders of `checkpoint_folder` that all trainers share: model,
value head, optimizer, random states. Functions are for all ranks of `group` at once (None: the default one;
or no process group at all).
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from .. import Error, InvalidArgument
from .checkpoint_folder import ADVICE, Complete, check, fingerprint, finish, folder_of, make_room, synchronise
from .models import quiet_transformers


def save(
    folder: str | pathlib.Path,
    *,
    iteration: int,
    version: int,
    run_id: str,
    options: Mapping[str, Any],
    modules: Mapping[str, torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    keep: int = 2,
    group: dist.ProcessGroup | None = None,
) -> pathlib.Path:
    """Writes a checkpoint and deletes all but the last `keep`; returns its folder on every rank.

    modules: by name, such as {"model": ..., "value": ...}; plain, DDP or FSDP2. optimizers: of their
    parameters; each has made a step. options: values of JSON.
    `Error`: it could not be written; the checkpoints before it are as they were.
    """
    path = folder_of(folder, iteration)
    _together(group, lambda: make_room(path))
    whole = torch.nn.ModuleDict(dict(modules))
    state = _state(whole, optimizers, _rank(group))
    try:
        what = f"checkpoint {path} could not be written"
        with _torch_errors(what, Error, "; make room and allow writing there, or see each trainer's log"):
            dcp.save(state, checkpoint_id=path, process_group=group)
    except Error as error:
        # Every trainer has said that it failed: what is there only takes up room. After a death others may
        # still write, and the next save makes room.
        if _rank(group) == 0 and isinstance(error.__cause__, CheckpointException):
            shutil.rmtree(path, ignore_errors=True)
        raise
    complete = Complete(
        iteration=iteration,
        version=version,
        run_id=run_id,
        options=dict(options),
        fingerprint=fingerprint(options),
        world_size=_world_size(group),
    )
    _together(group, lambda: finish(path, complete, keep))
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
    with _torch_errors(f"checkpoint {path} is broken or of another model", InvalidArgument, ADVICE):
        dcp.load(state, checkpoint_id=path, process_group=group)
        set_state_dict(
            whole, optimizers, model_state_dict=state["modules"], optim_state_dict=state["optimizers"]
        )
    if same:
        states = state["random"][str(_rank(group))]
        torch.set_rng_state(states["torch"])
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
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


def check_export(folder: str | pathlib.Path) -> None:
    """`InvalidArgument` if `folder` is something else than an export."""
    folder = pathlib.Path(folder)
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not free and not (folder / "config.json").exists():
        raise InvalidArgument(f"{folder} is not a transformers folder, nor empty; give --export_hf a new one")


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
        except Exception as one:
            error = one
            if isinstance(one, OSError) and not isinstance(one, Error):
                where, why = one.filename or "the folder", one.strerror or one
                error = Error(f"cannot write {where}: {why}; make room and allow writing there")
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
        # The global generators' states, for reward functions that draw from them.
        states = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
        state["random"] = {str(rank): states}
    return state


def _write_export(module: Any, tensors: Mapping[str, Any], tokenizer: Any, folder: pathlib.Path) -> None:
    check_export(folder)
    making = folder.with_name(f".{folder.name}.making")
    before = folder.with_name(f".{folder.name}.before")
    for rest in (making, before):
        shutil.rmtree(rest, ignore_errors=True)
    making.parent.mkdir(parents=True, exist_ok=True)
    with quiet_transformers():
        module.save_pretrained(making, state_dict=dict(tensors))
    if hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(making)
    for file in making.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    synchronise(making)
    if folder.exists():
        folder.rename(before)
    making.rename(folder)
    synchronise(folder.parent)
    shutil.rmtree(before, ignore_errors=True)
