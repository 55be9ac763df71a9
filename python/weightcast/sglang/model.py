"""Which parameter of SGLang's model each tensor of the trainers lands in, and what cannot land there.

Bytes land in the parameters that the model computes with, so SGLang's processing after loading must leave
those as they are. TESTED says with which versions that was tried.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import sglang
import torch
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.runtime_context import get_server_args
from sglang.srt.utils import cpu_has_amx_support

from .._loading import Offered, in_dtype, refuse_unused, shards_of, unwanted
from ..capture import Capture, capture
from ..errors import InvalidArgument
from ..shards import Shard

TESTED = ("0.5.23",)

# By method and platform: processing that changes nothing.
_LIVE = {
    ("UnquantizedLinearMethod", "cpu"),
    ("UnquantizedEmbeddingMethod", "cpu"),
    ("UnquantizedFusedMoEMethod", "cpu"),
}

_log = logging.getLogger("weightcast")


class LiveModel:
    def __init__(self, manager: Any, selector: str) -> None:
        self._runner = manager.tp_worker.model_runner
        self._model: torch.nn.Module = self._runner.model
        self._found = Capture([], [])
        warn_if_untested(sglang.__version__)
        _refuse_settings(get_server_args())
        if manager.draft_worker is not None and selector != "target":
            raise InvalidArgument(
                "weightcast does not update SGLang's draft model; give begin_weight_update selector=target"
            )
        _refuse_model(self._runner.weight_updater, self._model)

    def map(self, offered: Offered) -> dict[str, list[Shard]]:
        """What to register: views of the live parameters."""
        parameters = dict(self._model.named_parameters())
        targets = {**parameters, **dict(self._model.named_buffers())}
        found = capture(self._model.load_weights, in_dtype(offered, self._runner.dtype), targets)
        self._refuse_methods(found)
        for name, count in found.missing(parameters).items():
            raise InvalidArgument(
                f"{name} of SGLang's model: the trainers send nothing for {count} of its "
                f"{parameters[name].numel()} elements; they have {len(offered)} tensors; start SGLang with "
                "the model that they train"
            )
        self._found = found
        refuse_unused(
            found,
            offered,
            self.unwanted(offered),
            ranks=get_server_args().tp_size,
            others=get_server_args().ep_size > 1,
            model=f"SGLang's {type(self._model).__name__}",
        )
        return shards_of(found.landings, targets)

    def unwanted(self, offered: Offered) -> list[str]:
        tied = getattr(self._runner.model_config.hf_text_config, "tie_word_embeddings", False)
        return unwanted(self._found, offered, tied=tied)

    def _refuse_methods(self, found: Capture) -> None:
        used = {landing.target for landing in found.landings}
        for path, layer in self._model.named_modules():
            method = getattr(layer, "quant_method", None)
            names = {f"{path}.{name}" for name in layer._parameters}
            if method is None or not used & names:
                continue
            if (type(method).__name__, self._runner.device) not in _LIVE:
                raise InvalidArgument(
                    f"{path}: weightcast has not been tried with {type(method).__name__} on "
                    f"{self._runner.device}, only unquantised layers on the CPU; use update_weights_from_disk"
                )


@functools.cache
def warn_if_untested(version: str) -> None:
    """Once in a process."""
    if version not in TESTED:
        _log.warning(
            "weightcast was tried with SGLang %s; this is %s. Compare tokens with a fresh engine before you "
            "rely on it (docs/adapters.md)",
            ", ".join(TESTED),
            version,
        )


def _refuse_settings(args: Any) -> None:
    refused: Mapping[str, tuple[bool, str]] = {
        "enable_eplb": (args.enable_eplb, "which moves experts between ranks while weights arrive"),
        "enable_lora": (bool(args.enable_lora), "which renames the model's layers"),
        "lora_paths": (bool(args.lora_paths), "which renames the model's layers"),
        "dp_size": (args.dp_size > 1, "and only 1 has been tried"),
        "pp_size": (args.pp_size > 1, "and only 1 has been tried"),
        "cpu_offload_gb": (args.cpu_offload_gb > 0, "which moves the parameters between two steps"),
        "disaggregation_mode": (args.disaggregation_mode != "null", "which has not been tried"),
    }
    for name, (given, why) in refused.items():
        if value := given and getattr(args, name):
            raise InvalidArgument(
                f"SGLang's setting {name} is {value}, {why}; start SGLang without --{name.replace('_', '-')}"
            )


def _refuse_model(updater: Any, model: torch.nn.Module) -> None:
    """What SGLang's own updates refuse, and models whose processing changes parameters."""
    updater._assert_weight_cache_inactive("an update by weightcast")
    if reason := weight_updater._unsupported_derived_weight_cache_error(model):
        raise InvalidArgument(f"{reason}; start SGLang again to load new weights")
    if hasattr(model, "post_load_weights"):
        raise InvalidArgument(
            f"{type(model).__name__} derives weights of its own after loading, which was not tried; use "
            "SGLang's update_weights_from_disk"
        )
    packed = [path for path, layer in model.named_modules() if getattr(layer, "use_intel_amx_backend", False)]
    if packed or (cpu_has_amx_support() and next(model.parameters()).device.type == "cpu"):
        raise InvalidArgument(
            f"{packed[0] if packed else type(model).__name__}: SGLang packs weights for AMX in place and "
            "cannot unpack them; start SGLang again to load new weights"
        )
