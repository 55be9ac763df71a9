"""vLLM's `WeightTransferEngine`: in each of its workers, called between two steps of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from .. import Version
from ..errors import InvalidArgument, TimedOut, Unavailable
from .member import Joining, Member, Place
from .supported import warn_if_untested

_LOOK = 0.2  # Seconds, in which vLLM takes no step, to ask the controller what the trainers have.


@dataclass
class InitInfo(WeightTransferInitInfo):
    controller: str = ""
    engine: str = ""
    model: str = "policy"
    settings: dict[str, Any] = field(default_factory=dict)
    landing: str = "spare"  # Or "live".
    timeout: float = 60.0  # Seconds for the trainers to register.


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    run: int = 0
    version: int = -1  # -1: the next one.
    timeout: float = 300.0


class WeightcastEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """All phases of an update are in `update_weights`: no step falls between them, also if nobody paused."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        if vllm_config.parallel_config.rank == 0:
            warn_if_untested(vllm.__version__)
        self._member: Member | None = None
        self._joining: Joining | None = None
        self._led = False  # The front end makes the switches, at their place in the update.

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Joins, and finds the mapping. Again with the same place: does nothing."""
        place = Place(
            init_info.controller, init_info.engine, init_info.model, init_info.settings, init_info.landing
        )
        if self._led:
            return
        if self._member is not None and self._member.place != place:
            raise InvalidArgument(
                f"this vLLM belongs to {self._member.place}; start it again to give it to {place}"
            )
        if self._member is None:
            self._member = Member(place, self.vllm_config, self.device, self.model)
        try:
            joined = self._member.register(init_info.timeout)
        except BaseException:
            self.shutdown()  # It may join another job.
            raise
        if not joined:
            raise TimedOut(
                f"no trainers of model {place.model!r} have registered within {init_info.timeout:g} s; "
                "start them with the controller and the model name of this engine"
            )

    def start_weight_update(self) -> None:
        """The bytes need no preparation."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._led:
            return
        if self._member is None:
            raise InvalidArgument(
                "update_weights: this worker has not joined; call init_weight_transfer_engine first"
            )
        wanted = None if update_info.version < 0 else Version(update_info.run, update_info.version)
        self._member.switch_to(wanted, update_info.timeout)

    def finish_weight_update(self) -> None:
        """The switch has been made. (To raise here would leave vLLM's session open.)"""

    def shutdown(self) -> None:
        if self._member is not None:
            self._member.close()
            self._member = None

    def trainer_send_weights(self, *_: Any) -> None:
        """Abstract in vLLM 0.27; trainers use `WeightcastTrainerEngine`."""
        raise NotImplementedError

    # --- What the front end asks for ------------------------------------------------------------------

    def lead(self, place: dict[str, Any], drafter: Any) -> bool:
        """Whether this worker has joined; call until it has. From the first call on the front end leads."""
        self._led = True
        if self._member is None:
            arguments = (Place(**place), self.vllm_config, self.device, self.model, drafter)
            self._joining = self._joining or Joining(*arguments)
            try:
                self._member = self._joining.member()
            except Unavailable:
                self._joining = None  # No controller yet.
        return self._member is not None and self._member.register(_LOOK)

    def switch(self, timeout: float) -> None:
        """Returns when this worker has switched; the front end waits for the others."""
        if self._member is None:
            raise InvalidArgument(
                "weightcast_switch: this worker is not joined; see its log, and start this vLLM again"
            )
        self._member.switch(timeout, wait_served=False)
