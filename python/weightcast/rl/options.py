"""What `python -m weightcast.rl` can be told: by flags, and by a file of the same names."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import json
import math
import pathlib
import typing
from collections.abc import Callable
from typing import Any, Literal

from .. import InvalidArgument

_HELP_WIDTH = 100
ONLY_BUILT_IN = ("tiny", "tiny-qwen")  # Models of which there is no trained one.
_LEAST_LEASE = 0.5  # Seconds. Heartbeats come several times in a lease, between two steps of a model.

_Range = tuple[Callable[[float], bool], str]  # Which numbers an option may be, and that in words.
_AT_LEAST_1: _Range = (lambda value: value >= 1, "at least 1")
_AT_LEAST_0: _Range = (lambda value: value >= 0, "0 or more")
_NOT_NEGATIVE: _Range = (lambda value: 0 <= value < math.inf, "0 or more, and finite")
_POSITIVE: _Range = (lambda value: 0 < value < math.inf, "above 0, and finite")
_UNIT: _Range = (lambda value: 0 <= value <= 1, "in [0, 1]")
_LEASE: _Range = (
    lambda value: _LEAST_LEASE <= value < math.inf,
    f"at least {_LEAST_LEASE:g} s, since a busy process is late by more, and finite",
)


def _option(default: Any, help: str, within: _Range | None = None, *, group: str = "") -> Any:
    """group: the title in --help of this option and of those below it."""
    return dataclasses.field(default=default, metadata={"help": help, "range": within, "group": group})


@dataclasses.dataclass
class Options:
    """Counts are of what their name says, times are seconds, rates are per step."""

    num_training: int = _option(2, "trainer ranks", _AT_LEAST_1, group="processes")
    num_inference: int = _option(2, "inference engines, one rank each", _AT_LEAST_1)
    num_shards: int = _option(1, "ranks of an engine; only 1, vLLM and SGLang have more")
    role: Literal["", "trainer", "inference"] = _option("", "of this torchrun or process; empty: all in one")
    controller_rank: int = _option(-1, "of the controller; -1: the one after the trainers, else trainer 0")
    controller: str = _option("", "host:port of a controller that runs already; needed with --role inference")
    rollout_queue: str = _option("", "host:port of trainer 0's work and rollouts; empty: any free port")
    engine: str = _option("", "name of this engine (--role inference); empty: from the host and process")
    device: Literal["auto", "cpu", "cuda"] = _option("auto", "auto: cuda if GPUs are named below, else cpu")
    trainer_devices: str = _option("", "GPUs of each host's trainers, as 0,1; empty: from 0 on")
    engine_devices: str = _option("", "GPUs of each host's engines, as 2,3; empty: those after its trainers'")
    backend: Literal["", "gloo", "nccl"] = _option("", "of torch.distributed; empty: nccl on GPUs, else gloo")
    lease: float = _option(5.0, "a process that sends no heartbeat for this long is declared dead", _LEASE)
    timeout: float = _option(300.0, "limit of an iteration's rollouts, and of an update", _POSITIVE)
    seed: int = _option(0, "of everything random")

    model_name: str = _option("tiny", "tiny, tiny-qwen, a folder, or a name on the hub", group="model")
    random_weights: bool = _option(False, "gpt2 or Qwen/Qwen2.5-0.5B from random weights, bytes as tokens")
    dtype: Literal["float32", "bfloat16"] = _option(
        "float32", "in which trainers compute and engines hold the model; trainers keep it in float32"
    )
    trainer: Literal["ddp", "fsdp2"] = _option("ddp", "how trainers share the model")

    task: Literal["", "sort", "text"] = _option("", "empty: sort for tiny models, else text", group="data")
    digits: int = _option(4, "how many digits the sorting task has", _AT_LEAST_1)
    prompts: str = _option("", 'FILE.jsonl with one {"prompt": …} a line, in place of the task\'s')
    reward: str = _option("", "module:function(prompts, completions, **columns); empty: the task's")
    eval_every: int = _option(0, "iterations from one evaluation to the next; 0: none", _AT_LEAST_0)
    eval_prompts: int = _option(500, "held-out prompts of an evaluation", _AT_LEAST_1)

    algorithm: Literal["ppo", "grpo"] = _option("ppo", "what the trainers optimise", group="algorithm")
    rl_iterations: int = _option(10, "iterations", _AT_LEAST_1)
    ppo_epochs: int = _option(1, "passes over the rollouts of an iteration", _AT_LEAST_1)
    minibatches: int = _option(1, "optimizer steps of a pass", _AT_LEAST_1)
    micro_batch: int = _option(0, "sequences of one gradient, to bound memory; 0: a minibatch", _AT_LEAST_0)
    learning_rate: float = _option(1e-5, "of Adam, for trained models; random weights: some 1e-3", _POSITIVE)
    lr_decay: bool = _option(False, "the learning rate falls in a line over --rl_iterations")
    clip: float = _option(0.2, "of the policy's ratio", _POSITIVE)
    kl_coefficient: float = _option(0.0, "weight of the KL to the reference; 0: none is kept", _NOT_NEGATIVE)
    entropy_coefficient: float = _option(0.0, "weight of the entropy bonus", _NOT_NEGATIVE)
    value_coefficient: float = _option(0.5, "weight of the value loss (ppo)", _NOT_NEGATIVE)
    gamma: float = _option(1.0, "discount (ppo)", _UNIT)
    gae_lambda: float = _option(0.95, "of generalised advantage estimation (ppo)", _UNIT)
    max_grad_norm: float = _option(1.0, "gradients are clipped to this norm; 0: not at all", _AT_LEAST_0)

    rollouts_per_gpu: int = _option(8, "prompts of an engine in an iteration", _AT_LEAST_1, group="rollout")
    samples_per_prompt: int = _option(0, "completions of each prompt; 0: 8 (grpo), 1 (ppo)", _AT_LEAST_0)
    max_gen_length: int = _option(16, "tokens generated at most", _AT_LEAST_1)
    temperature: float = _option(1.0, "of sampling", _POSITIVE)
    mode: Literal["sync", "async"] = _option("sync", "async: generation goes on during training and transfer")
    max_staleness: int = _option(1, "async: versions behind, and iterations ahead, at most", _AT_LEAST_0)
    inflight: Literal["finish", "keep"] = _option("finish", "sequences at a new version: finish, or keep")
    item_prompts: int = _option(0, "prompts generated together; 0: chosen", _AT_LEAST_0)

    sync: Literal["p2p", "collective", "both", "none"] = _option(
        "p2p",
        "p2p: weightcast; collective: torch.distributed; both, by one clock; none: engines keep version 0",
        group="transfer",
    )
    sync_every: int = _option(1, "publish after every so many iterations", _AT_LEAST_1)
    transport: str = _option("", "transports that weightcast may use (tcp, shm, verbs); empty: it chooses")
    wire_dtype: Literal["", "float32", "bfloat16", "float16"] = _option("", "of engines; empty: --dtype")
    verify: bool = _option(False, "compare SHA-256 of every tensor after each update")

    output: str = _option("", "folder of this run's report; empty: runs/<time>", group="output")
    checkpoint_dir: str = _option("", "folder of checkpoints; with --resume also one of them")
    checkpoint_every: int = _option(0, "iterations between checkpoints; 0: one at the end", _AT_LEAST_0)
    resume: bool = _option(False, "go on from the last complete checkpoint")
    export_hf: str = _option("", "folder for the trained model in transformers' format")
    log_samples: int = _option(4, "completions of each iteration in samples.jsonl; 0: none", _AT_LEAST_0)
    log: str = _option("", "tensorboard, wandb, or both with a comma")
    plots: str = _option("", "folder for PNG plots")

    def __post_init__(self) -> None:
        if self.task == "":
            self.task = "sort" if self.model_name in ONLY_BUILT_IN else "text"

    @property
    def samples(self) -> int:
        return self.samples_per_prompt or (8 if self.algorithm == "grpo" else 1)

    @property
    def prompts_of_iteration(self) -> int:
        return self.rollouts_per_gpu * self.num_inference

    def share_of(self, trainer: int) -> slice:
        """A trainer's prompts of an iteration; shares differ by one at most."""
        whole, trainers = self.prompts_of_iteration, self.num_training
        return slice(trainer * whole // trainers, (trainer + 1) * whole // trainers)

    @property
    def prompts_of_item(self) -> int:
        """By default as many as give each engine one item of an iteration."""
        items = -(-self.num_inference // self.num_training)
        return self.item_prompts or -(-self.prompts_of_iteration // (items * self.num_training))

    @property
    def engine_dtype(self) -> str:
        """Of an engine's parameters."""
        return self.wire_dtype or self.dtype

    @property
    def on_gpu(self) -> bool:
        named = self.trainer_devices or self.engine_devices
        return self.device == "cuda" or (self.device == "auto" and named != "")

    @property
    def uses_nccl(self) -> bool:
        return self.on_gpu and self.backend != "gloo"

    @property
    def uses_weightcast(self) -> bool:
        return self.sync in ("p2p", "both")

    def settings(self) -> dict[str, Any]:
        """Of weightcast's workers."""
        found: dict[str, Any] = {"lease": self.lease, "timeout": self.timeout, "grant_timeout": self.timeout}
        return found | ({"transport": self.transport} if self.transport else {})

    def controller_settings(self) -> dict[str, Any]:
        """Of this run's controller: version 0 waits for all engines; one that dies fails no update."""
        return {**self.settings(), "min_engines": self.num_inference, "policy": "each"}

    def check(self) -> None:
        """Raises InvalidArgument for what can be seen wrong without any other process."""
        self._check_numbers()
        self._check_task()
        self._check_ways()
        self._check_devices()
        self._check_output()

    def _check_numbers(self) -> None:
        """Each by itself. What is no number (nan) is in no range."""
        for field in dataclasses.fields(self):
            if field.metadata["range"]:
                allowed, must = field.metadata["range"]
                value = getattr(self, field.name)
                _require(allowed(value), f"--{field.name} is {value}; it must be {must}")

    def _check_task(self) -> None:
        _require(
            self.prompts_of_iteration >= self.num_training,
            f"{self.num_inference} engines x --rollouts_per_gpu {self.rollouts_per_gpu} are fewer prompts "
            f"than {self.num_training} trainers; raise --rollouts_per_gpu",
        )
        _require(self.digits <= 10, f"--digits is {self.digits}; it must be at most 10: no more differ")
        _require(
            self.algorithm != "grpo" or self.samples > 1,
            "--algorithm grpo compares samples of one prompt: --samples_per_prompt must be at least 2",
        )

    def _check_ways(self) -> None:
        """By which weights reach engines, and where the processes find each other."""
        _require(
            self.num_shards == 1,
            f"--num_shards is {self.num_shards}; it must be 1: an engine of this loop is one process, which "
            "holds the whole model; engines of several ranks are vLLM's or SGLang's (docs/adapters.md)",
        )
        _require(
            self.mode == "sync" or self.sync in ("p2p", "none"),
            f"--mode async moves weights beside generation, which --sync {self.sync} cannot; use --sync p2p",
        )
        _require(
            self.role == "" or self.sync in ("p2p", "none"),
            f"--role has no process group of all, which --sync {self.sync} needs; use --sync p2p",
        )
        if self.role:
            _require(
                self.controller != "" or not (self.role == "inference" or self.uses_weightcast),
                f"--role {self.role} needs --controller HOST:PORT, the same for trainers and engines",
            )
            _require(
                self.rollout_queue != "", f"--role {self.role} needs --rollout_queue HOST:PORT of trainer 0"
            )
        for name in ("controller", "rollout_queue"):
            value = getattr(self, name)
            _require(
                value == "" or value.rpartition(":")[2].isdecimal(), f"--{name} is {value!r}; give HOST:PORT"
            )

    def _check_devices(self) -> None:
        for name in ("trainer_devices", "engine_devices"):
            value = getattr(self, name)
            _require(
                value == "" or all(one.isdecimal() for one in value.split(",")),
                f"--{name} is {value!r}; give numbers of GPUs, as 0,1",
            )
            _require(value == "" or self.on_gpu, f"--{name} names GPUs, --device cpu uses none; drop one")
        _require(
            self.on_gpu or self.backend != "nccl",
            "--backend nccl moves what lies on GPUs: add --device cuda, or use --backend gloo",
        )
        _require(
            not self.on_gpu or self.uses_nccl or self.trainer == "ddp",
            f"--trainer {self.trainer} on GPUs needs --backend nccl, as gloo gathers no shards there",
        )

    def _check_output(self) -> None:
        _require(not self.resume or self.checkpoint_dir != "", "--resume needs --checkpoint_dir")
        _require(
            self.checkpoint_dir == ""
            or self.rl_iterations % self.sync_every == self.checkpoint_every % self.sync_every == 0,
            "a checkpoint holds what the engines have: --checkpoint_every and --rl_iterations must be "
            f"multiples of --sync_every {self.sync_every}",
        )
        for one in filter(None, self.log.split(",")):
            _require(one in ("tensorboard", "wandb"), f"--log knows tensorboard and wandb, not '{one}'")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidArgument(otherwise)


def parse(arguments: list[str]) -> Options:
    """Flags over the file of --config over the defaults. Raises InvalidArgument; --help ends the process."""
    parser = _Parser(
        prog="python -m weightcast.rl",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        usage="%(prog)s [--OPTION VALUE ...]",
        formatter_class=functools.partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=30, width=_HELP_WIDTH
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="JSON object of options by the names below; flags win"
    )
    group: Any = parser
    hints = typing.get_type_hints(Options)
    for field in dataclasses.fields(Options):
        if title := field.metadata["group"]:
            group = parser.add_argument_group(title)
        kind = hints[field.name]
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else None
        shown = "" if field.default == "" or field.default is False else f" (default {field.default})"
        common: dict[str, Any] = {"default": None, "help": field.metadata["help"].replace("%", "%%") + shown}
        if kind is bool:
            group.add_argument(f"--{field.name}", action=argparse.BooleanOptionalAction, **common)
        elif choices:
            group.add_argument(f"--{field.name}", choices=[one for one in choices if one], **common)
        else:
            group.add_argument(f"--{field.name}", type=kind, metavar=kind.__name__.upper(), **common)
    given = vars(parser.parse_args(arguments))
    file = given.pop("config")
    values = _from_file(file) if file else {}
    values |= {name: value for name, value in given.items() if value is not None}
    options = Options(**values)
    options.check()
    return options


def _from_file(file: str) -> dict[str, Any]:
    try:
        values = json.loads(pathlib.Path(file).read_text())
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"--config {file} cannot be read ({error}); give a file with one JSON object of options"
        ) from None
    _require(isinstance(values, dict), f"--config {file} must be one JSON object of options")
    hints = typing.get_type_hints(Options)
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            meant = f"'{near[0]}' is one" if near else "--help lists them"
            raise InvalidArgument(f"--config {file}: there is no option '{name}'; {meant}")
        kind = hints[name]
        if typing.get_origin(kind) is Literal:
            choices = typing.get_args(kind)
            _require(
                value in choices,
                f"--config {file}: {name} is {value!r}; choose of {', '.join(filter(None, choices))}",
            )
        elif kind is float and type(value) is int:
            values[name] = float(value)
        else:
            said = f"--config {file}: {name} is {value!r}; it must be of type {kind.__name__}"
            _require(type(value) is kind, said)
    return values


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise InvalidArgument(f"{message}; see python -m weightcast.rl --help")


_DESCRIPTION = "Reinforcement learning of a language model: trainers and engines in processes of their own."
_EPILOG = """examples:
  torchrun --standalone --nproc_per_node 4 -m -- weightcast.rl --config examples/rl_sort.json

  PLACES="--controller head:29750 --rollout_queue head:29600"
  torchrun --nproc_per_node 2 -m weightcast.rl --role trainer $PLACES
  python -m weightcast.rl --role inference --engine a $PLACES"""
