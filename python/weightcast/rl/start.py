"""Puts a run together: who is who, the process groups, the addresses."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import os
import pathlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import Controller, Error, InvalidArgument, job_token
from . import checkpoint, checkpoint_folder, collectives, devices, models, plots, tasks
from .collectives import Way
from .engine import run_engine
from .options import Options
from .report import check_folder
from .roles import Roles, from_environment, roles_of

# What makes two runs one: a checkpoint of others is refused.
_SAME = (
    "model_name", "random_weights", "dtype", "algorithm", "task", "digits", "prompts", "reward", "seed",
    "num_training", "samples_per_prompt", "item_prompts", "max_gen_length", "temperature", "learning_rate",
    "lr_decay", "ppo_epochs", "minibatches", "clip", "kl_coefficient", "entropy_coefficient",
    "value_coefficient", "gamma", "gae_lambda", "max_grad_norm", "mode", "max_staleness", "inflight",
    "sync_every", "wire_dtype",
)  # fmt: skip
_SLOW = 1e-4  # A learning rate below it changes random weights too little to learn from nothing.
_FIRST_SPEAKS = 5.0  # Seconds; processes of one host start about together.
_IDLE = datetime.timedelta(days=3650)  # What ranks that only wait for the end may wait.


@dataclasses.dataclass
class Place:
    """What a rank of a torchrun knows of its run. group: of the trainers, even of one; set before they run.

    ways: to be measured, or empty. ready: a barrier of all trainers and engines. device: where this rank
    holds weights.
    """

    options: Options
    rank: int
    roles: Roles
    loaded: models.Loaded
    task: tasks.Task
    resumed: pathlib.Path | None
    device: torch.device = devices.CPU
    group: dist.ProcessGroup | None = None
    ways: list[Way] = dataclasses.field(default_factory=list)
    ready: Callable[[], None] = lambda: None

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder for more of them: where the run goes on from one, that which has it."""
        return self.resumed.parent if self.resumed else pathlib.Path(self.options.checkpoint_dir)


def run(options: Options) -> None:
    """This process's part of the run. Raises weightcast.Error with one line for the user."""
    from .run_trainer import run_trainer

    with one_rank_speaks():
        devices.check(options)
        # In float32, which engines cast: an optimizer's small steps are lost in bfloat16.
        loaded = models.load(options.model_name, seed=options.seed, random=options.random_weights)
        # What can be seen wrong is seen by every rank, before any waits for another.
        place = None if options.role == "inference" else _place(options, loaded)
        device = devices.device_of(options) if place is None else place.device
        use(device, loaded)
    if place is None:
        name = options.engine or f"{socket.gethostname()}-{os.getpid()}"
        run_engine(options, loaded, options.controller, options.rollout_queue, name)
        return
    dist.init_process_group("gloo", timeout=_IDLE)
    try:
        if options.role == "":
            _share_token()
        _make_groups(place)
        controller = _start_controller(place)
        with controller or contextlib.nullcontext():
            address = agree(controller.address if controller else options.controller, place.roles.controller)
            if place.roles.of(place.rank) == "trainer":
                run_trainer(place, address)
            else:
                _run_beside_trainers(place, address)
            if options.role == "":
                dist.barrier()
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def one_rank_speaks() -> Iterator[None]:
    """For mistakes that every rank finds before they meet. The first of a host says so, and torchrun ends the
    others meanwhile; they speak where it has found none.
    """
    try:
        yield
    except Error:
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(_FIRST_SPEAKS)
        raise


def _place(options: Options, loaded: models.Loaded) -> Place:
    rank, world_size = from_environment("RANK"), from_environment("WORLD_SIZE")
    task = tasks.make(
        options.task, digits=options.digits, prompts=options.prompts or None, reward=options.reward or None
    )
    _check_lengths(options, loaded, task)
    roles = roles_of(options, world_size)
    if roles.of(rank) == "trainer":
        _check_written(options)
    device = devices.device_of(options, roles, rank)
    return Place(options, rank, roles, loaded, task, _find_checkpoint(options), device)


def _check_written(options: Options) -> None:
    """Of what is written after training has begun, as much as can be seen before."""
    export = options.export_hf and os.path.dirname(os.path.abspath(options.export_hf))
    folders = {"checkpoint_dir": options.checkpoint_dir, "export_hf": export, "plots": options.plots}
    for name, folder in ((name, folder) for name, folder in folders.items() if folder):
        path = pathlib.Path(folder).absolute()
        there = next(one for one in (path, *path.parents) if os.path.exists(one))
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            raise InvalidArgument(
                f"--{name}: {folder} cannot be written: {there} is not a folder that this user may write to; "
                "allow writing there, or name another folder"
            )
    if options.export_hf:
        checkpoint.check_export(options.export_hf)
    if options.plots:
        plots.check()


def _check_lengths(options: Options, loaded: models.Loaded, task: tasks.Task) -> None:
    positions = getattr(loaded.model.config, "max_position_embeddings", math.inf)
    longest = task.longest(lambda text: len(loaded.tokenizer.encode(text)))
    if longest + options.max_gen_length > positions:
        raise InvalidArgument(
            f"a prompt of {longest} tokens and --max_gen_length {options.max_gen_length} do not fit the "
            f"{positions} positions of {options.model_name}; lower --max_gen_length, or shorten the prompts"
        )


def _run_beside_trainers(place: Place, controller: str) -> None:
    queue, role = agree("", 0), place.roles.of(place.rank)
    if role == "inference":
        name = f"rank-{place.rank}"
        run_engine(place.options, place.loaded, controller, queue, name, ways=place.ways, ready=place.ready)
    elif role == "idle" and place.rank == place.roles.idle[0]:
        ranks = ", ".join(map(str, place.roles.idle))
        print(f"rank {ranks}: nothing to do; waiting for the end", flush=True)


def use(device: torch.device, loaded: models.Loaded) -> None:
    """Brings the model there, which is then the device of everything that this process computes."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if device.type != "cpu":
        loaded.model.to(device)  # type: ignore[arg-type]
        loaded.model.tie_weights()  # Not every move keeps what is tied.


def notices(options: Options, loaded: models.Loaded) -> list[str]:
    """What trainer 0 tells the user before the run, since it may not be what was meant."""
    found = []
    if loaded.origin == "random" and options.learning_rate < _SLOW:
        found.append(
            f"{options.model_name} has random weights: at --learning_rate {options.learning_rate:g} it "
            "learns next to nothing; --config examples/rl_sort.json learns"
        )
    if torch.cuda.is_available() and not options.on_gpu:
        found.append(
            f"{torch.cuda.device_count()} GPUs are visible and stay idle: this run computes on the CPU, in "
            "host memory; --device cuda uses them"
        )
    return found


def _find_checkpoint(options: Options) -> pathlib.Path | None:
    if not options.resume:
        if options.checkpoint_dir:
            checkpoint_folder.check_new(options.checkpoint_dir)
        if options.output:
            check_folder(options.output, False)
        return None
    found = checkpoint_folder.find(options.checkpoint_dir)
    checkpoint_folder.check(found, identity(options))
    return found


def identity(options: Options) -> dict[str, Any]:
    """The options that a checkpoint must have been made with."""
    same = {name: getattr(options, name) for name in _SAME}
    same["rollouts_per_gpu x num_inference"] = options.prompts_of_iteration
    same["item_prompts"] = options.prompts_of_item  # An item's rollouts have one seed.
    if options.lr_decay:
        same["rl_iterations"] = options.rl_iterations
    return same


# --- Groups: every rank of the torchrun makes all of them


def _make_groups(place: Place) -> None:
    options, roles = place.options, place.roles
    patience = datetime.timedelta(seconds=2 * options.timeout)
    ways = options.sync in ("collective", "both")
    backend = devices.backend_of(options)
    places: list[Any] = [None] * roles.world_size
    dist.all_gather_object(places, (socket.gethostname(), str(place.device)))
    if options.uses_nccl:
        devices.check_nccl(places, [*roles.trainers, *(roles.engines if ways else ())])
    place.group = dist.new_group(list(roles.trainers), timeout=patience, backend=backend)
    if not ways:
        return
    hosts = [host for host, _ in places]
    of_ways = collectives.Roles(list(roles.trainers), list(roles.engines), hosts, backend)
    names = _ways_of(options, one_host=len(set(hosts)) == 1)
    place.ways = [collectives.WAYS[name](of_ways) for name in names]
    everyone = dist.new_group([*roles.trainers, *roles.engines])
    if place.rank in (*roles.trainers, *roles.engines):
        place.ready = lambda: _meet(everyone, place.device)


def _meet(everyone: Any, device: torch.device) -> None:
    """Neither kernels that still run nor a trainer that is late count for the way that comes next."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier(everyone)


def _ways_of(options: Options, one_host: bool) -> list[str]:
    """Shards have to be gathered, which is the only way for them."""
    if options.trainer == "fsdp2":
        return ["fsdp2 gather"]
    if options.sync == "collective":
        return ["tensor by tensor"]
    measured = ["tensor by tensor", "packed", "all roots", "hierarchical", "weightcast.collective"]
    return [*measured, "plain copy"] if one_host and not options.on_gpu else measured


# --- Addresses


def agree(mine: str, source: int | None) -> str:
    """What rank `source` has; every rank calls it alike. None: trainer 0."""
    box = [mine]
    dist.broadcast_object_list(box, src=source if source is not None else 0)
    return box[0]


def _share_token() -> None:
    """Processes of one torchrun trust each other: a token that nobody had to set.

    One that somebody has set is sent to nobody, as it would be in the clear.
    """
    has_one: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(has_one, job_token()[1])
    if not any(has_one):
        os.environ["WEIGHTCAST_TOKEN"] = agree(secrets.token_hex(32), 0)
    elif not all(has_one):
        without = ", ".join(str(rank) for rank, has in enumerate(has_one) if not has)
        raise InvalidArgument(
            f"ranks without a job token: {without}; give all processes one WEIGHTCAST_TOKEN, or none of them"
        )


def own_address() -> str:
    """This host's address as the other ranks reach it: the one by which the master is reached from here."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if master in ("localhost", "127.0.0.1", "::1"):
        return "127.0.0.1"
    try:
        found = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.connect(found[4])
            return probe.getsockname()[0]
    except OSError as error:
        raise InvalidArgument(
            f"MASTER_ADDR={master} cannot be reached: {error}; set it to the host of rank 0"
        ) from None


def _start_controller(place: Place) -> Controller | None:
    """On the rank that has it; trainer 0 without a rank to spare. None: another has it, it runs already, or
    none is needed."""
    options, roles = place.options, place.roles
    alone = roles.controller is None and options.uses_weightcast and not options.controller
    if place.rank == (0 if alone else roles.controller):
        return Controller(f"{own_address()}:0", settings=options.controller_settings())
    return None
