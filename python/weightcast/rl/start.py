"""Puts the processes of a run together: who is who, their groups, addresses and parts."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pathlib
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .. import __version__
from ..errors import InvalidArgument
from ..workers import Controller, Inference, Trainer
from . import checkpoint, models, tasks
from .controller import OwnController
from .desk import Desk, DeskClient
from .engine import CastWeights, Engine, FixedWeights, Weights
from .generation import Sampling
from .learner import Learner, Objective, make_optimizer
from .options import Options
from .publisher import CastPublisher, NoPublisher, Publisher
from .report import Report, check_folder
from .roles import Roles, from_environment, roles_of
from .sharding import wrap
from .timeline import Timeline
from .trainer import FromClient, FromDesk, News, Parts, TrainerLoop

# What makes two runs one: a checkpoint of others is refused.
_SAME = (
    "model_name", "dtype", "algorithm", "task", "prompts", "reward", "seed", "num_training", "rollouts_per_gpu",
    "samples_per_prompt", "max_gen_length", "temperature", "learning_rate", "ppo_epochs", "minibatches",
)  # fmt: skip


def run(options: Options) -> None:
    """This process's part of the run. Raises weightcast.Error with one line for the user."""
    if options.role == "inference":
        _check_devices(options)
        _run_engine(options, _load(options), options.controller, options.desk, options.engine or _own_name())
        return
    rank, world_size = from_environment("RANK"), from_environment("WORLD_SIZE")
    roles = roles_of(options, world_size)
    role = roles.of(rank)
    # What can be seen wrong is seen by every rank, before any waits for another.
    _check_devices(options)
    loaded = _load(options)
    task = tasks.make(options.task, prompts=options.prompts or None, reward=options.reward or None)
    resumed = _find_checkpoint(options)
    dist.init_process_group(options.backend)
    try:
        _share_token()
        trainers = (
            dist.new_group(list(roles.trainers))
            if len(roles.trainers) > 1 or options.trainer == "fsdp2"
            else None
        )
        if role == "trainer":
            _run_trainer(options, roles, rank, loaded, task, trainers, resumed)
        else:
            controller = _start_controller(options, roles, rank)
            address = _agree(controller.address if controller else "", roles.controller)
            desk = _agree("", 0)
            if role == "inference":
                _run_engine(options, loaded, address, desk, f"rank-{rank}")
            elif role == "idle":
                print(f"rank {rank} has nothing to do and waits for the end", flush=True)
            # Torchrun takes a rank that has ended for one that is done.
            dist.barrier()
            if controller is not None:
                controller.stop()
    finally:
        dist.destroy_process_group()


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _check_devices(options: Options) -> None:
    if options.backend == "nccl":
        if not torch.cuda.is_available():
            raise InvalidArgument("--backend nccl needs a GPU, and torch sees none here; use --backend gloo")
        raise InvalidArgument("weights in GPU memory are not supported yet; use --backend gloo")


def _load(options: Options) -> models.Loaded:
    return models.load(options.model_name, dtype=getattr(torch, options.dtype), seed=options.seed)


def _find_checkpoint(options: Options) -> pathlib.Path | None:
    if not options.resume:
        if options.checkpoint_dir:
            checkpoint.check_new(options.checkpoint_dir)
        if options.output:
            check_folder(options.output, False)
        return None
    found = checkpoint.find(options.checkpoint_dir)
    checkpoint.check(found, _identity(options))
    return found


def _identity(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _SAME}


# --- Addresses


def _agree(mine: str, source: int | None) -> str:
    """What rank `source` has; every rank calls it alike. None: nobody's, and empty."""
    box = [mine]
    dist.broadcast_object_list(box, src=source if source is not None else 0)
    return box[0]


def _share_token() -> None:
    """Processes of one torchrun trust each other: a token that nobody had to set."""
    token = _agree(os.environ.get("WEIGHTCAST_TOKEN") or secrets.token_hex(32), 0)
    if not os.environ.get("WEIGHTCAST_TOKEN_FILE"):
        os.environ["WEIGHTCAST_TOKEN"] = token


def _own_address() -> str:
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
        raise InvalidArgument(f"MASTER_ADDR={master} cannot be reached: {error}") from None


def _controller_settings(options: Options) -> dict[str, Any]:
    return {**options.settings(), "min_engines": options.num_inference}


def _start_controller(options: Options, roles: Roles, rank: int) -> Controller | OwnController | None:
    """On the rank that has it. None: another has, or it runs already."""
    if rank == roles.controller:
        return Controller(f"{_own_address()}:0", settings=_controller_settings(options))
    if rank == 0 and roles.controller is None and not options.controller and options.uses_p2p:
        return OwnController(f"{_own_address()}:0", _controller_settings(options))
    return None


# --- Trainers


def _run_trainer(
    options: Options,
    roles: Roles,
    rank: int,
    loaded: models.Loaded,
    task: tasks.Task,
    group: dist.ProcessGroup | None,
    resumed: pathlib.Path | None,
) -> None:
    desk, report, news, client = None, None, None, None
    controller = _start_controller(options, roles, rank)
    address = _agree(controller.address if controller else options.controller, roles.controller)
    try:
        if rank == 0:
            complete = checkpoint.check(resumed) if resumed else None
            report = _open_report(options, complete.iteration if complete else None)
            news = News(report)
            desk = Desk(
                options.desk or f"{_own_address()}:0",
                trainers=options.num_training,
                lease=options.lease,
                clock=report.clock,
                news=news.on,
            )
            _end_on_sigterm(desk)
        where = _agree(f"{_own_address()}:{desk.port}" if desk else "", 0)
        if rank != 0:
            client = DeskClient(
                where, name=str(rank), role="trainer", lease=options.lease, timeout=options.timeout
            )
        timeline = report.timeline if report else Timeline(f"trainer-{rank}", client.clock)
        loop = _make_loop(
            options, rank, loaded, task, group, resumed, address, timeline, desk, client, report, news
        )
        try:
            loop.run()
        finally:
            loop.parts.publisher.close()
        if group is not None:
            dist.barrier(group)
        if desk is not None:
            desk.end()
        if options.export_hf:
            tokenizer = getattr(loaded.tokenizer, "_tokenizer", None)
            checkpoint.export_hf(loop.parts.module, tokenizer, options.export_hf, group)
        if report is not None:
            report.close()
            _draw(options)
        if options.role == "":
            dist.barrier()
    except BaseException as error:
        if desk is not None:
            desk.end(" ".join(str(error).split()) or type(error).__name__)
        raise
    finally:
        if client is not None:
            client.close()
        if controller is not None:
            controller.stop()


def _end_on_sigterm(desk: Desk) -> None:
    """Tells the engines why, which the main thread could not while it waits for another trainer."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        desk.end("trainer 0 was told to stop (SIGTERM), as torchrun does when another rank has ended")
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="wc-rl-sigterm", daemon=True).start()


def _make_loop(
    options: Options,
    rank: int,
    loaded: models.Loaded,
    task: tasks.Task,
    group: dist.ProcessGroup | None,
    resumed: pathlib.Path | None,
    controller: str,
    timeline: Timeline,
    desk: Desk | None,
    client: DeskClient | None,
    report: Report | None,
    news: News | None,
) -> TrainerLoop:
    with_reference = options.kl_coefficient > 0
    reference = wrap_frozen(copy.deepcopy(loaded.model), options, group) if with_reference else None
    module = wrap(loaded.model, options.trainer, group)
    head = None
    if options.algorithm == "ppo":
        width = loaded.model.config.hidden_size
        head = wrap(models.ValueHead(width, getattr(torch, options.dtype)), options.trainer, group)
    optimizer = make_optimizer(module, head, options.learning_rate)
    learner = Learner(
        module,
        optimizer,
        _objective(options),
        value_head=head,
        reference=reference,
        group=group,
        pad=loaded.tokenizer.pad,
        seed=options.seed,
    )
    modules = {"model": module} | ({"value": head} if head is not None else {})
    first = 1
    if resumed is not None:
        complete = checkpoint.load(
            resumed, options=_identity(options), modules=modules, optimizers=[optimizer], group=group
        )
        first = complete.iteration + 1

    def save(iteration: int, version: int) -> None:
        checkpoint.save(
            options.checkpoint_dir,
            iteration=iteration,
            version=version,
            run_id=str(options.seed),
            options=_identity(options),
            modules=modules,
            optimizers=[optimizer],
            group=group,
        )

    publisher: Publisher = NoPublisher()
    if options.sync != "none":
        worker = Trainer(controller, rank=rank, world_size=options.num_training, settings=options.settings())
        publisher = CastPublisher(worker, module)
    rollouts = FromDesk(desk) if desk is not None else FromClient(client)  # type: ignore[arg-type]
    return TrainerLoop(
        Parts(
            options=options,
            rank=rank,
            module=module,
            learner=learner,
            publisher=publisher,
            rollouts=rollouts,
            task=task,
            tokenizer=loaded.tokenizer,
            timeline=timeline,
            group=group,
            wire=getattr(torch, options.wire_dtype) if options.wire_dtype else None,
            desk=desk,
            report=report,
            news=news,
            save=save if options.checkpoint_dir else None,
        ),
        first=first,
    )


def wrap_frozen(model: torch.nn.Module, options: Options, group: dist.ProcessGroup | None) -> torch.nn.Module:
    """The reference: as it was at the start, sharded where the policy is."""
    model.requires_grad_(False)
    return wrap(model, "fsdp2", group) if options.trainer == "fsdp2" else model


def _objective(options: Options) -> Objective:
    return Objective(
        algorithm=options.algorithm,
        epochs=options.ppo_epochs,
        minibatches=options.minibatches,
        temperature=options.temperature,
        clip=options.clip,
        max_gradient_norm=options.max_grad_norm,
        entropy_coefficient=options.entropy_coefficient,
        kl_coefficient=options.kl_coefficient,
        gamma=options.gamma,
        lam=options.gae_lambda,
        value_coefficient=options.value_coefficient,
    )


def _open_report(options: Options, resume_from: int | None) -> Report:
    folder = pathlib.Path(options.output or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    options.output = str(folder)
    report = Report(
        folder,
        resume_from=resume_from,
        log=[one for one in options.log.split(",") if one],
        run_id=folder.name,
        options=dataclasses.asdict(options),
    )
    described = {
        "command": sys.argv,
        "options": dataclasses.asdict(options),
        "versions": {"weightcast": __version__, "torch": torch.__version__, "python": sys.version.split()[0]},
    }
    (folder / "run.json").write_text(json.dumps(described, indent=1) + "\n")
    return report


def _draw(options: Options) -> None:
    if options.plots:
        from .plots import draw

        draw(pathlib.Path(options.output), pathlib.Path(options.plots))


# --- Engines


def _run_engine(options: Options, loaded: models.Loaded, controller: str, desk: str, name: str) -> None:
    module = loaded.model
    if options.wire_dtype:
        module = module.to(getattr(torch, options.wire_dtype))
    client = DeskClient(desk, name=name, role="inference", lease=options.lease, timeout=options.timeout)
    stop: Callable[[], None] = lambda: None  # noqa: E731
    weights: Weights = FixedWeights()
    try:
        if options.sync != "none":
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.zero_()  # What it generates with has come from the trainers.
            worker = Inference(controller, engine=name, settings=options.settings())
            stop = worker.close
            worker.register(module, landing="shadow" if options.mode == "async" else "in_place")
            weights = CastWeights(worker)
        sampling = Sampling(
            options.max_gen_length, options.temperature, loaded.tokenizer.eos, loaded.tokenizer.pad
        )
        engine = Engine(
            module,
            weights,
            client,
            sampling,
            Timeline(name, client.clock),
            lease=options.lease,
            keep=options.inflight == "keep",
            digests=options.verify,
        )
        engine.run()
    finally:
        stop()
        client.close()
