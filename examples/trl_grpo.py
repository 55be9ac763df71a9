"""TRL's own GRPOTrainer, with two inference engines that get its weights from weightcast.

pip install trl weightcast torch; python examples/trl_grpo.py     # about a minute on two CPU cores

The trainer calls `Engines` for rollouts (TRL's `rollout_func`). It publishes the policy's weights, and when
both engines serve them, each generates half of the completions. The model is small and starts from random
weights; it learns to repeat the digit of its prompt. For a model of your own, change `make_model`, `reward`
and `main`'s options.
"""

import itertools
import multiprocessing as mp
import os
import statistics
import sys
import tempfile

import torch
import transformers

import weightcast as wc

ENGINES, STEPS, PROMPTS, GENERATIONS, LENGTH = 2, 60, 16, 8, 6
PATIENCE = 120  # Seconds for an update, and for a rollout.


def make_model() -> torch.nn.Module:
    """Trainer and engines make the same one; the engines' weights are replaced by the first version."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=14, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=11, eos_token_id=12, pad_token_id=13,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token for each of ten digits and ":"."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = [*"0123456789:", "<bos>", "<eos>", "<pad>"]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, "<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """The share of a completion that is the prompt's digit."""
    return [
        completion.count(prompt[0]) / LENGTH for prompt, completion in zip(prompts, completions, strict=True)
    ]


# --- An engine: a process that serves what weightcast brings


def serve(controller: str, name: str, work: mp.Queue, done: mp.Queue) -> None:
    torch.set_num_threads(1)
    model = make_model().eval()
    with wc.Inference(controller, engine=name) as worker:
        worker.register(model)
        while (order := work.get()) is not None:
            version, rows = order
            while worker.version.number < version:
                worker.wait(timeout=PATIENCE)
            done.put((name, generate(model, rows, seed=version)))


@torch.no_grad()
def generate(model: torch.nn.Module, rows: list[list[int]], seed: int) -> list[tuple[list[int], list[float]]]:
    """Tokens and their log-probabilities, for prompts of equal length."""
    torch.manual_seed(seed)
    ids = torch.tensor(rows)
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=LENGTH,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    tokens = found.sequences[:, ids.shape[1] :]
    logits = torch.stack(found.logits, 1).float().log_softmax(-1)
    logprobs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    eos = model.config.eos_token_id
    lengths = [row.index(eos) + 1 if eos in row else len(row) for row in tokens.tolist()]
    return [(a[:n], b[:n]) for a, b, n in zip(tokens.tolist(), logprobs.tolist(), lengths, strict=True)]


# --- The trainer's side: what TRL calls


class Engines:
    """Publishes the policy, and has the engines complete the prompts."""

    def __init__(self, trainer: wc.Trainer, work: list[mp.Queue], done: mp.Queue) -> None:
        self._trainer, self._work, self._done = trainer, work, done
        self._version = 0
        self.seconds: list[float] = []  # Of each update.

    def __call__(self, prompts: list[str], trl: transformers.Trainer) -> dict[str, list]:
        if self._version == 0:
            self._trainer.register(trl.model)
        self._version += 1
        update = self._trainer.publish(self._version)
        rows = trl.processing_class(prompts)["input_ids"]
        for number, queue in enumerate(self._work):
            queue.put((self._version, rows[number :: len(self._work)]))
        # Returns when both engines have these weights; TRL's optimizer changes them only after the rollouts.
        self.seconds.append(update.wait(PATIENCE).seconds)
        answers = dict(self._done.get(timeout=PATIENCE) for _ in self._work)
        # Dealt out in turn, so taken back in turn.
        parts = [answers[f"engine-{number}"] for number in range(len(self._work))]
        made = [one for one in itertools.chain(*itertools.zip_longest(*parts)) if one is not None]
        return {
            "prompt_ids": rows,
            "completion_ids": [tokens for tokens, _ in made],
            "logprobs": [logprobs for _, logprobs in made],
        }


def train(engines: Engines, folder: str) -> list[float]:
    """The mean reward of each step."""
    import datasets
    import trl

    options = trl.GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
        max_steps=STEPS, logging_steps=1, learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, seed=0,
        per_device_train_batch_size=PROMPTS * GENERATIONS, num_generations=GENERATIONS,
        max_completion_length=LENGTH,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=make_model(),
        reward_funcs=reward,
        args=options,
        train_dataset=datasets.Dataset.from_dict({"prompt": [f"{one % 10}:" for one in range(1000)]}),
        processing_class=make_tokenizer(),
        rollout_func=engines,
    )
    trainer.train()
    return [row["reward"] for row in trainer.state.log_history if "reward" in row]


def main() -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    torch.set_num_threads(1)
    context = mp.get_context("spawn")
    work, done = [context.Queue() for _ in range(ENGINES)], context.Queue()
    # min_engines: the first version waits for both.
    with (
        tempfile.TemporaryDirectory() as folder,
        wc.Controller("127.0.0.1:0", settings={"min_engines": ENGINES}) as controller,
    ):
        processes = [
            context.Process(
                target=serve, args=(controller.address, f"engine-{one}", work[one], done), daemon=True
            )
            for one in range(ENGINES)
        ]
        for process in processes:
            process.start()
        with wc.Trainer(controller.address) as trainer:
            engines = Engines(trainer, work, done)
            rewards = train(engines, folder)
            for queue in work:
                queue.put(None)
            for process in processes:
                process.join(PATIENCE)
    if any(process.exitcode != 0 for process in processes):
        sys.exit("an engine has failed; its words are above")
    first, last = statistics.fmean(rewards[:4]), statistics.fmean(rewards[-4:])
    took = sorted(1e3 * one for one in engines.seconds[1:])
    print(
        f"{len(engines.seconds)} versions to {ENGINES} engines, median {statistics.median(took):.1f} ms "
        f"({took[0]:.1f}-{took[-1]:.1f}); reward {first:.2f} -> {last:.2f}"
    )


if __name__ == "__main__":
    main()
