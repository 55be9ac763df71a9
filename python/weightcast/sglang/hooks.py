"""Around SGLang's functions, in each scheduler process: one for each rank of tensor parallelism.

What these raise would take the whole server down, so they answer `success=False`, on all ranks alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.managers.io_struct import (
    AbortReq,
    BeginWeightUpdateReqOutput,
    EndWeightUpdateReqOutput,
    PauseGenerationReqInput,
    UpdateWeightFromDiskReqOutput,
    UpdateWeightsFromDistributedReqOutput,
    UpdateWeightsFromIPCReqOutput,
    UpdateWeightsFromTensorReqOutput,
)

from .member import Member

_log = logging.getLogger("weightcast")
_ATTRIBUTE = "weightcast_member"  # Of SGLang's Scheduler, of which a process has one.


def _member(manager: Any) -> Member:
    if not hasattr(manager.scheduler, _ATTRIBUTE):
        setattr(manager.scheduler, _ATTRIBUTE, Member(manager))
    return getattr(manager.scheduler, _ATTRIBUTE)


def _joined(manager: Any) -> Member | None:
    member = getattr(manager.scheduler, _ATTRIBUTE, None)
    return member if member is not None and member.joined else None


def begin_weight_update(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """The first one joins: the trainers must have registered. Later ones do what SGLang does."""
    answer = original(manager, request)
    if not answer.success:
        return answer
    problem = _member(manager).join(request.selector)
    if problem:
        manager._session = None
        _log.error(
            "weightcast: this engine has not joined: %s. Correct that and begin the update again", problem
        )
        return BeginWeightUpdateReqOutput(success=False, message=problem)
    return BeginWeightUpdateReqOutput(success=True, message="weightcast: joined")


def end_weight_update(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Takes one version, all phases of it: no step of the engine falls between them."""
    member = _joined(manager)
    if member is None or manager._session is None:
        return original(manager, request)
    version, problem = member.update(lambda: original(manager, request))
    manager._session = None
    if problem:
        _log.error(
            "weightcast: the update failed on this engine: %s. Its next update is tried as usual", problem
        )
        if member.drained:
            _end_requests(manager.scheduler, _refusal(member))
        return EndWeightUpdateReqOutput(success=False, message=problem)
    manager.record_weight_version_after_update(version.label or str(version.number))
    return EndWeightUpdateReqOutput(success=True, message=f"weightcast: version {version.number}")


# --- An engine without a whole version --------------------------------------------------------------


def _refusal(member: Member) -> dict[str, Any]:
    return {
        "type": "abort",
        "status_code": HTTPStatus.SERVICE_UNAVAILABLE,
        "message": f"weightcast: this engine has no whole version until its next update ({member.drained})",
    }


def _end_requests(scheduler: Any, reason: dict[str, Any]) -> None:
    """Ends all requests without a further step: none gets a token of two versions."""
    paused, since = scheduler._engine_paused, scheduler._pause_started_at
    scheduler.pause_generation(PauseGenerationReqInput(mode="retract"))  # All of them into the queue,
    scheduler.abort_request(AbortReq(abort_all=True, finished_reason=reason))  # which this empties.
    scheduler._engine_paused, scheduler._pause_started_at = paused, since


def handle_request(original: Callable[..., Any], scheduler: Any, request: Any, **options: Any) -> Any:
    member = getattr(scheduler, _ATTRIBUTE, None)
    if member is None or not member.drained:
        return original(scheduler, request, **options)
    answer = AbortReq(rid=request.rid, finished_reason=_refusal(member))
    return scheduler.send_abort_output(answer, request)


# --- Memory that goes and comes ---------------------------------------------------------------------


def _of_weights(request: Any) -> bool:
    return not request.tags or GPU_MEMORY_TYPE_WEIGHTS in request.tags


def release_memory_occupation(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    member = _joined(manager)
    if member is not None and _of_weights(request):
        member.suspend()
    return original(manager, request)


def resume_memory_occupation(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    answer = original(manager, request)
    member = _joined(manager)
    if member is not None and _of_weights(request):
        member.resume()
    return answer


# --- Weights from elsewhere -------------------------------------------------------------------------


def _refuse(answer: type, **more: Any) -> Callable[..., Any]:
    def hook(original: Callable[..., Any], manager: Any, request: Any) -> Any:
        if _joined(manager) is None:
            return original(manager, request)
        message = (
            "this engine takes its weights from weightcast; start it without WEIGHTCAST_CONTROLLER to "
            f"use {original.__name__}"
        )
        return answer(success=False, message=message, **more)

    return hook


update_weights_from_disk = _refuse(UpdateWeightFromDiskReqOutput, num_paused_requests=0)
update_weights_from_distributed = _refuse(UpdateWeightsFromDistributedReqOutput)
update_weights_from_tensor = _refuse(UpdateWeightsFromTensorReqOutput)
update_weights_from_ipc = _refuse(UpdateWeightsFromIPCReqOutput)
