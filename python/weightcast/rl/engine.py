"""An inference engine of the loop, and its process: generates what the queue hands out, with the weights that
have come."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any

import torch

from .. import Corrupt, Inference, TimedOut
from . import models
from .collectives import Way
from .failures import other_release
from .generation import Sampling, generate
from .models import Tokenizer
from .options import Options
from .rollout_client import EndOfRun, RolloutClient
from .rollout_protocol import Item, item_of
from .sequence import Sequence
from .sharding import with_tied
from .timeline import Timeline


class Weights:
    """How an engine's module gets its versions. This one keeps what it was made with: version 0 for ever."""

    @property
    def version(self) -> int:
        """What the module holds; -1: nothing yet."""
        return 0

    def arrived(self) -> bool:
        """Whether a newer version is here and only waits for `update`."""
        return False

    def update(self, newest: int, timeout: float) -> None:
        """Takes up the next version if one comes within `timeout` seconds; the module changes only here.

        newest: what the trainers have published last.
        """
        time.sleep(timeout)


class WeightcastWeights(Weights):
    """Those that weightcast brings."""

    def __init__(self, worker: Inference) -> None:
        self._worker = worker

    @property
    def version(self) -> int:
        return self._worker.version.number

    def arrived(self) -> bool:
        return self._worker.state == "READY"

    def update(self, newest: int, timeout: float) -> None:
        with contextlib.suppress(TimedOut):
            self._worker.wait(timeout=timeout)


@dataclasses.dataclass
class WaysWeights(Weights):
    """Those that several ways bring: the first brings the module's own, every other goes into a copy that is
    compared with it.

    first: weightcast, before the ways; None: there is none. ready: as `publisher.WaysPublisher` has it.
    check: called again and again while weightcast moves; raises what ends that.
    """

    ways: Several[Way]
    module: torch.nn.Module
    ready: Callable[[], None]
    first: WeightcastWeights | None = None
    check: Callable[[], None] = lambda: None
    version: int = -1

    def __post_init__(self) -> None:
        self._copy = with_tied(self.module, torch.zeros_like)

    def update(self, newest: int, timeout: float) -> None:
        if self.first is not None:
            self.ready()
            while self.first.version < newest:
                self.first.update(newest, timeout)
                self.check()
            self.ready()
        for number, way in enumerate(self.ways):
            into = self.module if self.first is None and number == 0 else self._copy
            self.ready()
            way.receive(into)
            self.ready()
            if into is self._copy:
                self._compare(way.name, newest)
        self.version = newest

    def _compare(self, way: str, version: int) -> None:
        for name, tensor in self.module.state_dict().items():
            if not torch.equal(tensor.view(torch.uint8), self._copy[name].view(torch.uint8)):
                raise Corrupt(
                    f"version {version}: '{way}' (--sync both) gave other bytes of {name} ({tensor.dtype}, "
                    f"{list(tensor.shape)}) than weightcast; please report this as a bug, and use --sync p2p"
                )
        for tensor in self._copy.values():
            tensor.zero_()


@dataclasses.dataclass
class Engine:
    """Drives one module; all methods on one thread."""

    module: torch.nn.Module
    weights: Weights
    queue: RolloutClient
    tokenizer: Tokenizer
    timeline: Timeline
    options: Options

    def __post_init__(self) -> None:
        length, temperature = self.options.max_gen_length, self.options.temperature
        self._sampling = Sampling(length, temperature, self.tokenizer.eos, self.tokenizer.pad)
        self._found: dict[str, Any] = {}  # Digests that the queue is still to be told.

    def run(self) -> None:
        """Until the queue ends the run. Raises EndOfRun when that failed, PeerDead when others are gone."""
        try:
            while True:
                self._step()
        except EndOfRun as end:
            if end.reason:
                raise

    def _step(self) -> None:
        self._take_up()
        self.queue.ask(self.weights.version, self._telemetry())
        while (order := self.queue.next(self.options.lease / 8)) is None:
            # Weights may come for an engine that waits for work.
            if self._take_up():
                self.queue.ask(self.weights.version, self._telemetry())
        if order["type"] == "update":
            self._update(order["version"])
        elif order["type"] == "item":
            item = item_of(order)
            self.queue.bring(item, self._generate(item), self._telemetry())
        else:
            raise other_release(f"the rollout queue sends an order of the unknown type '{order['type']}'")

    def _telemetry(self) -> dict[str, Any]:
        found, self._found = self._found, {}
        return {"spans": self.timeline.take(), "digests": found}

    def _take_up(self) -> bool:
        """Switches to a version that has arrived."""
        if not self.weights.arrived():
            return False
        self._update(self.weights.version + 1)
        return True

    def _update(self, newest: int) -> None:
        """Until at least this version is here."""
        start = self.timeline.clock.now()
        while self.weights.version < newest:
            self.weights.update(newest, self.options.lease / 2)
            self.queue.check()
        version = self.weights.version
        self.timeline.add("commit", start, self.timeline.clock.now(), version=version)
        if self.options.verify:
            self._found[str(version)] = digests_of(self.module, self.queue.check)

    def _generate(self, item: Item) -> list[Sequence]:
        kind = "evaluate" if item.greedy else "generate"
        with self.timeline.span(kind, version=self.weights.version, iteration=item.after):
            return generate(
                self.module,
                item.prompts,
                dataclasses.replace(self._sampling, temperature=0.0) if item.greedy else self._sampling,
                samples=item.samples,
                seed=item.seed,
                version=lambda: self.weights.version,
                between_tokens=self._between_tokens,
            )

    def _between_tokens(self) -> None:
        self.queue.check()
        if self.options.inflight == "keep":  # With the key-value cache as it is.
            self._take_up()


def digests_of(module: torch.nn.Module, between: Callable[[], None]) -> dict[str, str]:
    """SHA-256 of the bytes of every tensor in the module's state, by name. between: called before each."""
    found: dict[str, str] = {}
    for name, tensor in module.state_dict().items():
        between()
        found[name] = digest_of(tensor)
    return found


def digest_of(tensor: torch.Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()


# --- The process


def run_engine(
    options: Options,
    loaded: models.Loaded,
    controller: str,
    queue: str,
    name: str,
    *,
    ways: Several[Way] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Until the run ends. controller, queue: "host:port". ways, ready: as `start.Place` has them.

    Raises what ended it: PeerDead when the trainers or the controller are gone.
    """
    module: torch.nn.Module = loaded.model
    _cast(module, getattr(torch, options.engine_dtype))
    with contextlib.ExitStack() as closing:
        client = closing.enter_context(
            RolloutClient(queue, name=name, role="inference", lease=options.lease, timeout=options.timeout)
        )
        for way in ways:
            closing.callback(way.close)
        weights = Weights()
        if options.sync != "none":
            with torch.no_grad():  # What it generates with is to have come from the trainers.
                for parameter in module.parameters():
                    parameter.zero_()
        first: WeightcastWeights | None = None
        if options.uses_weightcast:
            worker = closing.enter_context(Inference(controller, engine=name, settings=options.settings()))
            worker.register(module, landing="shadow" if options.mode == "async" else "in_place")
            weights = first = WeightcastWeights(worker)
        if ways:
            weights = WaysWeights(ways, module, ready, first, client.check)
        timeline = Timeline(name, client.clock)
        Engine(module, weights, client, loaded.tokenizer, timeline, options).run()


def _cast(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """What the trainers send. Other buffers (rotary frequencies) stay float32, as the trainers have them."""
    for tensor in module.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)  # In place: what is tied stays tied.
