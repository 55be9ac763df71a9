"""Models and their tokenizers: from a folder, from the hub, or random from a built-in configuration."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from .. import InvalidArgument
from .options import ONLY_BUILT_IN

_HUB_SECONDS = 10.0  # For the hub's first answer.
_RIGHT = "correct that, or take another model (--model_name)"
_PATTERNS = ["*.json", "*.safetensors", "merges.txt"]


class ByteTokenizer:
    """A token for each byte of UTF-8, and three more. pad is never attended to."""

    bos: int | None = 256
    eos = 257
    pad = 258
    size = 259

    def encode(self, text: str) -> list[int]:
        """At least one token."""
        return list(text.encode()) or [256]

    def decode(self, tokens: Sequence[int]) -> str:
        """Up to the end of sequence; what is no byte becomes one replacement character, as 0xff does."""
        ids = itertools.takewhile(lambda token: token != self.eos, tokens)
        return bytes(min(token, 255) for token in ids).decode(errors="replace")


class FolderTokenizer:
    """A tokenizer of transformers; one without a padding token pads with the end of sequence."""

    def __init__(self, tokenizer: Any) -> None:
        if tokenizer.eos_token_id is None:
            raise InvalidArgument(
                "the tokenizer has no token for the end of a sequence; set eos_token in tokenizer_config.json"
            )
        self._tokenizer = tokenizer
        self.bos: int | None = tokenizer.bos_token_id
        self.eos: int = tokenizer.eos_token_id
        self.pad: int = self.eos if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.size = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text) or [self.eos if self.bos is None else self.bos]

    def decode(self, tokens: Sequence[int]) -> str:
        ids = itertools.takewhile(lambda token: token != self.eos, tokens)
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)


Tokenizer = ByteTokenizer | FolderTokenizer


@dataclass(frozen=True)
class Loaded:
    """A model without dropout, in evaluation mode. origin: "folder", "hub" or "random"."""

    model: PreTrainedModel
    tokenizer: Tokenizer
    origin: str


class ValueHead(nn.Linear):
    """What a state is worth: hidden states `[..., hidden]` to `[...]`. Starts at 0 everywhere."""

    def __init__(self, hidden: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(hidden, 1, dtype=dtype)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden).squeeze(-1)


BUILT_IN: dict[str, Callable[[], PretrainedConfig]] = {
    "tiny": partial(
        GPT2Config,
        vocab_size=ByteTokenizer.size,
        bos_token_id=ByteTokenizer.bos,
        eos_token_id=ByteTokenizer.eos,
        n_positions=256,
        n_embd=128,
        n_layer=3,
        n_head=4,
    ),
    "tiny-qwen": partial(
        Qwen2Config,
        vocab_size=ByteTokenizer.size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    ),
    "gpt2": GPT2Config,
    "Qwen/Qwen2.5-0.5B": partial(
        Qwen2Config,
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
    ),
}


def load(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, random: bool = False) -> Loaded:
    """The model of a folder (config.json and safetensors), of a name on the hub, or of a built-in name.

    The hub is asked as huggingface_hub is told to: HF_ENDPOINT, proxies, HF_HUB_OFFLINE, its cache.
    random: the built-in configuration of that name with random weights, the same for the same seed on every
    machine, and bytes as tokens. "tiny" and "tiny-qwen" are always so. Raises `InvalidArgument` if there is
    none available.
    """
    if name in ONLY_BUILT_IN or random:
        if name not in BUILT_IN:
            raise InvalidArgument(
                f"--random_weights: {name} is not built in; choose a --model_name of {', '.join(BUILT_IN)}"
            )
        return Loaded(_random(BUILT_IN[name](), dtype, seed), ByteTokenizer(), "random")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _from_folder(folder, dtype)
    if name.startswith((".", "/", "~")):
        raise InvalidArgument(f"--model_name: there is no folder {name}; give one that save_pretrained wrote")
    return _from_hub(name, dtype)


def initialise(model: nn.Module, seed: int) -> None:
    """Random weights as in GPT-2: matrices from N(0, 0.02), biases 0, scales of norms 1.

    One generator, so the weights depend on the seed and on the shapes alone.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def token_logits(model: nn.Module, ids: Tensor, keep: Tensor, hidden: bool) -> tuple[Tensor, Tensor | None]:
    """Logits `[kept, vocabulary]` in float32 and, if asked for, final hidden states `[kept, hidden]`.

    model: plain, or wrapped by DDP or FSDP2. ids: `[rows, time]`, padded on the right. keep: `[rows, time]`,
    True at the positions that are wanted.
    """
    columns = keep.any(0).nonzero().squeeze(1)
    output = model(input_ids=ids, use_cache=False, logits_to_keep=columns, output_hidden_states=hidden)
    logits = output.logits[keep[:, columns]].float()
    return logits, output.hidden_states[-1][keep] if hidden else None


def _random(config: PretrainedConfig, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):  # What it draws is not used, and nobody else's draws change.
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    initialise(model, seed)
    return _ready(model)


def _ready(model: PreTrainedModel) -> PreTrainedModel:
    """Without dropout: the probabilities of training are to be those of generation."""
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise InvalidArgument(
            f"--model_name: models of type {model.config.model_type} have no logits_to_keep, which training "
            "needs; take a causal language model such as gpt2, llama, mistral, qwen2, qwen3 or gpt_neox"
        )
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.eval()


def _from_folder(folder: Path, dtype: torch.dtype) -> Loaded:
    if not (folder / "config.json").is_file():
        raise InvalidArgument(f"{folder} has no config.json; give --model_name what save_pretrained wrote")
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(f"{folder} has no safetensors; write them with model.save_pretrained")
    try:
        with quiet_transformers():
            both: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # Said below, with the name of the folder.
                output_loading_info=True,
            )
    except Exception as error:  # transformers, safetensors and json raise many kinds.
        raise InvalidArgument(f"{folder} cannot be loaded: {_one_line(error)}; {_RIGHT}") from error
    model, found = both
    _check_whole(found, folder)
    return Loaded(_ready(model), _folder_tokenizer(folder, model.config.vocab_size), "folder")


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without progress bars and tables."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def _check_whole(found: Mapping[str, Any], folder: Path) -> None:
    """Every parameter has come from the files, in its shape."""
    for name, saved, wanted in sorted(found["mismatched_keys"]):
        raise InvalidArgument(
            f"{folder}: {name} is {list(saved)} in the safetensors and {list(wanted)} by config.json;"
            " write both again with save_pretrained"
        )
    for name in sorted(found["missing_keys"]):
        raise InvalidArgument(
            f"{folder}: the safetensors have no {name}, which config.json requires; "
            "write both again with save_pretrained"
        )


def _folder_tokenizer(folder: Path, vocabulary: int) -> Tokenizer:
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
    tokenizer: Tokenizer = ByteTokenizer()
    if any((folder / name).is_file() for name in names):
        try:
            tokenizer = FolderTokenizer(AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except InvalidArgument as error:
            raise InvalidArgument(f"{folder}: {error}") from None
        except Exception as error:
            raise InvalidArgument(
                f"the tokenizer of {folder} cannot be loaded: {_one_line(error)}; {_RIGHT}"
            ) from error
    if tokenizer.size > vocabulary:
        raise InvalidArgument(
            f"{folder}: the tokenizer has {tokenizer.size} tokens, the model's vocabulary only {vocabulary}; "
            "put this model's own tokenizer into the folder"
        )
    return tokenizer


def _from_hub(name: str, dtype: torch.dtype) -> Loaded:
    hub = f"the hub {constants.ENDPOINT} or its cache"
    remedy = "check the name, set HF_ENDPOINT or HTTPS_PROXY, or give a folder"
    if name in BUILT_IN:
        remedy += "; --random_weights starts it from nothing"
    try:
        found = snapshot_download(name, allow_patterns=_PATTERNS, etag_timeout=_HUB_SECONDS)
    except (OSError, ValueError, HfHubHTTPError) as error:  # Also: not cached, no such name.
        raise InvalidArgument(f"{name} cannot be loaded from {hub} ({_one_line(error)}); {remedy}") from None
    folder = Path(found)
    if not any(folder.glob("*.safetensors")):
        raise InvalidArgument(f"{name} on {hub} has no safetensors; take a model that has them")
    return replace(_from_folder(folder, dtype), origin="hub")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
