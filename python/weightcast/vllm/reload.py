"""What of vLLM's model a version is put into: the mapping of its loader, spare memory, and the switch.

The names of `vllm.model_executor.model_loader.reload` that are used here are private to vLLM;
`supported.TESTED` says with which versions they were tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS
from vllm.model_executor.model_loader.reload.utils import get_layer_tensors
from vllm.platforms import current_platform

from .._loading import in_dtype, refuse_unused, shards_of, unwanted
from ..capture import Capture, Landing, capture
from ..errors import InvalidArgument
from ..memory import allocate
from ..shards import Shard
from .supported import leaves_as_it_is, only_reads, refuse_method, refuse_settings

_ALIGNMENT = 64


class _Alone:
    """A layer without those inside it, for vLLM's functions that walk `modules()`."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self._layer = layer

    def modules(self) -> list[torch.nn.Module]:
        return [self._layer]


class Reload:
    """The model of one worker and its spare memory. Only in calls that vLLM makes between two steps."""

    def __init__(
        self, model: torch.nn.Module, vllm_config: Any, device: torch.device, *, live: bool = False
    ) -> None:
        """live: what lands in a parameter that `holds_bytes` lands there itself, without a spare copy."""
        self._live = live
        self._model, self._config, self._device = model, vllm_config, device
        self._layers: dict[str, torch.nn.Module] = dict(model.named_modules())
        self._ties = _ties(self._layers)
        self._capture = Capture([], [])
        self._targets: dict[str, torch.Tensor] = {}  # As they were while it was found.
        # By layer: tensors of the loader's layout that take the place of the layer's while it is processed,
        # and those that processing leaves as they are (norms, biases), which are copied.
        self._processed: dict[str, dict[str, torch.Tensor]] = {}
        self._copied: dict[str, dict[str, torch.Tensor]] = {}
        self._twins: dict[str, str] = {}
        refuse_settings(vllm_config, self._layers)

    def map(self, offered: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, list[Shard]]:
        """Finds the mapping, allocates the spare memory, and returns what to register for each tensor."""
        found = self.find(offered)
        live = self._live_targets(found)
        return shards_of(found.landings, self._spare(found, live), live)

    def find(self, offered: Mapping[str, tuple[str, tuple[int, ...]]]) -> Capture:
        """The mapping alone, which is kept. Errors: InvalidArgument, naming what does not fit."""
        for path, layer in self._layers.items():
            refuse_method(path, layer)
        with self._on_meta() as targets:
            found = self._follow(offered, targets)
            self._refuse_missing(found, targets, offered)
        self._capture, self._targets = found, targets
        self._refuse_unused(offered)
        return found

    def _live_targets(self, found: Capture) -> dict[str, torch.Tensor]:
        """The model's own tensors, where they may be written themselves."""
        if not self._live:
            return {}
        special = {fill.target for fill in found.fills} | {name for names in self._ties for name in names}
        return {
            name: tensor
            for name, tensor in _named_tensors(self._layers).items()
            if name in self._targets and name not in special and self.holds_bytes(name)
            if _layout(tensor) == _layout(self._targets[name])
        }

    def spare_bytes(self, found: Capture) -> int:
        """How much memory `map` allocates."""
        return sum(self._spare_sizes(found).values())

    def holds_bytes(self, name: str) -> bool:
        """Whether the model's tensor holds what the loader writes, so that processing changes nothing."""
        path, _, own = name.rpartition(".")
        method = getattr(self._layers[path], "quant_method", None)
        if own in SKIP_TENSORS or not isinstance(method, QuantizeMethodBase):
            return True
        return leaves_as_it_is(method)

    def unwanted(self, offered: Mapping[str, Any]) -> list[str]:
        """Tensors of the trainers that vLLM's model leaves out on purpose."""
        config = self._config.model_config.hf_text_config
        return unwanted(self._capture, offered, tied=getattr(config, "tie_word_embeddings", False))

    @property
    def landings(self) -> list[Landing]:
        return self._capture.landings

    def layer(self, path: str) -> torch.nn.Module:
        return self._layers[path]

    def by_layer(self) -> dict[str, dict[str, torch.Tensor]]:
        """The spare tensors, by layer and by the name in it."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for kind in (self._processed, self._copied):
            for path, tensors in kind.items():
                found.setdefault(path, {}).update(tensors)
        return found

    def landings_in(self, name: str) -> list[Landing]:
        """What lands in a tensor of the model, or in the one to which it is tied."""
        name = self._tied_to(dict.fromkeys(landing.target for landing in self.landings)).get(name, name)
        return [landing for landing in self.landings if landing.target == name]

    # --- The mapping ----------------------------------------------------------------------------------

    def _follow(self, offered: Mapping[str, Any], targets: Mapping[str, torch.Tensor]) -> Capture:
        dtype = self._config.model_config.dtype
        return capture(self._model.load_weights, in_dtype(offered, dtype), targets)

    def _tied_to(self, used: Collection[str]) -> dict[str, str]:
        """Tensors that the loader does not fill, as they are one of these, which it does, in another layer.

        Without weights the two are two. Each layer is processed: on CPU each has a packed copy of its own.
        """
        return {
            name: next(one for one in names if one in used)
            for names in self._ties
            if any(one in used for one in names)
            for name in names
            if name not in used
        }

    @contextmanager
    def _on_meta(self) -> Iterator[dict[str, torch.Tensor]]:
        """The model as before its weights were loaded, with nothing in memory; as it was at the end."""
        own = {id(one): one for layer in self._layers.values() for one in get_layer_tensors(layer).values()}
        had = {key: one.__dict__.get("weight_loader") for key, one in own.items()}
        with self.settled(), torch.no_grad():
            try:
                layerwise.initialize_layerwise_reload(self._model)
                for layer in self._layers.values():
                    _unwrap_loaders(layer)
                yield _named_tensors(self._layers)
            finally:
                for layer in self._layers.values():
                    _put_back(layer)
                self._model._do_torchao_reload = self._model._original_do_torchao_reload
                for key, one in own.items():
                    if had[key] is None:
                        one.__dict__.pop("weight_loader", None)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """What vLLM's functions expect around them."""
        with set_current_vllm_config(self._config), torch.device(self._device):
            yield

    def _refuse_missing(self, found: Capture, targets: Mapping[str, torch.Tensor], offered: Any) -> None:
        """A parameter that no tensor fills."""
        wanted: dict[str, torch.Tensor] = {}
        used = {landing.target for landing in found.landings}
        tied = self._tied_to(used)
        for path, layer in self._layers.items():
            names = [_joined(path, name) for name in layer._parameters]
            wanted |= {name: targets[name] for name in names if name in targets and name not in tied}
        for name, count in found.missing(wanted).items():
            tensor = wanted[name]
            # Without padding, where vLLM (from 0.31 on) says how much a loader fills.
            if count > tensor.numel() - getattr(tensor, "weight_loader_numel", tensor.numel()):
                raise InvalidArgument(
                    f"{name} of vLLM's model: the trainers send nothing for {count} of its {tensor.numel()} "
                    f"elements; they have {len(offered)} tensors; start vLLM with the model that they train"
                )

    def _refuse_unused(self, offered: Mapping[str, Any]) -> None:
        parallel = self._config.parallel_config
        refuse_unused(
            self._capture,
            offered,
            self.unwanted(offered),
            ranks=parallel.tensor_parallel_size,
            others=parallel.pipeline_parallel_size > 1 or getattr(parallel, "enable_expert_parallel", False),
            model=f"vLLM's {type(self._model).__name__}",
        )

    def _spare_sizes(self, found: Capture) -> dict[str, int]:
        used = dict.fromkeys(landing.target for landing in found.landings)
        return {name: -(-_bytes_of(self._targets[name]) // _ALIGNMENT) * _ALIGNMENT for name in used}

    def _spare(self, found: Capture, live: Collection[str]) -> dict[str, torch.Tensor]:
        sizes, targets = self._spare_sizes(found), self._targets
        sizes = {name: size for name, size in sizes.items() if name not in live}
        memory = torch.from_numpy(allocate(sum(sizes.values())))
        spare, first = {}, 0
        for name in sizes:
            like = targets[name]
            part = memory[first : first + _bytes_of(like)].view(like.dtype)
            spare[name] = part.as_strided(like.shape, like.stride())
            first += sizes[name]
        for name, filled in {**dict(zip(sizes, sizes, strict=True)), **self._tied_to(sizes)}.items():
            path, _, own = name.rpartition(".")
            kind = self._copied if self._is_copied(name) else self._processed
            kind.setdefault(path, {})[own] = spare[filled]
        for fill in found.fills:
            if fill.target in spare:
                fill.apply(spare[fill.target])
        self._twins = self._find_twins()
        return spare

    def _is_copied(self, name: str) -> bool:
        """Whether the spare tensor is copied to the model's as it is, without vLLM's processing."""
        path, _, own = name.rpartition(".")
        target = self._targets[name]
        same = self.holds_bytes(name) and _layout(getattr(self._layers[path], own)) == _layout(target)
        return same or not target.is_meta

    def _find_twins(self) -> dict[str, str]:
        """Layers that need not be processed: to which one before them each is tied, and is processed alike.

        What vLLM's processing adds is a packed copy of the weight, in the function `cpu_linear`, which a head
        can use of the embedding. The weight itself is the same tensor.
        """
        twins: dict[str, str] = {}
        for names in self._ties:
            paths = [name.rpartition(".")[0] for name in names if name.endswith(".weight")]
            like = [path for path in paths if path in self._processed and _is_packed(self._layers[path])]
            kinds = {type(self._layers[path].quant_method) for path in like}
            if len(kinds) == 1 and all(list(self._processed[path]) == ["weight"] for path in like):
                twins |= dict.fromkeys(like[1:], like[0])
        return twins

    # --- The switch -----------------------------------------------------------------------------------

    def switch(self) -> None:
        """Puts what has landed into the model: processed as after a first load, at the same addresses.

        If it raises, some layers may have the new version and others the old one.
        """
        for path in self._twins:  # So that vLLM frees the old packed copy as soon as it has made the next.
            self._layers[path].cpu_linear = None
        with self.settled(), torch.no_grad():
            for path, layer in self._layers.items():
                if path in self._twins:
                    layer.cpu_linear = self._layers[self._twins[path]].cpu_linear
                elif path in self._processed:
                    self.process(path)
                for name, tensor in self._copied.get(path, {}).items():
                    getattr(layer, name).data.copy_(tensor)

    def process(self, path: str) -> None:
        layer, spare = self._layers[path], self._processed[path]
        info = layerwise.get_layerwise_info(layer)
        try:
            layerwise.initialize_layerwise_reload(_Alone(layer))
            live = {**info.kernel_tensors[0], **info.kernel_tensors[1]}
            self._place_loaded(layer, spare, live)
            _unwrap_loaders(layer)
            _process_after_loading(layer)
            layerwise._copy_and_restore_kernel_tensors(layer, info)
        except BaseException:
            layerwise._place_kernel_tensors(layer, info)
            raise
        finally:
            info.reset()

    def _place_loaded(
        self, layer: torch.nn.Module, spare: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor]
    ) -> None:
        """The layer as after its weights were loaded: the spare tensors, and its own where none is."""
        for name, tensor in get_layer_tensors(layer).items():
            if tensor.is_meta:
                loaded = live[name]
                if name in spare:
                    loaded = self._as_loaded(layer, tensor, spare[name])
                setattr(layer, name, loaded)

    def _as_loaded(self, layer: torch.nn.Module, like: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
        """The spare tensor as the layer's parameter; a copy where processing may keep or change it."""
        tensor = spare.detach() if self._device.type == "cpu" else spare.to(self._device)
        if self._device.type == "cpu" and not _spares(layer):
            tensor = tensor.clone()
        tensor.__class__ = like.__class__
        tensor.__dict__ = like.__dict__.copy()
        return tensor


def _spares(layer: torch.nn.Module) -> bool:
    """Whether processing leaves alone the memory that it is given: no copy need be made for it."""
    method = getattr(layer, "quant_method", None)
    return not isinstance(method, QuantizeMethodBase) or only_reads(method)


def _is_packed(layer: torch.nn.Module) -> bool:
    """Whether all that processing makes of the layer is `cpu_linear`."""
    return _spares(layer) and hasattr(layer, "cpu_linear") and getattr(layer, "bias", None) is None


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named_tensors(layers: Mapping[str, torch.nn.Module]) -> dict[str, torch.Tensor]:
    return {
        _joined(path, name): tensor
        for path, layer in layers.items()
        for name, tensor in get_layer_tensors(layer).items()
    }


def _ties(layers: Mapping[str, torch.nn.Module]) -> list[list[str]]:
    """Names of one and the same tensor, where it has several: tied embeddings."""
    names: dict[int, list[str]] = {}
    for name, tensor in _named_tensors(layers).items():
        names.setdefault(id(tensor), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def _process_after_loading(layer: torch.nn.Module) -> None:
    if hasattr(layer, "_already_called_process_weights_after_loading"):
        delattr(layer, "_already_called_process_weights_after_loading")
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return
    method.process_weights_after_loading(layer)
    if type(method).__name__ == "UnquantizedFusedMoEMethod" and current_platform.is_cpu():
        # vLLM does this after a first load only: its kernel would read packed weights that are not.
        method.moe_kernel.fused_experts.process_weights_after_loading(layer)
    if hasattr(layer, "update_param_tp_status"):
        layer.update_param_tp_status()


def _unwrap_loaders(layer: torch.nn.Module) -> None:
    """Without what vLLM's reload puts around loaders, which would process layers as they fill up."""
    for tensor in get_layer_tensors(layer).values():
        tensor.weight_loader = layerwise._get_original_loader(tensor)


def _put_back(layer: torch.nn.Module) -> None:
    info = layerwise.get_layerwise_info(layer)
    if info.can_load() and info.kernel_tensors is not None:
        layerwise._place_kernel_tensors(layer, info)
    info.reset()


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _bytes_of(tensor: torch.Tensor) -> int:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size() if tensor.numel() else 0
