"""weightcast in vLLM's API server: it leads the engine's workers through each update.

With it trainers need not call vLLM: the controller says when the bytes have landed, then this front end
pauses the engine, has the workers switch, resets the caches, sets the version and resumes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from .. import EngineControl, Version
from ..errors import Error
from .member import Place, commit_group, engine_name

_log = logging.getLogger("weightcast")
_JOIN_EVERY = 0.5  # Seconds between two looks whether the trainers have registered.
_SWITCH = 300.0  # Seconds for a switch; the controller's commit_timeout ends it before.


class FrontEnd:
    """vLLM's `EndpointPlugin`. GET /weightcast/ready: 200 where requests may be routed, else 503."""

    name = "weightcast"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._client: Any = None
        self._control: EngineControl | None = None
        self._why = "the engine has not joined yet; it waits for its controller and trainers: start them"
        self._joining: asyncio.Task[None] | None = None
        self._switching: asyncio.Task[Any] | None = None

    def attach_router(self, app: FastAPI) -> None:
        app.get("/weightcast/ready")(self.ready)

    async def ready(self) -> JSONResponse:
        admitted = self._control is not None and self._control.admitted
        version = self._control.version if self._control is not None else None
        content = {
            "ready": admitted,
            "version": version.number if version else None,
            "label": version.label if version else None,
            "reason": "" if admitted else self._why,
        }
        return JSONResponse(content, status_code=200 if admitted else 503)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        config = getattr(engine_client, "vllm_config", None)
        transfer = getattr(config, "weight_transfer_config", None)
        if transfer is None or transfer.backend != self.name:
            return
        self._client = engine_client
        self._joining = asyncio.create_task(self._join(engine_name(Place(), config), config))

    async def _join(self, engine: str, config: Any) -> None:
        try:
            # In a thread: the controller may be away. Its steps run in this loop.
            while not all(await self._rpc("weightcast_join", asdict(Place(engine=engine)))):
                await asyncio.sleep(_JOIN_EVERY)
            self._control = EngineControl(
                engine=engine,
                commit_group=commit_group(Place(), config),
                pause=self._pause,
                resume=self._resume,
                flush_caches=self._flush,
                set_version=self._set_version,
                admit=self._admit,
                drain=self._drain,
            )
            _log.info("weightcast: %s has joined", engine)
        except Exception as error:
            self._why = f"the engine could not join: {error}"
            _log.exception(
                "weightcast: %s could not join. Correct what the traceback shows, and start it again", engine
            )

    async def _rpc(self, method: str, *arguments: Any) -> Any:
        return await self._client.collective_rpc(method, args=arguments)

    # --- What the controller asks for -----------------------------------------------------------------

    async def _pause(self) -> None:
        """The bytes have landed. From here to `_resume` vLLM takes no step but the switch."""
        await self._client.pause_generation(mode="keep")
        # It ends when the controller has let every engine switch, which is after this has returned.
        self._switching = asyncio.create_task(self._switch())

    async def _switch(self) -> None:
        try:
            await self._rpc("weightcast_switch", _SWITCH)
        except Exception as error:
            _log.error(
                "weightcast: the update ended without this engine: %s. It takes part in the next update",
                error,
            )

    async def _flush(self) -> None:
        if self._switching is not None:
            await self._switching
        if not await self._client.reset_prefix_cache(reset_running_requests=True):
            raise Error("vLLM did not reset its prefix cache; see vLLM's log, the next update tries again")
        await self._client.reset_mm_cache()
        await self._client.reset_encoder_cache()

    async def _set_version(self, version: Version) -> None:
        await self._client.update_weight_version(version.label or str(version.number))

    async def _resume(self) -> None:
        if self._switching is not None:
            await self._switching
        await self._client.resume_generation()

    async def _admit(self) -> None:
        self._why = ""

    async def _drain(self, reason: str) -> None:
        self._why = reason
