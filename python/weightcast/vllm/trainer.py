"""vLLM's `TrainerWeightTransferEngine`: in each trainer rank, from the shards that it has."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from .. import Trainer, Update
from ..errors import InvalidArgument
from ..torch import checkpoint_shards
from . import BACKEND
from .source import StagedSource


@dataclass
class TrainerInit(TrainerInitInfo):
    """As vLLM's other backends have it: `WeightTransferTrainerFactory.trainer_init(TrainerInit(…), …)`."""

    backend: ClassVar[str] = BACKEND
    controller: str = ""  # "host:port"; empty: the setting `controller` (WEIGHTCAST_CONTROLLER).
    world_size: int = 1
    model: str = "policy"
    engine: str = ""  # The name of the vLLM that the client talks to; empty: it makes one.
    settings: dict[str, Any] = field(default_factory=dict)
    landing: str = "spare"  # Of the engine, or "live"; docs/adapters.md.
    timeout: float = 300.0  # Seconds for each step of an update.


class WeightcastTrainerEngine(TrainerWeightTransferEngine[TrainerInit]):
    """`send_weights` on every trainer rank; rank 0 makes the calls to vLLM. Nothing is gathered.

    source: a torch module (also FSDP2), a dict as `Trainer.register` takes it or a function that returns
    one, vLLM's `ModuleSource`, or any other `WeightSource`: what that yields is kept in host memory, each
    rank its part (`StagedSource`).
    """

    init_info_cls = TrainerInit

    def __init__(self, *, init_info: TrainerInit, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._info = init_info
        self._number = 0
        self._trainer = Trainer(
            init_info.controller or None,
            rank=init_info.rank,
            world_size=init_info.world_size,
            model=init_info.model,
            settings=init_info.settings,
        )
        self._staged: StagedSource | None = None
        self._trainer.register(self._registered(source))

    @classmethod
    def trainer_init(
        cls, init_info: TrainerInit, *, client: Any, source: Any = None
    ) -> WeightcastTrainerEngine:
        if source is None:
            raise InvalidArgument("trainer_init got no source; give it the module that is trained")
        engine = cls(init_info=init_info, client=client, source=source)
        if engine.is_sender:
            client.init_weight_transfer_engine(
                {
                    "controller": init_info.controller,
                    "engine": init_info.engine,
                    "model": init_info.model,
                    "settings": dict(init_info.settings),
                    "landing": init_info.landing,
                    "timeout": init_info.timeout,
                }
            )
        return engine

    def send_weights(self, version: int | None = None, label: str = "") -> None:
        """Returns when the version is served. The weights may change before that: see `publish`."""
        self.publish(version, label)
        self.apply()

    def publish(self, version: int | None = None, label: str = "") -> Update:
        """Offers the weights as they are: their bytes go to the engines while these generate.

        version: greater than the one before; None: one more. `apply` makes the switch. Between the two,
        `wait_sources()` of what this returns says when the weights may change (landing live: after `apply`).
        """
        if self._staged is not None:
            self._staged.fill()
        self._number = self._number + 1 if version is None else version
        self._label = label or str(self._number)
        # A stage keeps its bytes until the next publish; the trained tensors themselves do not.
        self._update = self._trainer.publish(self._number, hold=self._staged is not None, label=label)
        return self._update

    def apply(self) -> None:
        """Has the published version switched to. On an error engines have what they had, or are out."""
        update = self._update
        try:
            if self._info.landing != "live":  # Then bytes go only inside the call.
                update.wait_sources(self._info.timeout)
            if self.is_sender:
                self._call(update)
            update.wait(self._info.timeout)
        except BaseException:
            update.cancel()
            raise

    def shutdown(self) -> None:
        self._trainer.close()

    def _call(self, update: Update) -> None:
        self._start()
        self.client.update_weights(
            {"run": update.version.run, "version": update.version.number, "timeout": self._info.timeout}
        )
        self.client.finish_weight_update(self._label)

    def _start(self) -> None:
        try:
            self.client.start_weight_update()
        except Exception:
            # Where an update failed at one worker only, the others still have vLLM's session open.
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()
            self.client.start_weight_update()

    def _registered(self, source: Any) -> Any:
        module = getattr(source, "_module", None) if not isinstance(source, torch.nn.Module) else source
        if isinstance(module, torch.nn.Module):
            return lambda: checkpoint_shards(module)
        if isinstance(source, dict) or (callable(source) and not hasattr(source, "metadata")):
            return source
        self._staged = StagedSource(source, self._info.rank, self._info.world_size)
        return self._staged
