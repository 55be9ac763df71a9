"""One vLLM worker as a rank of a weightcast engine: it joins, receives versions and switches."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import Inference, Version, newer
from ..errors import Error, InvalidArgument, TimedOut, Unavailable
from .reload import Reload
from .verify import Verified, verify

_log = logging.getLogger("weightcast")


@dataclass
class Place:
    """Which engine of which job a worker belongs to. Plain data: the front end sends it to the workers."""

    controller: str = ""  # "host:port"; empty: the setting `controller` (WEIGHTCAST_CONTROLLER).
    engine: str = ""  # Empty: WEIGHTCAST_ENGINE, or a name that vLLM made for this engine.
    model: str = "policy"
    settings: dict[str, Any] = field(default_factory=dict)
    landing: str = ""  # "spare" or "live"; empty: WEIGHTCAST_VLLM_LANDING, or "spare".

    @property
    def live(self) -> bool:
        landing = self.landing or os.environ.get("WEIGHTCAST_VLLM_LANDING") or "spare"
        if landing not in ("spare", "live"):
            raise InvalidArgument(f'landing must be "spare" or "live", not {landing!r}')
        return landing == "live"

    @property
    def compares(self) -> bool:
        """The setting `compare`."""
        return str(self.settings.get("compare", os.environ.get("WEIGHTCAST_COMPARE", "0"))) == "1"


def engine_name(place: Place, vllm_config: Any) -> str:
    """The same in the front end and in all workers of one vLLM."""
    return place.engine or os.environ.get("WEIGHTCAST_ENGINE") or f"vllm-{vllm_config.instance_id}"


class Member:
    """Calls come from vLLM's own thread, between two steps of the engine."""

    def __init__(self, place: Place, vllm_config: Any, device: torch.device, model: torch.nn.Module) -> None:
        self.place = place
        self._config, self._model = vllm_config, model
        self._reload = Reload(model, vllm_config, device, live=place.live)
        parallel = vllm_config.parallel_config
        rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._inference = Inference(
            place.controller or None,
            engine=engine_name(place, vllm_config),
            rank=rank,
            world_size=parallel.world_size * parallel.data_parallel_size,
            model=place.model,
            settings=place.settings,
        )
        self._registered = False
        self._unfinished = False
        self._guard: Any = None

    @property
    def version(self) -> Version:
        return self._inference.version

    @property
    def landings(self) -> int:
        return len(self._reload.landings)

    def register(self, timeout: float) -> bool:
        """False: the trainers have not registered within `timeout` seconds; call again."""
        if self._registered:
            return True
        try:
            offered = self._inference.offered(timeout)
        except TimedOut:
            return False
        began = time.monotonic()
        shards = self._reload.map(offered)
        self._inference.register(
            shards, landing="loader", shares=False, unwanted=self._reload.unwanted(offered)
        )
        self._registered = True
        _log.info(
            "weightcast: %d tensors of the trainers go to %d places of the model; found in %.3f s",
            len(offered),
            self.landings,
            time.monotonic() - began,
        )
        return True

    def switch(self, timeout: float, *, wait_served: bool) -> Version:
        """Takes the next version. Its bytes may have landed already, while the engine generated.

        wait_served: returns when each rank of the engine has switched. Without it the caller sees to that.
        Errors: the old version is in use, unless vLLM's processing failed half-way: then no step is taken
        until a later version has landed.
        """
        if not self._registered:
            raise Unavailable("this engine has not joined yet: call init_weight_transfer_engine first")
        self._end_last(timeout)
        self._inference.begin()
        try:
            version = self._inference.receive(timeout)
        except BaseException as error:
            self._give_up()
            if self.place.live and self._inference.state == "FAILED":
                self._take_no_step(f"a part of a version has landed: {error}")
            raise
        self._put(version)
        self._inference.commit()
        self._unfinished = True
        if wait_served:
            self._end_last(timeout)
        return version

    def switch_to(self, wanted: Version | None, timeout: float) -> Version:
        """`switch` until `wanted` or a newer version is served. None: the next one."""
        deadline = time.monotonic() + timeout
        while True:
            if wanted is not None and self.version and not newer(wanted, self.version):
                return self.version
            version = self.switch(max(0.0, deadline - time.monotonic()), wait_served=True)
            if wanted is None:
                return version

    def close(self) -> None:
        self._inference.close()

    def _put(self, version: Version) -> None:
        try:
            self._reload.switch()
            if self.place.compares:
                self._log_verified(version, verify(self._reload))
        except BaseException as error:
            self._take_no_step(f"version {version.number} was put into a part of the model: {error}")
            self._give_up()
            raise
        if self._guard is not None:
            self._guard.remove()
            self._guard = None

    def _log_verified(self, version: Version, found: Verified) -> None:
        text = f"weightcast: version {version.number}: the forward pass uses what the trainers sent"
        _log.info("%s, %s", text, found)

    def _end_last(self, timeout: float) -> None:
        """Waits until every rank has switched to the version before."""
        if not self._unfinished:
            return
        self._unfinished = False
        try:
            self._inference.served(timeout)
        except TimedOut:
            self._unfinished = True
            raise
        except Error as error:
            self._take_no_step(f"another rank of this engine has not switched: {error}")
            self._give_up()
            raise

    def _give_up(self) -> None:
        with contextlib.suppress(Error):
            self._inference.abort()

    def _take_no_step(self, reason: str) -> None:
        """Better no answer than one of two versions: vLLM ends an engine whose step raises."""

        def refuse(*_: Any) -> None:
            raise RuntimeError(f"weightcast: no whole version is in this worker ({reason})")

        if self._guard is None:
            self._guard = self._model.register_forward_pre_hook(refuse)


class Joining:
    """Makes a Member without making vLLM wait: controller and trainers may come later than the engine."""

    def __init__(self, place: Place, *arguments: Any) -> None:
        self._member: Member | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._connect, args=(place, *arguments), daemon=True)
        self._thread.start()

    def _connect(self, *arguments: Any) -> None:
        try:
            self._member = Member(*arguments)
        except BaseException as error:
            self._error = error

    def member(self) -> Member | None:
        """None: not yet. Raises why there will be none."""
        if self._thread.is_alive():
            return None
        if self._error is not None:
            raise self._error
        return self._member
