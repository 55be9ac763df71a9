"""A trainer's optimisation: from sequences and rewards to changed weights.

`[rows, time]` tensors are padded on the right, so attention, which looks only back, needs no mask. A token's
numbers (log-probability, advantage, value) stand at the position whose logits it is drawn from.
Losses are divided by the number of tokens of all trainers together, so that shares may differ in tokens.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .. import Error, InvalidArgument
from . import algorithms
from .generation import item_seed
from .models import token_logits
from .options import Options
from .sequence import Sequence

_VALUE_CLIP = 0.2


@dataclass
class Batch:
    """Sequences as tensors of shape `[rows, time]`."""

    ids: Tensor  # Prompt, completion, padding.
    keep: Tensor  # True where the next token is of the completion.
    old: Tensor  # Log-probabilities of the rollout.
    reference: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor

    @classmethod
    def of(cls, sequences: list[Sequence], pad: int, device: torch.device) -> Batch:
        """Each sequence has at least one token of prompt and one of completion."""
        shape = (len(sequences), max(len(one.prompt) + len(one.tokens) for one in sequences))
        ids = torch.full(shape, pad, dtype=torch.long)
        keep = torch.zeros(shape, dtype=torch.bool)
        old = torch.zeros(shape)
        for row, one in enumerate(sequences):
            first, end = len(one.prompt), len(one.prompt) + len(one.tokens)
            ids[row, :end] = torch.tensor(one.prompt + one.tokens)
            keep[row, first - 1 : end - 1] = True
            old[row, first - 1 : end - 1] = torch.tensor(one.logprobs)
        empty = [torch.zeros(shape, device=device) for _ in range(4)]
        return cls(ids.to(device), keep.to(device), old.to(device), *empty)

    def select(self, rows: Tensor) -> Batch:
        """Some of the rows, as long as the longest of them."""
        length = int(self.keep[rows].any(0).nonzero().max()) + 2
        return Batch(*(getattr(self, one.name)[rows, :length] for one in fields(self)))


def make_optimizer(
    policy: nn.Module, value_head: nn.Module | None, learning_rate: float
) -> torch.optim.Optimizer:
    """Adam over both."""
    parameters = list(policy.parameters()) + (list(value_head.parameters()) if value_head else [])
    return torch.optim.AdamW(parameters, learning_rate, betas=(0.9, 0.99), weight_decay=0.0)


def linear_decay(peak: float, iteration: int, iterations: int, floor: float = 0.05) -> float:
    """The learning rate of an iteration, from the peak at the first down to floor x peak at the last."""
    return peak * max(floor, 1 - (iteration - 1) / iterations)


@dataclass
class Learner:
    """Changes the weights of a policy.

    policy: a model of `models`, plain or wrapped by DDP or FSDP2 over the group. value_head: for PPO, wrapped
    likewise. reference: a frozen model, if the objective has a KL. group: of all trainers; None if alone.
    """

    policy: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Options  # Its groups "algorithm" and "rollout", the seed, and the computation's dtype.
    value_head: nn.Module | None = None
    reference: nn.Module | None = None
    group: dist.ProcessGroup | None = None
    pad: int = 0

    def __post_init__(self) -> None:
        self._value_head = self.value_head if self.objective.algorithm == "ppo" else None
        self._reference = self.reference if self.objective.kl_coefficient else None
        self._trainers = Trainers(self.group)

    def step(
        self,
        iteration: int,
        sequences: list[Sequence],
        rewards: list[float],
        *,
        samples: int = 1,
        before_change: Callable[[], None] = lambda: None,
    ) -> dict[str, float]:
        """One iteration of learning from this trainer's share; what it gives is of all trainers together.

        samples: how many sequences in succession are of one prompt. before_change: called before the first
        optimizer step changes the weights.
        """
        if not sequences or len(sequences) != len(rewards) or len(sequences) % samples:
            raise InvalidArgument(
                f"this trainer has {len(sequences)} sequences, {len(rewards)} rewards and {samples} samples "
                "of each prompt, which do not fit together; please report this as a bug"
            )
        batch = Batch.of(sequences, self.pad, self._device)
        scores = torch.tensor(rewards, dtype=torch.float32, device=self._device)
        parts = self._trainers.least(min(self.objective.minibatches, len(sequences)), self._device)
        pieces = self._micro_batches(len(sequences), parts)
        self._look_back(batch, parts * pieces)
        self._add_advantages(batch, scores, samples)
        goal, tally = self.objective, Tally()
        if goal.lr_decay:
            for group in self.optimizer.param_groups:
                group["lr"] = linear_decay(goal.learning_rate, iteration, goal.rl_iterations)
        for epoch in range(goal.ppo_epochs):
            for part, tokens in self._minibatches(batch, parts, iteration, epoch):
                self.optimizer.zero_grad(set_to_none=True)
                self._add_gradients(part, pieces, tokens, tally)
                if tally.steps == 0:
                    before_change()
                tally.gradient_norm += clip_gradients(self.optimizer, goal.max_grad_norm)
                self.optimizer.step()
                tally.steps += 1
        return self._metrics(tally, batch, scores)

    def _micro_batches(self, sequences: int, parts: int) -> int:
        """Into how many pieces each minibatch is cut: as many on every trainer, none of them empty."""
        size = self.objective.micro_batch
        wanted = -(-sequences // (parts * size)) if size else 1
        most = int(self._trainers.max(torch.tensor(wanted, device=self._device)))
        return min(most, self._trainers.least(sequences // parts, self._device))

    def _add_gradients(self, part: Batch, pieces: int, tokens: float, tally: Tally) -> None:
        """Those of a minibatch, piece by piece: a loss is divided by the tokens of the whole."""
        rows = torch.arange(len(part.ids), device=self._device).tensor_split(pieces)
        for number, some in enumerate(rows):
            with self._summed_later() if number < pieces - 1 else contextlib.nullcontext():
                self._loss(part.select(some) if pieces > 1 else part, tokens, tally).backward()

    @contextlib.contextmanager
    def _summed_later(self) -> Iterator[None]:
        """DDP's trainers add their gradients up once, with the last piece."""
        with contextlib.ExitStack() as stack:
            for module in (self.policy, self._value_head):
                if isinstance(module, DistributedDataParallel):
                    stack.enter_context(module.no_sync())
            yield

    @property
    def _device(self) -> torch.device:
        return next(self.policy.parameters()).device

    @torch.no_grad()
    def _look_back(self, batch: Batch, parts: int) -> None:
        """Adds what the reference says of the tokens, and the values of the states before the change."""
        for rows in torch.arange(len(batch.ids), device=self._device).tensor_split(parts):
            ids, keep = batch.ids[rows], batch.keep[rows]
            if self._reference is not None:
                logits, _ = self._forward(self._reference, ids, keep, hidden=False)
                batch.reference[rows] = _unpacked(
                    algorithms.token_log_probs(logits, _targets(ids, keep)), keep
                )
            if self._value_head is not None:
                _, hidden = self._forward(self.policy, ids, keep, hidden=True)
                batch.values[rows] = _unpacked(self._value_head(hidden), keep)

    def _forward(
        self, model: nn.Module, ids: Tensor, keep: Tensor, hidden: bool
    ) -> tuple[Tensor, Tensor | None]:
        dtype = getattr(torch, self.objective.dtype)
        with torch.autocast(self._device.type, dtype, enabled=dtype != torch.float32):
            logits, states = token_logits(model, ids[:, :-1], keep[:, :-1], hidden)
        return logits / self.objective.temperature, None if states is None else states.float()

    def _add_advantages(self, batch: Batch, scores: Tensor, samples: int) -> None:
        goal, keep = self.objective, batch.keep
        if goal.algorithm == "grpo":
            batch.advantages = algorithms.group_advantages(scores, samples).unsqueeze(1) * keep
            return
        kls = algorithms.kl_k1(batch.old, batch.reference) if goal.kl_coefficient else batch.old * 0
        rewards = algorithms.shaped_rewards(scores, kls, keep, goal.kl_coefficient)
        advantages, batch.returns = algorithms.gae(rewards, batch.values, keep, goal.gamma, goal.gae_lambda)
        mean, variance = self._trainers.moments(advantages[keep])
        batch.advantages = algorithms.whiten(advantages, mean, variance) * keep

    def _minibatches(
        self, batch: Batch, parts: int, iteration: int, epoch: int
    ) -> Iterator[tuple[Batch, float]]:
        """Each with the number of its tokens over all trainers."""
        generator = torch.Generator().manual_seed(
            item_seed(self.objective.seed, "minibatches", iteration, epoch)
        )
        order = torch.randperm(len(batch.ids), generator=generator).to(self._device)
        pieces = [batch.select(rows) for rows in order.tensor_split(parts)]
        tokens = self._trainers.sum(torch.stack([piece.keep.sum() for piece in pieces]).double())
        yield from zip(pieces, tokens.tolist(), strict=True)

    def _loss(self, part: Batch, tokens: float, tally: Tally) -> Tensor:
        """What to differentiate; DDP and FSDP2 take the mean over the trainers, hence the factor."""
        goal, keep = self.objective, part.keep
        logits, hidden = self._forward(self.policy, part.ids, keep, self._value_head is not None)
        logprobs = algorithms.token_log_probs(logits, _targets(part.ids, keep))
        old, advantages = part.old[keep], part.advantages[keep]
        if goal.algorithm == "grpo":
            reference = part.reference[keep]
            losses = algorithms.grpo_loss(
                logprobs, old, advantages, reference, goal.clip, goal.kl_coefficient
            )
        else:
            losses = algorithms.clipped_objective(logprobs - old, advantages, goal.clip)
        if self._value_head is not None:
            worth = self._value_head(hidden)
            value_losses = algorithms.clipped_value_loss(
                worth, part.values[keep], part.returns[keep], _VALUE_CLIP
            )
            losses = losses + goal.value_coefficient * value_losses
            tally.add("value_loss", value_losses)
        with torch.set_grad_enabled(goal.entropy_coefficient != 0):
            entropies = algorithms.entropy(logits)
        losses = losses - goal.entropy_coefficient * entropies
        tally.add("loss", losses)
        tally.add("entropy", entropies)
        tally.add("clip_fraction", algorithms.clipped(logprobs - old, goal.clip))
        tally.add("kl_rollout", algorithms.kl_k3(old, logprobs))
        if self._reference is not None:
            tally.add("kl", algorithms.kl_k3(logprobs, part.reference[keep]))
        tally.see_ratio(logprobs.detach() - old)
        return losses.sum() * (self._trainers.count / tokens)

    def _metrics(self, tally: Tally, batch: Batch, scores: Tensor) -> dict[str, float]:
        """Of all trainers; means over the tokens and the steps, where the name says nothing else."""
        tally.add("reward", scores)
        tally.add("completion_tokens", batch.keep.sum(1))
        found = tally.means(self._trainers)
        found["gradient_norm"] = tally.gradient_norm / tally.steps
        return found


class Tally:
    """Sums up what the steps of an iteration say of their tokens."""

    def __init__(self) -> None:
        self.steps = 0
        self.gradient_norm = 0.0
        self._sums: dict[str, Tensor] = {}
        self._range: Tensor | None = None

    def add(self, name: str, numbers: Tensor) -> None:
        wide = numbers.detach().double()
        both = torch.stack([wide.sum(), wide.new_tensor(wide.numel())])
        self._sums[name] = self._sums[name] + both if name in self._sums else both

    def see_ratio(self, log_ratio: Tensor) -> None:
        """Keeps the range of the first minibatch: there the weights are still those that were published."""
        if self.steps == 0:
            new = torch.stack([-log_ratio.min(), log_ratio.max()])
            self._range = new if self._range is None else torch.maximum(self._range, new)
            self.add("train_rollout_logprob_abs_diff", log_ratio.abs())

    def means(self, trainers: Trainers) -> dict[str, float]:
        assert self._range is not None
        names = sorted(self._sums)
        sums = trainers.sum(torch.stack([self._sums[name] for name in names])).tolist()
        lowest, highest = trainers.max(self._range.double()).tolist()
        found = {name: total / count for name, (total, count) in zip(names, sums, strict=True)}
        return found | {"ratio_first_min": math.exp(-lowest), "ratio_first_max": math.exp(highest)}


class Trainers:
    """What is reduced over the trainers; alone, it stays as it is."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.count = 1 if group is None else dist.get_world_size(group)

    def sum(self, numbers: Tensor) -> Tensor:
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def max(self, numbers: Tensor) -> Tensor:
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def least(self, number: int, device: torch.device) -> int:
        return -int(self.max(torch.tensor(-number, device=device)))

    def moments(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        wide = numbers.double()
        count, total, squares = self.sum(
            torch.stack([wide.new_tensor(wide.numel()), wide.sum(), wide.square().sum()])
        )
        mean = total / count
        return mean.to(numbers.dtype), (squares / count - mean.square()).clamp(min=0).to(numbers.dtype)

    def _reduced(self, numbers: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self._group is not None:
            dist.all_reduce(numbers, operation, self._group)
        return numbers


def clip_gradients(optimizer: torch.optim.Optimizer, limit: float) -> float:
    """Scales the gradients down to a norm of `limit` over all parameters; returns the norm of before.

    limit: 0 leaves them as they are. Parameters are plain, or all of them sharded by FSDP2.
    `Error`: the norm is not finite. It is the same on all trainers, so all of them raise.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, limit or math.inf)
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if not math.isfinite(whole):
        raise Error(f"the gradient's norm is {float(whole)}: training has diverged; lower --learning_rate")
    return float(whole)


def _targets(ids: Tensor, keep: Tensor) -> Tensor:
    """The tokens that follow the kept positions."""
    return ids.roll(-1, 1)[keep]


def _unpacked(numbers: Tensor, keep: Tensor) -> Tensor:
    """Back to `[rows, time]`, 0 elsewhere."""
    return torch.zeros_like(keep, dtype=numbers.dtype).masked_scatter(keep, numbers)
