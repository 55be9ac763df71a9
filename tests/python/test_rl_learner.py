"""The learner: one gradient whatever the number of trainers, nothing random of its own, and it learns."""

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402

from weightcast import Error, InvalidArgument  # noqa: E402
from weightcast.rl import models  # noqa: E402
from weightcast.rl.generation import Sampling, Sequence, generate, item_seed  # noqa: E402
from weightcast.rl.learner import (  # noqa: E402
    Learner,
    clip_gradients,
    linear_decay,
    make_optimizer,
)
from weightcast.rl.options import Options  # noqa: E402

TOKENIZER = models.ByteTokenizer()
PROMPTS = [TOKENIZER.encode(text) for text in ("31=", "9265=", "3=", "589793=")]


def policy(seed: int = 0):
    return models.load("tiny-qwen", seed=seed).model


def rollouts(seed: int = 1, samples: int = 2) -> tuple[list[Sequence], list[float]]:
    sampling = Sampling(5, 1.0, TOKENIZER.eos, TOKENIZER.pad)
    sequences = generate(policy(), PROMPTS, sampling, samples=samples, seed=seed)
    sequences[0].tokens, sequences[0].logprobs = sequences[0].tokens[:2], sequences[0].logprobs[:2]
    return sequences, [float(sum(one.tokens) % 7) for one in sequences]


def objective(algorithm: str = "grpo", **more) -> Options:
    return Options(algorithm=algorithm, **{"minibatches": 4, **more})


def penalised(algorithm: str, micro_batch: int) -> Options:
    return objective(
        algorithm, minibatches=1, micro_batch=micro_batch, kl_coefficient=0.05, entropy_coefficient=0.01
    )


def learned(
    algorithm: str, share: slice, wrap, group=None, micro_batch: int = 0
) -> tuple[dict, dict[str, float]]:
    """The weights after one step with a part of the rollouts, and the metrics."""
    model, value_head = wrap(policy()), wrap(models.ValueHead(128))
    parameters = [*model.parameters(), *value_head.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    reference = policy(seed=5)
    goal = penalised(algorithm, micro_batch)
    learner = Learner(model, optimizer, goal, value_head=value_head, reference=reference, group=group)
    sequences, rewards = rollouts()
    metrics = learner.step(1, sequences[share], rewards[share], samples=2)
    whole = (one.full_tensor() if hasattr(one, "full_tensor") else one for one in parameters)
    return [one.detach().clone() for one in whole], metrics


def join(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def wrapped(module, kind: str):
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(module)
    from torch.distributed.fsdp import fully_shard

    for layer in getattr(getattr(module, "model", None), "layers", []):
        fully_shard(layer)
    return fully_shard(module)


def one_of_two(rank: int, store: str, algorithm: str, kind: str) -> tuple[list, dict[str, float]]:
    """A trainer in a process of its own; the first has three prompts' sequences, the other one's."""
    join(rank, store)
    share = slice(0, 6) if rank == 0 else slice(6, 8)
    group = dist.group.WORLD
    weights, metrics = learned(algorithm, share, lambda module: wrapped(module, kind), group, micro_batch=2)
    dist.destroy_process_group()
    return [one.numpy() for one in weights], metrics


@pytest.mark.parametrize("micro_batch", [1, 3, 100])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_micro_batches_make_the_gradient_of_the_whole(algorithm, micro_batch):
    wanted, wanted_metrics = learned(algorithm, slice(0, 8), lambda module: module)
    weights, metrics = learned(algorithm, slice(0, 8), lambda module: module, micro_batch=micro_batch)
    for ours, theirs in zip(wanted, weights, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert metrics == pytest.approx(wanted_metrics, rel=1e-4, abs=1e-6)


def test_a_micro_batch_bounds_what_a_pass_holds(monkeypatch):
    seen = []
    token_logits = models.token_logits

    def watched(model, ids, keep, hidden):
        seen.append(len(ids))
        return token_logits(model, ids, keep, hidden)

    monkeypatch.setattr("weightcast.rl.learner.token_logits", watched)
    learned("ppo", slice(0, 8), lambda module: module, micro_batch=3)
    assert max(seen) <= 3 and sum(seen) == 3 * 8  # Reference, values, gradients.


def steps_at_a_small_rate(model, dtype) -> tuple[list, list]:
    """The parameters in float32 before and after ten steps at 1e-5."""
    before = [one.detach().float().clone() for one in model.parameters()]
    goal = objective(minibatches=1, dtype=str(dtype).removeprefix("torch."))
    learner = Learner(model, make_optimizer(model, None, 1e-5), goal)
    sequences, rewards = rollouts()
    for iteration in range(10):
        learner.step(iteration, sequences, rewards, samples=2)
    return before, [one.detach().float() for one in model.parameters()]


def test_bfloat16_learns_at_small_rates_as_float32_does():
    """Of parameters in bfloat16 a step of 1e-5 changes hardly any; master weights in float32 keep it."""

    def moved(model, dtype):
        return torch.cat(
            [(b - a).flatten() for a, b in zip(*steps_at_a_small_rate(model, dtype), strict=True)]
        )

    wanted = moved(policy(), torch.float32)
    mixed = moved(policy(), torch.bfloat16)
    rounded = moved(policy().bfloat16(), torch.float32)
    assert torch.cosine_similarity(mixed, wanted, 0) > 0.9
    assert 0.8 < mixed.norm() / wanted.norm() < 1.2
    assert (rounded == 0).float().mean() > 0.5 > (mixed == 0).float().mean()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_two_trainers_make_the_gradient_of_one(spawn, tmp_path, algorithm, kind):
    wanted, wanted_metrics = learned(algorithm, slice(0, 8), lambda module: module)
    both = [spawn(one_of_two, rank, str(tmp_path / "store"), algorithm, kind) for rank in range(2)]
    for child in both:
        weights, metrics = child.value()
        for ours, theirs in zip(wanted, weights, strict=True):
            torch.testing.assert_close(ours, torch.from_numpy(theirs), atol=1e-6, rtol=1e-4)
        assert metrics == pytest.approx(wanted_metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_first_ratio_is_one_and_equal_seeds_learn_equally(algorithm):
    outcomes = []
    for noise in range(2):
        torch.manual_seed(noise)
        model, value_head = policy(), models.ValueHead(128)
        goal = objective(algorithm, ppo_epochs=2, minibatches=2, seed=4)
        optimizer = make_optimizer(model, value_head, 1e-3)
        learner = Learner(model, optimizer, goal, value_head=value_head, pad=TOKENIZER.pad)
        metrics = learner.step(1, *rollouts(), samples=2)
        outcomes.append(([one.detach().clone() for one in model.parameters()], metrics))
    assert metrics["ratio_first_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["ratio_first_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-5
    assert all(torch.equal(a, b) for a, b in zip(outcomes[0][0], outcomes[1][0], strict=True))
    assert outcomes[0][1] == outcomes[1][1]


def test_a_step_by_hand():
    """One token each: the first loss is minus the mean advantage, 0; the KL to itself is 0."""
    sequences, _ = rollouts()
    for one in sequences:
        del one.tokens[1:], one.logprobs[1:]
    model = policy()
    goal = objective(minibatches=1, kl_coefficient=0.1, max_grad_norm=1e9)
    learner = Learner(model, make_optimizer(model, None, 1e-4), goal, reference=policy())
    metrics = learner.step(1, sequences, [float(row) for row in range(8)], samples=2)
    assert metrics["loss"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["reward"] == pytest.approx(3.5)
    assert metrics["completion_tokens"] == pytest.approx(1)
    assert metrics["clip_fraction"] == 0
    assert metrics["entropy"] == pytest.approx(5.5, abs=0.1)  # Nearly uniform over 259.


def test_the_weights_change_after_the_call_that_announces_it():
    model = policy()
    before = [one.detach().clone() for one in model.parameters()]
    calls = []

    def announced():
        calls.append(all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)))

    learner = Learner(model, make_optimizer(model, None, 1e-3), objective(ppo_epochs=2))
    learner.step(1, *rollouts(), samples=2, before_change=announced)
    assert calls == [True]
    assert not torch.equal(before[0], next(model.parameters()))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_it_learns(algorithm):
    """Worth 1 for each "7": soon there is nothing else."""
    model, value_head = policy(), models.ValueHead(128)
    goal = objective(algorithm, minibatches=2)
    learner = Learner(model, make_optimizer(model, value_head, 3e-3), goal, value_head=value_head)
    rewards = []
    for iteration in range(12):
        sampling = Sampling(2, 1.0, TOKENIZER.eos, TOKENIZER.pad)
        sequences = generate(model, PROMPTS, sampling, samples=64, seed=item_seed(0, "learn", iteration, 0))
        rewards.append([one.tokens.count(ord("7")) / 2 for one in sequences])
        learner.step(iteration, sequences, rewards[-1], samples=64)
    assert sum(rewards[0]) / 256 < 0.03
    assert sum(rewards[-1]) / 256 > 0.5


def test_the_learning_rate_falls_in_a_line():
    rates = [linear_decay(1e-3, one, 100) for one in (1, 51, 100, 200)]
    assert rates == pytest.approx([1e-3, 5e-4, 5e-5, 5e-5])
    model = policy()
    optimizer = make_optimizer(model, None, 1.0)
    Learner(model, optimizer, objective(learning_rate=1.0)).step(51, *rollouts(), samples=2)
    assert optimizer.param_groups[0]["lr"] == 1.0
    falling = objective(learning_rate=1e-3, lr_decay=True, rl_iterations=100)
    Learner(model, optimizer, falling).step(51, *rollouts(), samples=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)


def test_gradients_are_clipped_to_the_norm_over_all():
    one, other = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    one.grad, other.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    optimizer = torch.optim.SGD([one, other], 1.0)
    for limit in (10.0, 0.0):  # 0: not at all.
        assert clip_gradients(optimizer, limit) == pytest.approx(5)
    assert one.grad.tolist() == [3, 0]
    assert clip_gradients(optimizer, 1.0) == pytest.approx(5)
    assert one.grad.tolist() == pytest.approx([0.6, 0], abs=1e-5)
    assert other.grad.tolist() == pytest.approx([0.8], abs=1e-5)


def diverged(rank: int, store: str, kind: str) -> tuple[str, bool]:
    """What a trainer says when the other one's rewards are not finite, and whether its weights are."""
    join(rank, store)
    model = wrapped(policy(), kind)
    learner = Learner(model, make_optimizer(model, None, 1e-3), objective(), group=dist.group.WORLD)
    sequences, rewards = rollouts()
    try:
        learner.step(1, sequences, rewards if rank == 0 else [float("nan")] * 8, samples=2)
        said = ""
    except Error as error:
        said = str(error)
    whole = all(one.isfinite().all() for one in model.parameters())
    dist.destroy_process_group()
    return said, whole


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_gradient_that_is_not_finite_ends_every_trainer(spawn, tmp_path, kind):
    both = [spawn(diverged, rank, str(tmp_path / "store"), kind) for rank in range(2)]
    for child in both:
        said, whole = child.value()
        assert "norm is nan" in said and "--learning_rate" in said
        assert whole


def test_what_does_not_fit_is_refused():
    model = policy()
    optimizer = make_optimizer(model, None, 1e-3)
    sequences, rewards = rollouts()
    with pytest.raises(InvalidArgument, match="8 sequences, 7 rewards"):
        Learner(model, optimizer, objective()).step(1, sequences, rewards[:7], samples=2)
