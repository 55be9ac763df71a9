"""A stock SGLang takes its weights from weightcast; docs/adapters.md, "SGLang".

    WEIGHTCAST_CONTROLLER=host:29750 WEIGHTCAST_ENGINE=rollout-0 python -m sglang.launch_server …

SGLang calls `register` in each of its processes, by an entry point of the installed package. Without
WEIGHTCAST_CONTROLLER that does nothing. Importing this module imports neither SGLang nor torch.
"""

from __future__ import annotations

import os

from .servers import Servers

__all__ = ["Servers", "register"]

_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_AROUND = (
    *("begin_weight_update", "end_weight_update", "release_memory_occupation", "resume_memory_occupation"),
    *(f"update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc")),
)
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def register() -> None:
    """Puts the hooks around SGLang's update of weights. SGLang only logs what this raises."""
    if not os.environ.get("WEIGHTCAST_CONTROLLER"):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from . import hooks

    for name in _AROUND:
        HookRegistry.register(f"{_MANAGER}.{name}", getattr(hooks, name), HookType.AROUND)
    for name in ("handle_generate_request", "handle_embedding_request"):
        HookRegistry.register(f"{_SCHEDULER}.{name}", hooks.handle_request, HookType.AROUND)
