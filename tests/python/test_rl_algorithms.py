"""Advantages and losses, against torchrl's, against exact distributions, and by hand."""

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from weightcast.rl import algorithms  # noqa: E402


def ragged(rows: int = 6, time: int = 9) -> tuple:
    """Random rewards, values and a mask: completions of different lengths, at different places."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randint(0, 3, (rows, 1), generator=generator)
    length = torch.randint(1, time - 3, (rows, 1), generator=generator)
    columns = torch.arange(time)
    mask = (columns >= first) & (columns < first + length)
    numbers = torch.randn(3, rows, time, generator=generator)
    return numbers[0] * mask, numbers[1] * mask, numbers[2] * mask, mask


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.97, 0.9), (0.9, 0.0), (1.0, 1.0)])
def test_gae_is_torchrl_s(gamma, lam):
    functional = pytest.importorskip("torchrl.objectives.value.functional")
    rewards, values, _, mask = ragged()
    advantages, returns = algorithms.gae(rewards, values, mask, gamma, lam)
    for row in range(len(mask)):
        here = mask[row]
        value = values[row, here].view(1, -1, 1)
        following = torch.cat([value[:, 1:], torch.zeros(1, 1, 1)], 1)
        done = torch.zeros_like(value, dtype=torch.bool)
        done[:, -1] = True
        reward = rewards[row, here].view(1, -1, 1)
        theirs = functional.generalized_advantage_estimate(gamma, lam, value, following, reward, done)
        torch.testing.assert_close(advantages[row, here], theirs[0].flatten())
        torch.testing.assert_close(returns[row, here], theirs[1].flatten())
    assert not advantages[~mask].any()
    assert not returns[~mask].any()


def test_gae_by_hand():
    """delta = (1 + 0.5 * 3 - 2, 2 + 0 - 3), the padding of the row holds anything."""
    rewards = torch.tensor([[1.0, 2.0, 7.0]])
    values = torch.tensor([[2.0, 3.0, 9.0]])
    advantages, returns = algorithms.gae(rewards, values, torch.tensor([[1, 1, 0]]), 0.5, 0.8)
    torch.testing.assert_close(advantages, torch.tensor([[0.5 - 0.4, -1.0, 0.0]]))
    torch.testing.assert_close(returns, torch.tensor([[2.1, 2.0, 0.0]]))


@pytest.mark.parametrize("clip", [0.1, 0.2])
def test_the_clipped_objective_is_torchrl_s(clip):
    grpo = pytest.importorskip("torchrl.objectives.llm.grpo")
    log_ratio, advantages, _, _ = ragged()
    theirs, outside = grpo.GRPOLoss._compute_policy_objective(
        SimpleNamespace(_clip_bounds=(math.log1p(-clip), math.log1p(clip))), log_ratio, advantages
    )
    torch.testing.assert_close(algorithms.clipped_objective(log_ratio, advantages, clip), theirs)
    torch.testing.assert_close(algorithms.clipped(log_ratio, clip).float().mean(), outside)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.5, 2.0, -2.4, 0.0),  # Better and already likelier by more than the clip.
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
        (0.5, -2.0, 1.6, 0.0),
        (1.1, 1.0, -1.1, -1.1),
    ],
)
def test_the_gradient_stops_where_the_objective_is_clipped(ratio, advantage, loss, slope):
    log_ratio = torch.tensor(math.log(ratio), requires_grad=True)
    found = algorithms.clipped_objective(log_ratio, torch.tensor(advantage), 0.2)
    found.backward()
    torch.testing.assert_close(found.detach(), torch.tensor(loss))
    torch.testing.assert_close(log_ratio.grad, torch.tensor(slope))


def test_the_value_loss_is_torchrl_s():
    utils = pytest.importorskip("torchrl.objectives.utils")
    values, old_values, returns, _ = ragged()
    unclipped = (values - returns).square()
    theirs, _ = utils._clip_value_loss(old_values, values, torch.tensor(0.2), returns, unclipped, "l2")
    torch.testing.assert_close(algorithms.clipped_value_loss(values, old_values, returns, 0.2), 0.5 * theirs)


def test_the_kl_estimators_have_the_expectation_they_promise():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    policy, reference = logits.log_softmax(-1)
    exact = torch.distributions.kl_divergence(
        *(torch.distributions.Categorical(logits=one) for one in logits)
    )
    k1, k3 = (estimate(policy, reference) for estimate in (algorithms.kl_k1, algorithms.kl_k3))
    torch.testing.assert_close((policy.exp() * k1).sum(), exact)
    torch.testing.assert_close((policy.exp() * k3).sum(), exact)
    assert (k3 >= 0).all() and (k1 < 0).any()


def test_k3_is_torchrl_s():
    grpo = pytest.importorskip("torchrl.objectives.llm.grpo")
    log_probs, reference, _, mask = ragged()
    fake = SimpleNamespace(kl_to_ref_coeff=1.0)
    _, theirs = grpo.GRPOLoss._kl_to_ref(
        fake, {"_cur_log_prob": log_probs}, ref_log_prob=reference, mask=mask, coeff=1.0
    )
    torch.testing.assert_close(algorithms.kl_k3(log_probs, reference).mean(), theirs)


def test_entropy_and_log_probs_are_torch_s():
    generator = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(4, 7, 11, generator=generator)
    tokens = torch.randint(0, 11, (4, 7), generator=generator)
    theirs = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(algorithms.entropy(logits), theirs.entropy())
    torch.testing.assert_close(algorithms.token_log_probs(logits, tokens), theirs.log_prob(tokens))


def test_the_score_stands_at_the_last_token():
    mask = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]], dtype=torch.bool)
    kls = torch.full((3, 4), 0.5)
    shaped = algorithms.shaped_rewards(torch.tensor([1.0, 2.0, 3.0]), kls, mask, 0.1)
    wanted = [[0, -0.05, 0.95, 0], [-0.05, -0.05, -0.05, 1.95], [2.95, 0, 0, 0]]
    torch.testing.assert_close(shaped, torch.tensor(wanted))


def test_group_advantages_by_hand():
    """Mean 2, standard deviation sqrt(2) of one group; the other has none."""
    scores = torch.tensor([1.0, 3.0, 5.0, 5.0])
    found = algorithms.group_advantages(scores, 2, epsilon=0)[:2]
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0]) / math.sqrt(2))
    found = algorithms.group_advantages(scores, 2)
    assert found[2:].tolist() == [0.0, 0.0]
    assert algorithms.group_advantages(scores, 1).tolist() == [0.0] * 4


def test_the_loss_of_grpo_is_objective_and_kl():
    log_probs, old, reference, _ = ragged()
    advantages = torch.ones_like(old)
    plain = algorithms.grpo_loss(log_probs, old, advantages, None, 0.2, 0.0)
    torch.testing.assert_close(plain, algorithms.clipped_objective(log_probs - old, advantages, 0.2))
    both = algorithms.grpo_loss(log_probs, old, advantages, reference, 0.2, 0.3)
    torch.testing.assert_close(both - plain, 0.3 * algorithms.kl_k3(log_probs, reference))


def test_whitening():
    numbers = 5 + 3 * torch.randn(1000, generator=torch.Generator().manual_seed(3))
    white = algorithms.whiten(numbers, numbers.mean(), numbers.var(correction=0))
    torch.testing.assert_close(white.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(white.std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0)
