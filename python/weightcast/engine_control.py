"""EngineControl: the controller pauses and resumes an engine through it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import _weightcast as _core
from .errors import Cancelled, Error
from .workers import _FOREVER, Settings, _settings

_log = logging.getLogger("weightcast")


class EngineControl:
    """Belongs in the front end of an engine (vLLM's or SGLang's), once per engine; its ranks are `Inference`.

    The controller then asks for each step, in this order, and goes on when it has been done:

    in_place: pause → bytes land → every rank switches → flush_caches, set_version → resume, admit
    shadow:   bytes land → pause → every rank switches → flush_caches, set_version → resume, admit

    Errors and `weightcast info` name the controller's commands: *pause* calls `pause`; *activate* calls
    `flush_caches` and `set_version`; *resume* calls `resume` and `admit`; *drain* calls `drain`.

    pause()              generate nothing until `resume`; requests may be kept.
    resume()             generate again.
    flush_caches()       forget what was computed with the old weights (prefix, KV, encoder caches).
    set_version(version) what the engine serves from now on (a `Version`).
    admit()              requests may be routed here.
    drain(reason)        there is no whole version to serve: route no requests here, until `admit`.

    Each is a function or a coroutine function, or None; called from a thread of this object's, one at a time,
    and only where it changes something. Coroutines run in the event loop in which this object was made, if
    there was one. A step that raises, or takes longer than the setting `commit_timeout`, puts the engine out
    of the update: what it served before it serves on if it still has it, otherwise it is drained until a
    version has landed. An engine that has had an EngineControl takes part in updates only while one is here.

    commit_group: as the engine's ranks have it; there is one EngineControl for all models of the group.
    """

    def __init__(
        self,
        controller: str | None = None,
        *,
        engine: str,
        model: str = "policy",
        commit_group: Mapping[str, int] | None = None,
        pause: Callable[[], Any] | None = None,
        resume: Callable[[], Any] | None = None,
        flush_caches: Callable[[], Any] | None = None,
        set_version: Callable[[_core.Version], Any] | None = None,
        admit: Callable[[], Any] | None = None,
        drain: Callable[[str], Any] | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._pause, self._resume = pause, resume
        self._flush_caches, self._set_version = flush_caches, set_version
        self._admit, self._drain = admit, drain
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        # None: not known yet, so whatever is asked for is done.
        self._paused: bool | None = None
        self._admitted: bool | None = None
        self._version: _core.Version | None = None
        self._error: Error | None = None
        self._core = _core.CoreEngineControl.connect(
            controller or "", 0, 1, model, dict(commit_group or {}), engine, _settings(settings)
        )
        self._thread = threading.Thread(target=self._run, name="wc-engine-control", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _close, self._core, self._thread)

    @property
    def paused(self) -> bool:
        return self._paused is True

    @property
    def admitted(self) -> bool:
        return self._admitted is True

    @property
    def version(self) -> _core.Version | None:
        """What was last set."""
        return self._version

    def check(self) -> None:
        """Raises what has ended the session with the controller, if anything has."""
        if self._error is not None and not isinstance(self._error, Cancelled):
            raise self._error

    def close(self) -> None:
        """Graceful shutdown; safe to call twice. The engine stays in its present state."""
        self._end()

    def __enter__(self) -> EngineControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            try:
                order = self._core.next(_FOREVER)
            except Error as error:
                self._error = error
                return
            self._core.answer(order, self._do(order))

    def _do(self, order: Any) -> str:
        """Why it could not be done, or nothing."""
        try:
            match order.command:
                case _core.CoreCommand.PAUSE:
                    self._do_pause()
                case _core.CoreCommand.ACTIVATE:
                    self._call(self._flush_caches)
                    self._set(order.version)
                case _core.CoreCommand.RESUME:
                    self._do_resume(order.version)
                case _core.CoreCommand.DRAIN:
                    self._do_drain(order.reason)
                case unknown:
                    raise NotImplementedError(
                        f"engine control does not know the command {unknown}; reinstall weightcast"
                    )
        except Exception as error:
            _log.exception(
                "weightcast: the step %s of this engine's control failed, so the update goes on without the "
                "engine. Correct what the traceback shows",
                order.command.name.lower(),
            )
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return ""

    def _do_pause(self) -> None:
        if not self._paused:
            self._paused = None  # A pause that fails half-way has to be undone.
            self._call(self._pause)
            self._paused = True

    def _do_resume(self, version: _core.Version) -> None:
        try:
            if self._version != version:
                self._set(version)
            if self._paused is not False:
                self._call(self._resume)
                self._paused = False
            if not self._admitted:
                self._call(self._admit)
                self._admitted = True
        except Exception:
            self._do_drain("the engine could not be resumed; its log says why")
            raise

    def _do_drain(self, reason: str) -> None:
        if self._admitted is not False:
            self._call(self._drain, reason)
            self._admitted = False

    def _set(self, version: _core.Version) -> None:
        self._call(self._set_version, version)
        self._version = version

    def _call(self, function: Callable[..., Any] | None, *arguments: Any) -> None:
        if function is None:
            return
        result = function(*arguments)
        if not inspect.isawaitable(result):
            return
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_wait_for(result), self._loop).result()
        else:
            asyncio.run(_wait_for(result))


def _close(core: Any, thread: threading.Thread) -> None:
    core.close()
    if threading.current_thread() is not thread and not _core.interpreter_ends():
        thread.join(timeout=1)  # Not for ever: a callback may hang.


async def _wait_for(result: Any) -> None:
    await result
