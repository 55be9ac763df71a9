"""A model of vLLM's gets a version, without an engine: `vllm_switch.py PATH PARAMETER`.

Prints whether the spare memory is as it was, and nobody keeps a part of it; what `verify` says of the model,
and then of one wrong element in PARAMETER. If PARAMETER is "unprepared", the last is of a switch without the
preparation that the kernel of experts needs on CPU.
"""

from __future__ import annotations

import gc
import pathlib
import sys

import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import (
    CPUUnquantizedExperts,
    X86CPUUnquantizedExperts,
)
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading

from weightcast.errors import Corrupt
from weightcast.vllm import check
from weightcast.vllm.headers import offered_by
from weightcast.vllm.reload import Reload
from weightcast.vllm.verify import verify


def switch(reload: Reload) -> None:
    """vLLM's processing gets the spare memory itself, from which the next update is compared and read."""
    spare = [one for tensors in reload.by_layer().values() for one in tensors.values()]
    storage, before = spare[0].untyped_storage(), [one.clone() for one in spare]
    users = torch._C._storage_Use_Count(storage._cdata)
    reload.switch()
    gc.collect()
    changed = sum(not torch.equal(*pair) for pair in zip(spare, before, strict=True))
    kept = torch._C._storage_Use_Count(storage._cdata) - users
    print(f"spare: {changed} of {len(spare)} tensors changed, {kept} kept")


def main(path: str, parameter: str) -> None:
    config = check._config(path, 1, "bfloat16")
    with check._one_process(config):
        torch.set_default_dtype(torch.bfloat16)
        model = initialize_model(config)
        torch.set_default_dtype(torch.float32)
        for one in model.parameters():
            one.data.normal_(0, 0.1)
        process_weights_after_loading(model, config.model_config, torch.device("cpu"))
        reload = Reload(model, config, torch.device("cpu"))
        for parts in reload.map(offered_by(pathlib.Path(path))).values():
            for part in parts:
                part.array.copy_(torch.randn(part.array.shape) * 0.1)
        switch(reload)
        print("verified:", verify(reload))
        if parameter == "unprepared":
            X86CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
            CPUUnquantizedExperts.process_weights_after_loading = lambda self, layer: None
            reload.switch()
        else:
            path, _, name = parameter.rpartition(".")
            getattr(reload.layer(path), name).data.view(-1)[5] += 1
        try:
            print("verified:", verify(reload))
        except Corrupt as error:
            print("verified:", error)


if __name__ == "__main__":
    main(*sys.argv[1:])
