"""A trainer's process: makes the parts of its loop, and runs it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import os
import pathlib
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .. import Trainer, __version__
from . import checkpoint, checkpoint_folder, devices, models
from .failures import in_one_line
from .learner import Learner, make_optimizer
from .publisher import Changes, Publisher, WaysPublisher, WeightcastPublisher
from .report import Report
from .rollout_client import RolloutClient
from .rollout_queue import RolloutQueue
from .sharding import wrap
from .start import Place, agree, identity, notices, own_address
from .telemetry import Telemetry
from .timeline import Timeline
from .trainer import TrainerLoop

_log = logging.getLogger("weightcast.rl")


def run_trainer(place: Place, controller: str) -> None:
    """Every trainer at once, and the other ranks of the torchrun as `start` has them.

    controller: its "host:port".
    """
    if place.rank == 0:
        _run_trainer_0(place, controller)
        return
    queue, options = agree("", 0), place.options
    with RolloutClient(
        queue, name=str(place.rank), role="trainer", lease=options.lease, timeout=options.timeout
    ) as client:
        timeline = Timeline(f"trainer-{place.rank}", client.clock)
        _run_loop(place, _make_loop(place, controller, timeline, client=client))


def _run_trainer_0(place: Place, controller: str) -> None:
    options, report = place.options, _open_report(place)
    queue: RolloutQueue | None = None
    try:
        for one in notices(options, place.loaded):
            report.message(one)
        telemetry = Telemetry(report)
        listen, host = _queue_place(options.rollout_queue)
        queue = RolloutQueue(
            listen,
            trainers=options.num_training,
            lease=options.lease,
            clock=report.clock,
            telemetry=telemetry.on,
        )
        _end_on_sigterm(queue)
        agree(f"{host}:{queue.port}", 0)
        more: dict[str, Any] = {"queue": queue, "report": report, "telemetry": telemetry}
        _run_loop(place, _make_loop(place, controller, report.timeline, **more))
        queue.end()
        report.close()
        if options.plots:
            from .plots import draw

            with _only_a_report(pathlib.Path(options.plots)):
                draw(options.output, options.plots)
    except BaseException as error:
        if queue is not None:
            queue.end(f"trainer 0: {in_one_line(error)}")
        report.flush()
        raise


def _run_loop(place: Place, loop: TrainerLoop) -> None:
    try:
        loop.run()
    finally:
        loop.publisher.close()
    if place.options.export_hf:
        tokenizer = getattr(place.loaded.tokenizer, "_tokenizer", None)
        checkpoint.export_hf(loop.learner.policy, tokenizer, place.options.export_hf, place.group)
    else:
        dist.barrier(place.group)


def _queue_place(queue: str) -> tuple[str, str]:
    """Where the queue listens, and the host by which the other ranks find it. queue: the option."""
    host, _, port = queue.rpartition(":")
    if not queue:
        return f"{own_address()}:0", own_address()
    if host in ("", "*", "0.0.0.0"):
        return f":{port}", own_address()
    return (f":{port}" if _hides_us(host) else queue), host


def _hides_us(host: str) -> bool:
    """Whether other hosts know this one by a name that means loopback here, as Debian's /etc/hosts has it."""
    if host.startswith("localhost") or host.replace(".", "").isdecimal():
        return False
    try:
        return socket.gethostbyname(host).startswith("127.")
    except OSError:
        return False  # Listening fails, and says why.


def _end_on_sigterm(queue: RolloutQueue) -> None:
    """Tells the engines why, which the main thread could not while it waits for another trainer.

    Whichever thread the signal comes to (a mask would leave those that torch has started): its number goes
    into a pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # Python lets no other thread set a handler: the engines find out by the lease.
    told, telling = os.pipe()
    os.set_blocking(telling, False)
    signal.set_wakeup_fd(telling)
    signal.signal(signal.SIGTERM, lambda *_: None)

    def wait() -> None:
        while signal.SIGTERM not in os.read(told, 64):
            pass
        queue.end("trainer 0 was told to stop (SIGTERM), as torchrun does when a rank has ended; see its log")
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="wc-rl-sigterm", daemon=True).start()


def _make_loop(place: Place, controller: str, timeline: Timeline, **more: Any) -> TrainerLoop:
    """more: the client, or what trainer 0 has instead."""
    options, group, model = place.options, place.group, place.loaded.model
    reference: torch.nn.Module | None = None
    if options.kl_coefficient:  # As the policy is at the start, and sharded where it is.
        reference = copy.deepcopy(model).requires_grad_(False)
        reference = wrap(reference, "fsdp2", group) if options.trainer == "fsdp2" else reference
    module = wrap(model, options.trainer, group)
    modules: dict[str, torch.nn.Module] = {"model": module}
    if options.algorithm == "ppo":
        head = models.ValueHead(model.config.hidden_size).to(place.device)
        modules["value"] = wrap(head, options.trainer, group)
    optimizer = make_optimizer(module, modules.get("value"), options.learning_rate)
    state: dict[str, Any] = {"options": identity(options), "modules": modules, "optimizers": [optimizer]}
    state["group"] = group
    first, run_id = 1, secrets.token_hex(8)
    if place.resumed is not None:
        found = checkpoint.load(place.resumed, **state)
        first, run_id = found.iteration + 1, found.run_id

    def save(iteration: int, version: int) -> None:
        checkpoint.save(place.checkpoints, iteration=iteration, version=version, run_id=run_id, **state)

    learner = Learner(
        module,
        optimizer,
        options,
        value_head=modules.get("value"),
        reference=reference,
        group=group,
        pad=place.loaded.tokenizer.pad,
    )
    wire: torch.dtype = getattr(torch, options.engine_dtype)
    changes = Changes(module, wire, group if options.trainer == "ddp" else None)
    return TrainerLoop(
        options=options,
        rank=place.rank,
        learner=learner,
        publisher=_make_publisher(place, controller, module, wire, more.get("report")),
        changes=None if options.sync == "none" else changes,
        task=place.task,
        tokenizer=place.loaded.tokenizer,
        timeline=timeline,
        save=save if options.checkpoint_dir else None,
        first=first,
        **more,
    )


def _make_publisher(
    place: Place, controller: str, module: torch.nn.Module, wire: torch.dtype, report: Report | None
) -> Publisher:
    options = place.options
    show: Callable[[str], None] = report.message if report else lambda line: None
    first: WeightcastPublisher | None = None
    if options.uses_weightcast:
        worker = Trainer(
            controller, rank=place.rank, world_size=options.num_training, settings=options.settings()
        )
        first = WeightcastPublisher(worker, module, show)
    if not place.ways:
        return first or Publisher()
    engines = len(place.roles.engines)
    return WaysPublisher(place.ways, module, place.ready, engines, wire, first=first, show=show)


# --- The report


def _open_report(place: Place) -> Report:
    """In `options.output`, which it chooses if nobody has; with a file that says how the run was started."""
    options = place.options
    options.output = options.output or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = pathlib.Path(options.output)
    described = dataclasses.asdict(options)
    report = Report(
        folder,
        resume_from=checkpoint_folder.check(place.resumed).iteration if place.resumed else None,
        log=[one for one in options.log.split(",") if one],
        run_id=folder.name,
        options=described,
    )
    versions = {"weightcast": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    versions |= devices.described(place.device)
    text = json.dumps({"command": sys.argv, "options": described, "versions": versions}, indent=1)
    with _only_a_report(folder / "run.json"):
        (folder / "run.json").write_text(text + "\n")
    return report


@contextlib.contextmanager
def _only_a_report(path: pathlib.Path) -> Iterator[None]:
    """What cannot be written of it ends no run."""
    try:
        yield
    except OSError as error:
        _log.warning(
            "%s cannot be written: %s; the run continues without it, make room there", path, error.strerror
        )
