"""An inference engine of the loop, and its process: generates what the queue hands out, with the weights that
have come."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Any

import torch

from .. import Corrupt, Inference, TimedOut
from . import models
from .collectives import Way
from .generation import Sampling, generate
from .options import Options
from .rollout_client import EndOfRun, RolloutClient
from .rollout_protocol import Item, item_of, other_release
from .sequence import Sequence
from .timeline import Timeline

_log = logging.getLogger("weightcast.rl")


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


class CastWeights(Weights):
    """Those that weightcast brings."""

    def __init__(self, worker: Inference) -> None:
        self._worker = worker

    @property
    def version(self) -> int:
        return self._worker.version.number

    def arrived(self) -> bool:
        return self._worker.state == "READY"

    def update(self, newest: int, timeout: float) -> None:
        try:
            self._worker.wait(timeout=timeout)
        except TimedOut:
            return


class WaysWeights(Weights):
    """Those that several ways bring: the first brings the module's own, every other goes into a copy that is
    compared with it.

    first: weightcast, before the ways; None: there is none. ready: as `publisher.WaysPublisher` has it.
    """

    def __init__(
        self,
        ways: Several[Way],
        module: torch.nn.Module,
        ready: Callable[[], None],
        first: CastWeights | None = None,
    ) -> None:
        self._version = -1
        self._ways, self._module, self._ready, self._first = ways, module, ready, first
        self._waits_for_first = False
        self._copy = _copy_of(module)

    @property
    def version(self) -> int:
        return self._version

    def update(self, newest: int, timeout: float) -> None:
        if self._first is not None and not self._update_first(self._first, newest, timeout):
            return
        for number, way in enumerate(self._ways):
            into = self._module if self._first is None and number == 0 else self._copy
            self._ready()
            way.receive(into)
            self._ready()
            if into is self._copy:
                self._compare(way.name, newest)
        self._version = newest

    def _update_first(self, first: CastWeights, newest: int, timeout: float) -> bool:
        """Whether it is here; otherwise this is to be called again."""
        if not self._waits_for_first:
            self._ready()
        first.update(newest, timeout)
        self._waits_for_first = first.version < newest
        if not self._waits_for_first:
            self._ready()
        return not self._waits_for_first

    def _compare(self, way: str, version: int) -> None:
        for name, tensor in self._module.state_dict().items():
            if not torch.equal(tensor.view(torch.uint8), self._copy[name].view(torch.uint8)):
                raise Corrupt(
                    f"version {version}: '{way}' brought other bytes of {name} than the engine has loaded; "
                    "please report this as a bug"
                )
        for tensor in self._copy.values():
            tensor.zero_()


def _copy_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Zeros of the same names and shapes; what is tied is one tensor here too."""
    state = module.state_dict(keep_vars=True)
    copies = {id(one): torch.zeros_like(one.detach()) for one in state.values()}
    return {name: copies[id(one)] for name, one in state.items()}


class Engine:
    """Drives one module; all methods on one thread.

    sampling: of rollouts. keep: a version is taken up between two tokens, with the key-value cache as it is;
    otherwise between two items. digests: after each update the queue is told the SHA-256 of every tensor.
    lease: seconds.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        weights: Weights,
        queue: RolloutClient,
        sampling: Sampling,
        timeline: Timeline,
        *,
        lease: float,
        keep: bool = False,
        digests: bool = False,
    ) -> None:
        self._module, self._weights, self._queue = module, weights, queue
        self._sampling, self._timeline, self._lease = sampling, timeline, lease
        self._keep, self._with_digests = keep, digests
        self._digests: dict[str, Any] = {}

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
        self._queue.ask(self._weights.version, self._telemetry())
        order = self._queue.next(self._lease / 8)
        while order is None:
            # Weights may come for an engine that waits for work.
            if self._take_up():
                self._queue.ask(self._weights.version, self._telemetry())
            order = self._queue.next(self._lease / 8)
        if order["type"] == "update":
            self._update(order["version"])
        elif order["type"] == "item":
            item = item_of(order)
            self._queue.bring(item, self._generate(item), self._telemetry())
        else:
            raise other_release(f"the rollout queue sends an order of the unknown type '{order['type']}'")

    def _telemetry(self) -> dict[str, Any]:
        digests, self._digests = self._digests, {}
        return {"spans": self._timeline.take(), "digests": digests}

    def _take_up(self) -> bool:
        """Switches to a version that has arrived."""
        if not self._weights.arrived():
            return False
        self._update(self._weights.version + 1)
        return True

    def _update(self, newest: int) -> None:
        """Until at least this version is here."""
        start = self._timeline.clock.now()
        while self._weights.version < newest:
            self._weights.update(newest, self._lease / 2)
            self._queue.check()
        version = self._weights.version
        self._timeline.add("commit", start, self._timeline.clock.now(), version=version)
        if self._with_digests:
            self._digests[str(version)] = digests_of(self._module, self._queue.check)

    def _generate(self, item: Item) -> list[Sequence]:
        kind = "evaluate" if item.greedy else "generate"
        span = self._timeline.span(kind, version=self._weights.version, iteration=item.after)
        with span:
            return generate(
                self._module,
                item.prompts,
                dataclasses.replace(self._sampling, temperature=0.0) if item.greedy else self._sampling,
                samples=item.samples,
                seed=item.seed,
                version=lambda: self._weights.version,
                between_tokens=self._between_tokens,
            )

    def _between_tokens(self) -> None:
        self._queue.check()
        if self._keep:
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
    worker: Inference | None = None
    with RolloutClient(
        queue, name=name, role="inference", lease=options.lease, timeout=options.timeout
    ) as client:
        try:
            weights = Weights()
            if options.sync != "none":
                _forget(module)
            cast: CastWeights | None = None
            if options.uses_weightcast:
                worker = Inference(controller, engine=name, settings=options.settings())
                worker.register(module, landing="shadow" if options.mode == "async" else "in_place")
                weights = cast = CastWeights(worker)
            if ways:
                weights = WaysWeights(ways, module, ready, cast)
            _make_engine(options, loaded, module, weights, client, name).run()
        finally:
            if worker is not None:
                worker.close()
            for way in ways:
                way.close()


def _cast(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """What the trainers send. Other buffers (rotary frequencies) stay float32, as the trainers have them."""
    for tensor in module.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)  # In place: what is tied stays tied.


def _forget(module: torch.nn.Module) -> None:
    """What it generates with is to have come from the trainers."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


def _make_engine(
    options: Options,
    loaded: models.Loaded,
    module: torch.nn.Module,
    weights: Weights,
    client: RolloutClient,
    name: str,
) -> Engine:
    tokenizer = loaded.tokenizer
    return Engine(
        module,
        weights,
        client,
        Sampling(options.max_gen_length, options.temperature, tokenizer.eos, tokenizer.pad),
        Timeline(name, client.clock),
        lease=options.lease,
        keep=options.inflight == "keep",
        digests=options.verify,
    )
