"""Advantages and losses of PPO and GRPO, as pure functions on tensors.

`[rows, time]` tensors come with a mask of the same shape, which is 1 (or True) at the tokens of a completion;
they follow each other. Losses are of each token, in any shape: the caller sums and divides.

Sources:
  Schulman 2015: High-dimensional continuous control using generalized advantage estimation, 1506.02438
  Schulman 2017: Proximal policy optimization algorithms, 1707.06347
  Schulman 2020: Approximating KL divergence, http://joschu.net/blog/kl-approx.html
  Ziegler 2019: Fine-tuning language models from human preferences, 1909.08593
  Shao 2024: DeepSeekMath, 2402.03300
"""

from __future__ import annotations

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns, `[rows, time]` each (Schulman 2015, equation 16; summed to the end).

    rewards, values: `[rows, time]`; the state after the last token of a row is terminal and worth 0.
    The returns are advantage + value, the target of the value function (TD(lambda)).
    """
    advantages = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    value_after = torch.zeros_like(following)
    for time in reversed(range(rewards.shape[1])):
        here = mask[:, time].to(rewards.dtype)
        delta = rewards[:, time] + gamma * value_after - values[:, time]
        following = (delta + gamma * lam * following) * here
        value_after = values[:, time] * here
        advantages[:, time] = following
    return advantages, (advantages + values) * mask


def clipped_objective(log_ratio: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """The loss of each token, minus the clipped surrogate objective (Schulman 2017, equation 7).

    log_ratio: log-probability under the policy minus that under the policy that sampled the token.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def clipped(log_ratio: Tensor, clip: float) -> Tensor:
    """True where the ratio is outside 1 - clip .. 1 + clip."""
    return (log_ratio.exp() - 1).abs() > clip


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the squared error of each value, the worse of the value and the value clipped around the old one.

    The form of the code of Schulman 2017 (OpenAI baselines, ppo2).
    """
    near_old = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (near_old - returns).square())


def entropy(logits: Tensor) -> Tensor:
    """Entropy in nats of each distribution of `logits[..., vocabulary]`."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of each of `tokens[...]` under `logits[..., vocabulary]`."""
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)


def kl_k1(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Estimates KL(policy || reference) at each token sampled from the policy: unbiased (Schulman 2020)."""
    return log_probs - reference


def kl_k3(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The same, never negative and of less variance (Schulman 2020; Shao 2024, equation 4)."""
    log_ratio = reference - log_probs
    return log_ratio.expm1() - log_ratio


def shaped_rewards(scores: Tensor, kls: Tensor, mask: Tensor, coefficient: float) -> Tensor:
    """Rewards `[rows, time]`: minus coefficient x KL at each token, the score at the last (Ziegler 2019, 2).

    scores: `[rows]`. kls: `[rows, time]`. Every row has at least one token.
    """
    rewards = -coefficient * kls * mask
    last = mask.shape[1] - 1 - mask.flip(1).to(torch.long).argmax(1, keepdim=True)
    return rewards.scatter_add(1, last, scores.unsqueeze(1))


def group_advantages(scores: Tensor, samples: int, *, epsilon: float = 1e-4) -> Tensor:
    """(score - mean) / standard deviation among the samples of one prompt, `[rows]` (Shao 2024, 4.1.2).

    scores: `[rows]`, the samples of a prompt in succession.
    """
    groups = scores.view(-1, samples)
    centred = groups - groups.mean(1, keepdim=True)
    if samples > 1:
        centred = centred / (groups.std(1, keepdim=True) + epsilon)
    return centred.reshape(-1)


def grpo_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    reference: Tensor | None,
    clip: float,
    kl_coefficient: float,
) -> Tensor:
    """The loss of each token (Shao 2024, equation 3): the clipped objective plus KL to the reference by k3.

    advantages: of the token's sequence. reference: log-probabilities, needed if kl_coefficient is not 0.
    """
    loss = clipped_objective(log_probs - old_log_probs, advantages, clip)
    if kl_coefficient and reference is not None:
        loss = loss + kl_coefficient * kl_k3(log_probs, reference)
    return loss


def whiten(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Shifts and scales to mean 0 and variance 1, given the moments (of all trainers together)."""
    return (values - mean) * (variance + 1e-8).rsqrt()
