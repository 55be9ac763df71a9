"""One scheduler process of SGLang as a rank of a weightcast engine."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from sglang.srt.runtime_context import get_parallel, get_server_args

from .. import Inference, Version
from ..errors import Error, Fenced, InvalidArgument, TimedOut
from .model import LiveModel

_log = logging.getLogger("weightcast")

_JOIN = 60.0  # Seconds for the trainers to register.
_UPDATE = 240.0  # Seconds for a version to come, in which SGLang takes no step,
_OF_WATCHDOG = 0.8  # and this part of the time after which it would end itself.
_WHOLE = ("SERVING", "JOINING")  # States in which nothing was written since the model was whole.


class Member:
    """All its calls come from SGLang's own thread, on all ranks of the engine in the same order.

    The ranks agree after each step that may fail, so that none waits for another that has given up.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._group = manager.tp_cpu_group
        self._inference: Inference | None = None
        self._asleep = False
        self._told = ""  # What was last answered to SGLang.
        self._refused = False  # By the controller, which is final.
        self.joined = False
        self.drained = ""  # Why no request may be served.
        watchdog = getattr(get_server_args(), "watchdog_timeout", None)
        self._limit = min(_UPDATE, _OF_WATCHDOG * watchdog) if watchdog else _UPDATE

    # --- Joining --------------------------------------------------------------------------------------

    def join(self, selector: str) -> str:
        """Why this engine cannot join; empty if it has."""
        if self._asleep:
            return "the engine's weights are released; call resume_memory_occupation before an update"
        if self.joined and any(self._everywhere(isinstance(self._last_error(), InvalidArgument))):
            self._leave()
        if self.joined:
            return ""
        name = self._engine_name()
        problem = self._agreed(lambda: self._join(name, selector))
        if problem:
            self._leave()
        else:
            self.joined = True
        return problem

    def _engine_name(self) -> str:
        """The same on all ranks."""
        names = [os.environ.get("WEIGHTCAST_ENGINE") or f"sglang-{uuid.uuid4().hex[:12]}"]
        dist.broadcast_object_list(names, src=dist.get_global_rank(self._group, 0), group=self._group)
        return names[0]

    def _join(self, engine: str, selector: str) -> None:
        model = LiveModel(self._manager, selector)
        parallel = get_parallel()
        self._inference = Inference(engine=engine, rank=parallel.tp_rank, world_size=parallel.tp_size)
        try:
            offered = self._inference.offered(_JOIN)
        except TimedOut:
            raise TimedOut(
                f"no trainers have registered at the controller within {_JOIN:g} s; start them, and begin "
                "the update when they have registered"
            ) from None
        began = time.monotonic()
        shards = model.map(offered)
        self._inference.register(shards, unwanted=model.unwanted(offered))
        _log.info(
            "weightcast: %s has joined; %d tensors of the trainers go to %d places, found in %.3f s",
            engine,
            len(offered),
            sum(map(len, shards.values())),
            time.monotonic() - began,
        )

    # --- An update ------------------------------------------------------------------------------------

    def update(self, process: Callable[[], Any]) -> tuple[Version, str]:
        """One version into the live parameters. process: SGLang's own end of an update.

        Why it failed comes second. Then `drained` says whether the engine has a whole version.
        """
        inference = self._inference
        assert inference is not None
        self._forget_past()
        # SGLang's own end waits for all ranks: none may skip it that another enters.
        problem = self._agreed(self._receive) or self._agreed(lambda: self._process(process))
        if not problem:
            problem = self._agreed(inference.commit) or self._agreed(lambda: inference.served(self._limit))
        if problem:
            self._abandon(problem)
        else:
            self.drained = ""
        return inference.version, problem

    def _receive(self) -> None:
        assert self._inference is not None
        self._refused = False
        try:
            self._inference.begin()
            self._inference.receive(self._limit)
        except InvalidArgument:
            self._refused = True
            raise

    def _forget_past(self) -> None:
        """What ended between two updates, such as the trainers that were here, is raised once, first."""
        assert self._inference is not None
        if any(self._everywhere(str(self._last_error() or "") not in ("", self._told))):
            with contextlib.suppress(Error):
                self._inference.begin()
                self._inference.receive(0)
            self._abort(self._inference)

    def _last_error(self) -> Error | None:
        """`InvalidArgument`: trainers of another model came. That is final for this Inference."""
        assert self._inference is not None
        try:
            self._inference.check()
        except Error as error:
            return error
        return None

    def _process(self, process: Callable[[], Any]) -> None:
        try:
            process()
        except Exception:
            dist.barrier(self._group)  # The one that SGLang would have come to.
            raise

    def _abandon(self, problem: str) -> None:
        assert self._inference is not None
        self._abort(self._inference)
        ranks = self._everywhere((self._inference.state, self._refused))
        if not all(state in _WHOLE for state, _ in ranks):
            self.drained = problem
        if any(refused for _, refused in ranks):
            self._leave()

    def _leave(self) -> None:
        """The next `begin` joins again: the trainers may have the right model by then."""
        if self._inference is not None:
            self._inference.close()
        self._inference = None
        self.joined = False

    def _abort(self, inference: Inference) -> None:
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            try:
                inference.abort()
            except Fenced:
                continue  # A stopped peer might still write.
            except Error:
                pass
            return

    def _agreed(self, step: Callable[[], Any]) -> str:
        """Does the step; what went wrong at any rank, the same text on all."""
        problem = ""
        try:
            step()
        except Error as error:
            problem = self._told = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        everywhere = enumerate(self._everywhere(problem))
        return next((f"rank {rank}: {one}" for rank, one in everywhere if one), "")

    def _everywhere(self, value: Any) -> list[Any]:
        """What each rank gives."""
        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values

    # --- Sleep ----------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Before SGLang gives the weights' memory back."""
        if problem := self._agreed(self._suspend):
            raise InvalidArgument(f"the weights' memory cannot be released now: {problem}")
        self._asleep = True

    def _suspend(self) -> None:
        assert self._inference is not None
        try:
            self._inference.suspend(self._limit)
        except InvalidArgument:
            raise InvalidArgument("an update is under way; release the memory after it") from None
        except Fenced as error:
            raise Fenced(str(error).replace("call suspend", "call release_memory_occupation")) from None

    def resume(self) -> None:
        args = get_server_args()
        intact = not args.enable_memory_saver or args.enable_weights_cpu_backup
        assert self._inference is not None
        problem = self._agreed(lambda: self._inference.resume(intact=intact))
        self._asleep = False
        if problem or not intact:
            self.drained = problem or "its weights were released, and no version has come since"
