#!/usr/bin/env python3
"""How long vLLM's streams pause for an update: from an old version's last token to the new one's first.

One vLLM with TP=1 in this process, one trainer in another, a model with the shape of Qwen2.5-0.5B and random
weights, four requests in flight. Run it with the Python of `.engines/vllm` (`make test-engines` makes that).

    pause       seconds in which no request got a token, one step included
    processing  what of it vLLM's own functions took, as they do in its own reload: they put each layer's old
                tensors aside, process the new ones, and copy them to the old addresses
    step        one step, the median of those before: the new version's first token must be computed
    rest        pause - processing - step: weightcast's part
    disk        the pause of vLLM's own reload of a checkpoint that is in the page cache
    floor       one copy of the model's bytes into memory that is in use, by one thread

and what processing and the rest consist of.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "engines"))

SHAPE = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True,
    "max_position_embeddings": 2048, "bos_token_id": 0, "eos_token_id": 1,
}  # fmt: skip
REQUESTS = 4
STEPS = 8  # Before each update, of which one step's time is the median.


def make_model() -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(**SHAPE, dtype=torch.bfloat16)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def train(controller: str, folder: str, pipe: Connection) -> None:
    """The trainer's process: publishes when told, and says when the bytes have left."""
    import torch

    import weightcast as wc
    from weightcast.torch import checkpoint_shards

    model = make_model()
    model.save_pretrained(folder)
    with wc.Trainer(controller) as trainer:
        trainer.register(lambda: checkpoint_shards(model))
        pipe.send("registered")
        while (version := pipe.recv()) is not None:
            with torch.no_grad():
                model.model.norm.weight += 0.01
            update = trainer.publish(version)
            update.wait_sources(120)
            pipe.send("landed")
            update.wait(120)


class Stopwatch:
    """Adds up what calls of some functions take, by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def reset(self) -> None:
        self.seconds = dict.fromkeys(self.seconds, 0.0)

    def around(self, part: str, owner: Any, name: str) -> None:
        call = getattr(owner, name)
        self.seconds.setdefault(part, 0.0)

        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                self.seconds[part] += time.perf_counter() - began

        setattr(owner, name, timed)


PROCESSING = ("vLLM puts old tensors aside", "vLLM processes layers", "vLLM copies to old addresses")
OURS = ("begin and receive", "commit and served")


class Bench:
    def __init__(self, folder: str, address: str) -> None:
        from vllm import LLM
        from vllm.model_executor.model_loader.reload import layerwise

        import weightcast as wc
        from weightcast.vllm import reload

        self._llm = LLM(
            model=folder, dtype="bfloat16", enforce_eager=True, max_model_len=1024, max_num_seqs=REQUESTS,
            enable_prefix_caching=False, skip_tokenizer_init=True, disable_log_stats=True,
            distributed_executor_backend="uni", weight_transfer_config={"backend": "weightcast"},
        )  # fmt: skip
        self._llm.init_weight_transfer_engine({"init_info": {"controller": address}})
        self._watch = watch = Stopwatch()
        watch.around(PROCESSING[0], layerwise, "initialize_layerwise_reload")
        watch.around(PROCESSING[1], reload, "_process_after_loading")
        watch.around(PROCESSING[2], layerwise, "_copy_and_restore_kernel_tensors")
        for name in ("begin", "receive"):
            watch.around(OURS[0], wc.Inference, name)
        for name in ("commit", "served"):
            watch.around(OURS[1], wc.Inference, name)

    def begin(self) -> None:
        from vllm import SamplingParams, TokensPrompt

        options = SamplingParams(temperature=0, max_tokens=900, ignore_eos=True, detokenize=False)
        for number in range(REQUESTS):
            prompt = TokensPrompt(prompt_token_ids=[number + 2] * 16)
            self._llm.llm_engine.add_request(f"request-{number}", prompt, options)
        self._llm.llm_engine.step()  # The prompts.

    def step(self) -> float:
        began = time.perf_counter()
        assert len(self._llm.llm_engine.step()) == REQUESTS, "the requests have ended"
        return time.perf_counter() - began

    def until(self, pipe: Connection) -> None:
        """Generates while the bytes arrive."""
        while not pipe.poll():
            self.step()
        pipe.recv()

    def pause(self, change: Callable[[], Any]) -> dict[str, float]:
        step = statistics.median(self.step() for _ in range(STEPS))
        self._watch.reset()
        began = time.perf_counter()  # The last token of the old version has just come.
        change()
        changed = time.perf_counter()
        self.step()
        now = time.perf_counter()
        parts = dict(self._watch.seconds)
        processing = sum(parts[name] for name in PROCESSING)
        parts["the first step, more than others"] = now - changed - step
        parts["other"] = changed - began - processing - sum(parts[name] for name in OURS)
        pause = now - began
        return {
            "pause": pause,
            "processing": processing,
            "step": step,
            "rest": pause - processing - step,
            **parts,
        }

    def update(self) -> None:
        self._llm.start_weight_update()
        self._llm.update_weights({"update_info": {}})
        self._llm.finish_weight_update(None)

    def reload(self) -> None:
        self._llm.collective_rpc("reload_weights")


def one_copy(size: int) -> float:
    import torch

    source, sink = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    found = []
    for _ in range(5):
        began = time.perf_counter()
        sink.copy_(source)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure(turns: int) -> dict[str, Any]:
    import weightcast as wc

    spawn = mp.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder, wc.Controller("127.0.0.1:0") as controller:
        trainer = spawn.Process(target=train, args=(controller.address, folder, theirs), daemon=True)
        trainer.start()
        ours.recv()
        bench = Bench(folder, controller.address)
        bench.begin()
        updates, disk = [], []
        for turn in range(turns + 1):  # The first one makes the connections.
            # The first of two frees what vLLM's own reload leaves behind: a packed copy of the head's own.
            for number in (1, 2):
                ours.send(2 * turn + number)
                bench.until(ours)
                update = bench.pause(bench.update)
            reloaded = bench.pause(bench.reload)
            if turn:
                updates.append(update)
                disk.append(reloaded["pause"])
        ours.send(None)
        trainer.join(30)
        floor = one_copy(sum(file.stat().st_size for file in pathlib.Path(folder).glob("*.safetensors")))
    found = {name: statistics.median(one[name] for one in updates) for name in updates[0]}
    return {
        **found,
        "disk": statistics.median(disk),
        "floor": floor,
        "disk / pause": statistics.median(a / b["pause"] for a, b in zip(disk, updates, strict=True)),
        "turns": {"updates": updates, "disk": disk},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="measured updates and reloads (5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        from vllm_processes import environment

        with tempfile.TemporaryDirectory() as names:
            env = environment(pathlib.Path(names), VLLM_ENABLE_V1_MULTIPROCESSING="0")
            sys.exit(os.spawnve(os.P_WAIT, sys.executable, [sys.executable, *sys.argv], env))
    found = measure(options.turns)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        if isinstance(value, float) and name != "disk / pause":
            print(f"{name:34} {1000 * value:8.1f} ms")
    print(f"{'disk / pause':34} {found['disk / pause']:8.1f}")


if __name__ == "__main__":
    main()
