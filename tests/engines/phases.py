"""A plugin of vLLM for the tests: it holds an update at one phase, so that the server can be killed there.

PHASE_HOLD is "ready" (every byte is there, nothing switched) or "processing" (some layers have switched). It
holds once the file PHASE_FILE.armed is there, and writes PHASE_FILE.reached.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
from typing import Any

_LAYERS = 5  # That are processed before it holds.


def register() -> None:
    """vLLM calls it in each of its processes."""
    phase, file = os.environ["PHASE_HOLD"], os.environ["PHASE_FILE"]
    if phase == "ready":
        _hold_before_switch(file)
    elif phase == "processing":
        _hold_in_switch(file)


def _reached(file: str) -> bool:
    if not pathlib.Path(file + ".armed").exists():
        return False
    pathlib.Path(file + ".reached").touch()
    return True


def _hold_before_switch(file: str) -> None:
    try:
        from weightcast.vllm.server import FrontEnd
    except ImportError:
        return
    pause = FrontEnd._pause

    async def held(self: Any) -> None:
        if _reached(file):
            await asyncio.Event().wait()
        await pause(self)

    FrontEnd._pause = held


def _hold_in_switch(file: str) -> None:
    from weightcast.vllm import reload

    process, left = reload._process_after_loading, [_LAYERS]

    def held(layer: Any) -> None:
        if pathlib.Path(file + ".armed").exists():
            left[0] -= 1
            if left[0] < 0 and _reached(file):
                threading.Event().wait()
        process(layer)

    reload._process_after_loading = held
