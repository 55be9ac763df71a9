"""Generation: what is sampled, and that a trainer finds the same probabilities."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from weightcast.rl import models  # noqa: E402
from weightcast.rl.algorithms import token_log_probs  # noqa: E402
from weightcast.rl.generation import Sampling, Sequence, generate, item_seed  # noqa: E402
from weightcast.rl.learner import Batch  # noqa: E402

TOKENIZER = models.ByteTokenizer()
PROMPTS = [TOKENIZER.encode(text) for text in ("3141=", "9=", "27182818=")]


@pytest.fixture(params=["tiny", "tiny-qwen"])
def model(request):
    """Weights large enough that the distributions are far from uniform."""
    loaded = models.load(request.param, seed=1).model
    with torch.no_grad():
        for parameter in loaded.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6)
    return loaded


def recomputed(model, sequences: list[Sequence], temperature: float):
    """Log-probabilities as the trainer has them, and the rollouts', packed."""
    batch = Batch.of(sequences, TOKENIZER.pad, torch.device("cpu"))
    logits, _ = models.token_logits(model, batch.ids, batch.keep, hidden=False)
    return token_log_probs(logits / temperature, batch.ids.roll(-1, 1)[batch.keep]), batch.old[batch.keep]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]], ids=["padded", "alone"])
def test_the_trainer_finds_the_probabilities_of_the_rollouts(model, prompts, temperature):
    sampling = Sampling(12, temperature, TOKENIZER.eos, TOKENIZER.pad)
    sequences = generate(model, prompts, sampling, samples=5, seed=3)
    assert len(sequences) == 5 * len(prompts)
    with torch.no_grad():
        ours, theirs = recomputed(model, sequences, temperature)
    assert ours.std() > 0.1
    assert (ours - theirs).exp().sub(1).abs().max() < 1e-4


def test_padding_changes_no_token(model):
    sampling = Sampling(8, 1.0, None, TOKENIZER.pad)
    together = generate(model, PROMPTS, sampling, seed=5)
    longest = generate(model, PROMPTS[2:], Sampling(8, 0.0, None, TOKENIZER.pad))
    greedy = generate(model, PROMPTS, Sampling(8, 0.0, None, TOKENIZER.pad))
    assert greedy[2].tokens == longest[0].tokens
    alone = generate(model, PROMPTS[:1], sampling, seed=5)
    assert alone[0].tokens == together[0].tokens


def test_one_seed_gives_one_outcome_whatever_the_global_state_is(model):
    sampling = Sampling(6, 1.0, TOKENIZER.eos, TOKENIZER.pad)
    first = generate(model, PROMPTS, sampling, samples=2, seed=item_seed(7, "rollout", 3, 1))
    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert generate(model, PROMPTS, sampling, samples=2, seed=item_seed(7, "rollout", 3, 1)) == first
    assert torch.equal(torch.random.get_rng_state(), state)
    assert generate(model, PROMPTS, sampling, samples=2, seed=item_seed(7, "rollout", 3, 2)) != first


def test_frequencies_are_the_probabilities(model):
    sampling = Sampling(1, 0.8, None, TOKENIZER.pad)
    sequences = generate(model, PROMPTS[:1], sampling, samples=20000, seed=11)
    counts = torch.bincount(torch.tensor([one.tokens[0] for one in sequences]), minlength=TOKENIZER.size)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(PROMPTS[:1])).logits[0, -1]
    wanted = (logits / 0.8).softmax(-1) * 20000
    likely = wanted > 20
    chi_squared = ((counts - wanted).square() / wanted)[likely].sum()
    assert chi_squared < likely.sum() + 5 * math.sqrt(2 * likely.sum())


def test_a_sequence_stops_at_its_end(model):
    sampling = Sampling(20, 1.0, None, TOKENIZER.pad)
    free = generate(model, PROMPTS, sampling, seed=2)
    eos = free[1].tokens[3]
    cut = generate(model, PROMPTS, Sampling(20, 1.0, eos, TOKENIZER.pad), seed=2)
    for whole, ended in zip(free, cut, strict=True):
        end = whole.tokens.index(eos) + 1 if eos in whole.tokens else 20
        assert ended.tokens == whole.tokens[:end]
        assert len(ended.logprobs) == len(ended.versions) == end


def test_greedy_is_what_transformers_generates(model):
    ours = generate(model, PROMPTS[:1], Sampling(10, 0.0, None, TOKENIZER.pad))[0].tokens
    ids = torch.tensor(PROMPTS[:1])
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False)
    assert ours == theirs[0, ids.shape[1] :].tolist()


def test_weights_switch_between_tokens(model):
    """The cache stays, and every token has the version that made it."""
    served = [4]

    def switch():
        served[0] += 1
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)

    sampling = Sampling(3, 1.0, None, TOKENIZER.pad)
    made = generate(model, PROMPTS, sampling, version=lambda: served[0], between_tokens=switch)
    assert [one.versions for one in made] == [[4, 5, 6]] * 3
