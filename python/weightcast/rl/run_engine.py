"""An engine's process: makes its parts, and runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .. import Inference
from . import models
from .collectives import Way
from .desk_client import DeskClient
from .engine import CastWeights, Engine, WaysWeights, Weights
from .generation import Sampling
from .options import Options
from .timeline import Timeline


def run_engine(
    options: Options,
    loaded: models.Loaded,
    controller: str,
    desk: str,
    name: str,
    *,
    ways: Sequence[Way] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Until the run ends. controller, desk: "host:port". ways, ready: as `start.Place` has them.

    Raises what ended it: PeerDead when the trainers or the controller are gone.
    """
    module: torch.nn.Module = loaded.model
    _cast(module, getattr(torch, options.engine_dtype))
    worker: Inference | None = None
    with DeskClient(
        desk, name=name, role="inference", lease=options.lease, timeout=options.timeout
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
    client: DeskClient,
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
