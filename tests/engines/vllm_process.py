"""A vLLM in a process of its own, which does what lines of JSON on its standard input say.

Run by the tests: `python vllm_process.py OPTIONS`, OPTIONS being JSON. Answers are lines of JSON too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def make_engine(path: str, options: dict[str, Any]) -> Any:
    from vllm import LLM

    tp = options.get("tp", 1)
    more: dict[str, Any] = {"distributed_executor_backend": "uni"} if tp == 1 else {}
    if options.get("weightcast"):
        more["weight_transfer_config"] = {"backend": "weightcast"}
    return LLM(
        model=path, dtype="bfloat16", enforce_eager=True, max_model_len=256, max_num_seqs=8,
        enable_prefix_caching=False, skip_tokenizer_init=True, tensor_parallel_size=tp, seed=0,
        load_format=options.get("load_format", "auto"), disable_log_stats=True,
        **more, **options.get("arguments", {}),
    )  # fmt: skip


def sampling(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=2)


def answer_of(output: Any) -> dict[str, Any]:
    """Tokens, their log-probabilities, and by how much each was ahead of the next best."""
    one = output.outputs[0]
    best = [sorted((p.logprob for p in step.values()), reverse=True) for step in one.logprobs]
    return {
        "tokens": list(one.token_ids),
        "logprobs": [step[token].logprob for token, step in zip(one.token_ids, one.logprobs, strict=True)],
        "margin": min(two[0] - two[1] for two in best),
    }


class Engine:
    def __init__(self, options: dict[str, Any]) -> None:
        self._llm = make_engine(options["path"], options)

    def generate(self, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
        """One prompt at a time: the arithmetic of a batch may differ."""
        from vllm import TokensPrompt

        found = []
        for prompt in prompts:
            outputs = self._llm.generate(
                TokensPrompt(prompt_token_ids=prompt), sampling(tokens), use_tqdm=False
            )
            found.append(answer_of(outputs[0]))
        return found

    def begin(self, prompts: list[list[int]], tokens: int) -> None:
        """Requests that are in flight until `end`."""
        from vllm import TokensPrompt

        for number, prompt in enumerate(prompts):
            self._llm.llm_engine.add_request(
                f"flight-{number}", TokensPrompt(prompt_token_ids=prompt), sampling(tokens)
            )

    def steps(self, count: int) -> int:
        for _ in range(count):
            self._llm.llm_engine.step()
        return self._llm.llm_engine.get_num_unfinished_requests()

    def end(self) -> int:
        """Steps until nothing is in flight; how many tokens the requests got."""
        found = 0
        while self._llm.llm_engine.has_unfinished_requests():
            for output in self._llm.llm_engine.step():
                if output.finished:
                    found += len(output.outputs[0].token_ids)
        return found

    def init_weight_transfer_engine(self, info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, info: dict[str, Any]) -> float:
        began = time.monotonic()
        self._llm.update_weights({"update_info": info})
        return time.monotonic() - began

    def finish_weight_update(self, label: str | None = None) -> None:
        self._llm.finish_weight_update(label)

    def refuse(self, section: str, name: str, value: Any, place: dict[str, Any]) -> None:
        """Joins as if vLLM had been started with this option."""
        [worker] = [self._llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker]
        options = getattr(worker.vllm_config, section)
        had = getattr(options, name)
        object.__setattr__(options, name, value)
        try:
            self.init_weight_transfer_engine(place)
        finally:
            object.__setattr__(options, name, had)

    def plant_method(self, layer: str, place: dict[str, Any]) -> None:
        """Joins with a layer whose quantisation is another one."""
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        [worker] = [self._llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker]
        planted = worker.model_runner.model.get_submodule(layer)
        had, planted.quant_method = planted.quant_method, type("NewMethod", (UnquantizedLinearMethod,), {})()
        try:
            self.init_weight_transfer_engine(place)
        finally:
            planted.quant_method = had

    def plant_loader(self, layer: str, name: str, place: dict[str, Any]) -> None:
        """Joins with a weight loader that raises, half-way through the model's."""
        from vllm.model_executor.model_loader.reload import layerwise

        def planted(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("planted")

        [worker] = [self._llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker]
        one = worker.model_runner.model.get_submodule(layer)
        parameter = layerwise.get_layerwise_info(one).restore_metadata[0][name]
        had, parameter.weight_loader = parameter.weight_loader, planted
        try:
            self.init_weight_transfer_engine(place)
        finally:
            parameter.weight_loader = had

    def plant_row(self, layer: str, row: int) -> None:
        """vLLM's processing gets one wrong row; -1: no more."""
        from weightcast.vllm import reload

        self._processing = getattr(self, "_processing", reload._process_after_loading)

        def process(one: Any) -> None:
            if getattr(one, "prefix", "") == layer:
                one.weight.data = one.weight.data.clone()
                one.weight.data[row] += 1
            self._processing(one)

        reload._process_after_loading = self._processing if row < 0 else process

    def plant(self, layers: int) -> None:
        """vLLM's processing raises after so many layers; -1: no more."""
        from weightcast.vllm import reload

        self._processing = getattr(self, "_processing", reload._process_after_loading)
        left = [layers]

        def process(layer: Any) -> None:
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("planted")
            self._processing(layer)

        reload._process_after_loading = self._processing if layers < 0 else process


class Fresh:
    """Engines that are made again for each checkpoint: what tokens are compared with."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def answers(self, path: str, prompts: list[list[int]], tokens: int) -> list[dict[str, Any]]:
        engine = Engine({**self._options, "path": path})
        found = engine.generate(prompts, tokens)
        engine._llm.llm_engine.engine_core.shutdown()
        del engine
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
        return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What vLLM prints is no answer.
    options = json.loads(sys.argv[1])
    target = (Fresh if options.get("fresh") else Engine)(options)
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            result = {"value": getattr(target, name)(*arguments)}
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
