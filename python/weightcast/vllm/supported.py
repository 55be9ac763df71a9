"""What of vLLM the adapter was tried with, and what it refuses."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import torch
import vllm
from vllm.platforms import current_platform

from ..errors import InvalidArgument

TESTED = ("0.29", "0.30", "0.31", "0.32")

# Their processing was tried with loader landing, on CPU.
_KNOWN_METHODS = {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod", "UnquantizedFusedMoEMethod"}
# Method and platform whose processing leaves tensors as they are.
_IDENTITIES = {("UnquantizedLinearMethod", "cuda"), ("UnquantizedEmbeddingMethod", "cuda")}
# Whose processing reads the loaded tensors, and neither changes nor keeps them; from the sources of TESTED.
_READERS = {("UnquantizedLinearMethod", "cpu"), ("UnquantizedEmbeddingMethod", "cpu")}

_log = logging.getLogger("weightcast")


def leaves_as_it_is(method: Any) -> bool:
    """Whether processing by a layer's `quant_method` leaves its tensors as they were loaded."""
    return _on_this_platform(method) in _IDENTITIES


def only_reads(method: Any) -> bool:
    """Whether processing leaves alone the memory that it is given: no copy need be made for it."""
    return _on_this_platform(method) in _READERS and is_tested(vllm.__version__)


def _on_this_platform(method: Any) -> tuple[str, str]:
    return type(method).__name__, current_platform.device_type


def is_tested(version: str) -> bool:
    return version.startswith(tuple(f"{one}." for one in TESTED))


@functools.cache
def warn_if_untested(version: str) -> None:
    """Once in a process."""
    if not is_tested(version):
        _log.warning(
            "weightcast was tried with vLLM %s; this is %s. Compare tokens with a fresh engine before you "
            "rely on it (docs/adapters.md)",
            ", ".join(TESTED),
            version,
        )


def refuse_settings(config: Any, layers: Mapping[str, torch.nn.Module]) -> None:
    if getattr(config.parallel_config, "enable_eplb", False):
        raise InvalidArgument(
            "enable_eplb moves experts between ranks while weights arrive; start vLLM without --enable-eplb"
        )
    if getattr(config.model_config, "enable_sleep_mode", False):
        raise InvalidArgument(
            "enable_sleep_mode has not been tried with weightcast; start vLLM without --enable-sleep-mode"
        )
    if config.lora_config is not None:
        raise InvalidArgument("enable_lora renames the model's layers; start vLLM without --enable-lora")
    if getattr(config.model_config, "use_mla", False):
        raise InvalidArgument(
            "MLA attention derives weights of its own, which has not been tried with weightcast; update this "
            "model with another weight-transfer backend of vLLM"
        )
    if current_platform.is_cpu() and getattr(current_platform, "is_zen_cpu", lambda: False)():
        raise InvalidArgument(
            "zentorch keeps views of the loaded weights, so updates take no effect; uninstall zentorch"
        )


def refuse_method(path: str, layer: torch.nn.Module) -> None:
    method = getattr(layer, "quant_method", None)
    if layer._parameters and method is not None and type(method).__name__ not in _KNOWN_METHODS:
        raise InvalidArgument(
            f"{path}: quantisation by {type(method).__name__} has not been tried with weightcast; serve the "
            "model unquantised, or use another weight-transfer backend of vLLM"
        )
