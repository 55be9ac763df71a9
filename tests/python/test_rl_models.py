"""Models: the same random weights everywhere, folders that fit and folders that do not, tokens."""

import json
import re
import socket
import time

import pytest

from cli import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from weightcast import InvalidArgument  # noqa: E402
from weightcast.rl import models  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    """A small model as save_pretrained writes it."""
    models.load("tiny-qwen", seed=3).model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen"])
def test_random_weights_depend_on_the_seed_alone(name):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = models.load(name, seed=7)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(first.model, models.load(name, seed=7).model)
    assert not same(first.model, models.load(name, seed=8).model)
    assert first.origin == "random"
    assert 0.5e6 <= sum(one.numel() for one in first.model.parameters()) <= 5e6


@pytest.mark.parametrize("name", ["tiny", "tiny-qwen"])
def test_hidden_states_are_what_the_head_makes_logits_of(name):
    model = models.load(name).model
    ids = torch.randint(0, 256, (3, 7))
    keep = torch.rand(3, 7) < 0.5
    logits, hidden = models.token_logits(model, ids, keep, hidden=True)
    torch.testing.assert_close(model.get_output_embeddings()(hidden), logits)
    torch.testing.assert_close(model(input_ids=ids).logits[keep], logits)
    assert models.token_logits(model, ids, keep, hidden=False)[1] is None


def test_a_folder_comes_back(folder):
    loaded = models.load(str(folder), dtype=torch.bfloat16)
    assert loaded.origin == "folder"
    assert loaded.model.dtype == torch.bfloat16
    assert same(loaded.model, models.load("tiny-qwen", seed=3).model.to(torch.bfloat16))
    assert isinstance(loaded.tokenizer, models.ByteTokenizer)


def test_dropout_is_off(tmp_path):
    models.load("tiny").model.save_pretrained(tmp_path)
    model = models.load(str(tmp_path)).model
    assert all(one.p == 0 for one in model.modules() if isinstance(one, torch.nn.Dropout))


def change(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def without_config(folder):
    (folder / "config.json").unlink()


def cut(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without_weights, "has no safetensors"),
        (without_config, "has no config.json"),
        (cut, "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be loaded"),
        (
            lambda folder: change(folder, intermediate_size=300),
            r"\[128, 256\] in the safetensors and \[128, 300\]",
        ),
        (
            lambda folder: change(folder, num_hidden_layers=4, layer_types=["full_attention"] * 4),
            "have no model",
        ),
        (lambda folder: change(folder, model_type="llama"), "is a llama"),
    ],
    ids=["no weights", "no config", "cut off", "bad config", "other shapes", "other layers", "other type"],
)
def test_a_folder_that_does_not_fit_is_refused_in_a_line(folder, damage, said):
    damage(folder)
    with pytest.raises(InvalidArgument, match=said) as error:
        models.load(str(folder))
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no folder"):
        models.load(str(tmp_path / "nothing"))


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch, tmp_path):
    """A listener that never accepts stands for it."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(60))
    monkeypatch.setattr(models, "_HUB_SECONDS", 0.2)
    begin = time.monotonic()
    with pytest.raises(InvalidArgument, match=r"the hub did not give it \(.+\); choose"):
        models.load("nobody/nothing-of-this-name")
    assert time.monotonic() - begin < 5


def test_a_built_in_name_falls_back_to_random_weights_and_says_so(monkeypatch, caplog):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(models.BUILT_IN, "nobody/small", models.BUILT_IN["tiny"])
    loaded = models.load("nobody/small", seed=7)
    assert loaded.origin == "random"
    assert same(loaded.model, models.load("tiny", seed=7).model)
    assert "random" in caplog.text


@pytest.mark.parametrize(
    ("name", "millions"), [("gpt2", 124.4), ("Qwen/Qwen2.5-0.5B", 494.0)], ids=["gpt2", "qwen"]
)
def test_built_in_configurations_have_the_size_of_the_originals(name, millions):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(models.BUILT_IN[name]())
    assert sum(one.numel() for one in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_bytes_are_tokens():
    tokenizer = models.ByteTokenizer()
    assert tokenizer.encode("3=é") == [51, 61, 195, 169]
    assert tokenizer.encode("") == [tokenizer.bos]
    assert tokenizer.decode([51, 61, 195, 169, tokenizer.eos, 52]) == "3=é"
    assert tokenizer.decode([51, tokenizer.pad, 52]) == "3�4"
    assert tokenizer.size == 259


def test_a_tokenizer_of_the_folder_is_used(folder):
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(kinds.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.train_from_iterator(
        ["sort these"] * 9, trainers.BpeTrainer(special_tokens=["<end>"], vocab_size=40)
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder)
    tokenizer = models.load(str(folder)).tokenizer
    tokens = tokenizer.encode("sort these")
    assert len(tokens) < 10
    assert tokenizer.decode([*tokens, tokenizer.eos, *tokens]) == "sort these"
    assert tokenizer.size < models.ByteTokenizer.size
    assert tokenizer.pad in (tokenizer.eos, tokenizer.size - 1)


def test_the_least_transformers_is_the_tested_one():
    """Older ones take no mask for logits_to_keep."""
    least = re.search(r"transformers>=([\d.]+)", (ROOT / "pyproject.toml").read_text())
    tested = re.search(r"transformers==([\d.]+)", (ROOT / "scripts" / "bootstrap").read_text())
    assert tested[1].startswith(f"{least[1]}.")
