"""TRL's AsyncGRPOTrainer sends its weights by weightcast; docs/adapters.md, "TRL".

AsyncGRPOTrainer(…, weight_transfer=weightcast.trl.WeightTransfer("host:29750"))
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from .errors import Error, TimedOut
from .torch import Stage
from .workers import Settings, Trainer

__all__ = ["WeightTransfer"]

_LOOK = 0.1  # Seconds between two looks at which engines have joined.


class WeightTransfer:
    """TRL's `WeightTransferProtocol`, for vLLM servers that have weightcast in their front end.

    TRL makes these calls on its main process only. There the weights are kept a second time, in host memory:
    the iterator's tensors need not outlast it, and engines that join later get the last version too.

    controller: "host:port"; None: the setting `controller` (WEIGHTCAST_CONTROLLER).
    engines: how many servers must serve the first version before `send_weights` returns. timeout: seconds for
    that, and for an update.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        engines: int = 1,
        model: str = "policy",
        timeout: float = 300.0,
        settings: Settings | None = None,
    ) -> None:
        self._controller, self._model, self._settings = controller, model, settings
        self._engines, self._timeout = engines, timeout
        self._trainer: Trainer | None = None
        self._stage: Stage | None = None
        self._number = 0
        self._joined = False

    def init_weight_transfer(self) -> None:
        self._connected()

    def pause(self) -> None:
        """Each server pauses itself, for the switch alone: it generates while the bytes come."""

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Returns when the servers serve these weights. Errors: they serve those before."""
        trainer = self._connected()
        if self._stage is None:
            stage = Stage(iterator)
            trainer.register(stage)
            self._stage = stage
        else:
            self._stage.fill(iterator)
        self._number += 1
        update = trainer.publish(self._number, hold=True)
        try:
            update.wait(self._timeout)
            self._wait_for_engines(trainer)
        except Error as error:
            update.cancel()
            if isinstance(error, TimedOut) and not self._joined:
                raise TimedOut(self._missing(trainer)) from None
            raise

    def resume(self) -> None:
        """Each server has resumed by itself."""

    def destroy(self) -> None:
        if self._trainer is not None:
            self._trainer.close()
        self._trainer, self._stage, self._number, self._joined = None, None, 0, False

    def _connected(self) -> Trainer:
        if self._trainer is None:
            self._trainer = Trainer(self._controller, model=self._model, settings=self._settings)
        return self._trainer

    def _wait_for_engines(self, trainer: Trainer) -> None:
        """Servers join once the weights are registered; the first version is held for them."""
        deadline = time.monotonic() + self._timeout
        while not self._joined:
            self._joined = len(_serving(trainer)) >= self._engines
            if not self._joined:
                if time.monotonic() > deadline:
                    raise TimedOut(self._missing(trainer))
                time.sleep(_LOOK)

    def _missing(self, trainer: Trainer) -> str:
        serving = _serving(trainer)
        return (
            f"{len(serving)} of {self._engines} vLLM servers have joined within {self._timeout:g} s"
            f"{': ' + ', '.join(serving) if serving else ''}; start them with VLLM_PLUGINS=weightcast, "
            'WEIGHTCAST_CONTROLLER and --weight-transfer-config \'{"backend": "weightcast"}\'; ask GET '
            "/weightcast/ready why one has not joined"
        )


def _serving(trainer: Trainer) -> list[str]:
    return sorted(one.name for one in trainer.engines() if one.incarnation and one.version.number >= 0)
