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
    def draft(self) -> str:
        """The model of the draft's trainers; empty: it is left as it is."""
        return os.environ.get("WEIGHTCAST_VLLM_DRAFT", "")

    @property
    def live(self) -> bool:
        landing = self.landing or os.environ.get("WEIGHTCAST_VLLM_LANDING") or "spare"
        if landing not in ("spare", "live"):
            raise InvalidArgument(
                f'landing (WEIGHTCAST_VLLM_LANDING) is {landing!r}; allowed: "spare" and "live"'
            )
        return landing == "live"

    @property
    def compares(self) -> bool:
        """The setting `compare`."""
        return str(self.settings.get("compare", os.environ.get("WEIGHTCAST_COMPARE", "0"))) == "1"


def engine_name(place: Place, vllm_config: Any) -> str:
    """The same in the front end and in all workers of one vLLM."""
    return place.engine or os.environ.get("WEIGHTCAST_ENGINE") or f"vllm-{vllm_config.instance_id}"


def ranks_of(vllm_config: Any) -> int:
    parallel = vllm_config.parallel_config
    return parallel.world_size * parallel.data_parallel_size


def commit_group(place: Place, vllm_config: Any) -> dict[str, int] | None:
    """Policy and draft are updated together: an engine never serves one version's with the other's."""
    if not place.draft:
        return None
    return {place.model: ranks_of(vllm_config), place.draft: ranks_of(vllm_config)}


def _check_drafter(place: Place, vllm_config: Any, drafter: Any) -> None:
    if getattr(drafter, "model", None) is None:
        raise InvalidArgument(
            f"WEIGHTCAST_VLLM_DRAFT is {place.draft!r}, but this vLLM has no draft model: unset it, or give "
            "vLLM a --speculative-config with a draft model, and its front end VLLM_PLUGINS=weightcast"
        )
    method = vllm_config.speculative_config.method
    if method != "draft_model":
        raise InvalidArgument(
            f"a draft of the method {method!r} has not been tried; unset WEIGHTCAST_VLLM_DRAFT to leave it "
            "as it is"
        )


class _Model:
    """A model of the worker as a rank of the engine: its mapping, and what receives its bytes."""

    def __init__(self, name: str, place: Place, config: Any, reload: Reload) -> None:
        """config: of the engine, also for its draft."""
        self.reload = reload
        parallel = config.parallel_config
        self.inference = Inference(
            place.controller or None,
            engine=engine_name(place, config),
            rank=parallel.data_parallel_index * parallel.world_size + parallel.rank,
            world_size=ranks_of(config),
            model=name,
            commit_group=commit_group(place, config),
            settings=place.settings,
        )
        self.registered = False

    def register(self, timeout: float) -> bool:
        if self.registered:
            return True
        try:
            offered = self.inference.offered(timeout)
        except TimedOut:
            return False
        began = time.monotonic()
        shards = self.reload.map(offered)
        self.inference.register(
            shards, landing="loader", shares=False, unwanted=self.reload.unwanted(offered)
        )
        self.registered = True
        _log.info(
            "weightcast: %d tensors of the trainers go to %d places of the model; found in %.3f s",
            len(offered),
            len(self.reload.landings),
            time.monotonic() - began,
        )
        return True


class Member:
    """Calls come from vLLM's own thread, between two steps of the engine."""

    def __init__(
        self,
        place: Place,
        vllm_config: Any,
        device: torch.device,
        model: torch.nn.Module,
        drafter: Any = None,
    ) -> None:
        """drafter: vLLM's, whose model takes part if `place` names one among the trainers'."""
        if place.draft:
            _check_drafter(place, vllm_config, drafter)
        self.place, self._model = place, model
        reload = Reload(model, vllm_config, device, live=place.live)
        self._models = [_Model(place.model, place, vllm_config, reload)]
        if place.draft:
            reload = Reload(drafter.model, drafter._create_draft_vllm_config(), device, live=place.live)
            self._models.append(_Model(place.draft, place, vllm_config, reload))
        self._unfinished = False
        self._guard: Any = None

    @property
    def version(self) -> Version:
        return self._models[0].inference.version

    def register(self, timeout: float) -> bool:
        """False: the trainers have not registered within `timeout` seconds; call again."""
        return all(one.register(timeout) for one in self._models)

    def switch(self, timeout: float, *, wait_served: bool) -> Version:
        """Takes the next version. Its bytes may have landed already, while the engine generated.

        wait_served: returns when each rank of the engine has switched. Without it the caller ensures this.
        Errors: the old version is in use, unless vLLM's processing failed half-way: then no step is taken
        until a later version has landed.
        """
        if not all(one.registered for one in self._models):
            raise Unavailable("this engine has not joined yet: call init_weight_transfer_engine first")
        self._end_last(timeout)
        for one in self._models:
            one.inference.begin()
        try:
            versions = [one.inference.receive(timeout) for one in self._models]
        except BaseException as error:
            self._give_up()
            if self.place.live and any(one.inference.state == "FAILED" for one in self._models):
                self._take_no_step(f"a part of a version has landed: {error}")
            raise
        version = versions[0]
        self._put(version)
        for one in self._models:
            one.inference.commit()
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
        for one in self._models:
            one.inference.close()

    def _put(self, version: Version) -> None:
        try:
            for one in self._models:
                one.reload.switch()
                if self.place.compares:
                    self._log_verified(version, verify(one.reload))
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
            for one in self._models:
                one.inference.served(timeout)
        except TimedOut:
            self._unfinished = True
            raise
        except Error as error:
            self._take_no_step(f"another rank of this engine has not switched: {error}")
            self._give_up()
            raise

    def _give_up(self) -> None:
        for one in self._models:
            with contextlib.suppress(Error):
                one.inference.abort()

    def _take_no_step(self, reason: str) -> None:
        """Better no answer than one of two versions: vLLM ends an engine whose step raises."""

        def refuse(*_: Any) -> None:
            raise RuntimeError(
                f"weightcast: no whole version is in this worker ({reason}); start this engine again, or "
                "update it"
            )

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
