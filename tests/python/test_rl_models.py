"""Models: the same random weights everywhere, folders that fit and folders that do not, tokens."""

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import pytest

from cli import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from weightcast import InvalidArgument  # noqa: E402
from weightcast.rl import models  # noqa: E402
from weightcast.rl.algorithms import token_log_probs  # noqa: E402
from weightcast.rl.generation import Sampling, generate  # noqa: E402
from weightcast.rl.learner import Batch, Learner, make_optimizer  # noqa: E402
from weightcast.rl.options import Options  # noqa: E402


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
    ],
    ids=["no weights", "no config", "cut off", "bad config", "other shapes", "other layers"],
)
def test_a_folder_that_does_not_fit_is_refused_in_a_line(folder, damage, said):
    damage(folder)
    with pytest.raises(InvalidArgument, match=said) as error:
        models.load(str(folder))
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="no folder"):
        models.load(str(tmp_path / "nothing"))


OTHERS = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 8},
    "gpt_neox": {},
}


@pytest.fixture(params=OTHERS)
def other(request, tmp_path):
    """A small model of a type that is not built in, with distributions far from uniform."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        request.param,
        vocab_size=models.ByteTokenizer.size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        **OTHERS[request.param],
    )
    model = AutoModelForCausalLM.from_config(config)
    models.initialise(model, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1)
    model.save_pretrained(tmp_path / "other")
    return models.load(str(tmp_path / "other"))


def test_other_types_generate_and_learn(other):
    """The trainer finds the probabilities of the rollouts, also padded, and the value head its states."""
    tokenizer, model = other.tokenizer, other.model
    prompts = [tokenizer.encode(text) for text in ("3141=", "9=", "27182818=")]
    sequences = generate(model, prompts, Sampling(12, 1.0, None, tokenizer.pad), samples=4, seed=3)
    batch = Batch.of(sequences, tokenizer.pad, torch.device("cpu"))
    with torch.no_grad():
        logits, hidden = models.token_logits(model, batch.ids, batch.keep, hidden=True)
        ours = token_log_probs(logits, batch.ids.roll(-1, 1)[batch.keep])
        torch.testing.assert_close(model.get_output_embeddings()(hidden), logits)
    assert ours.std() > 0.1
    assert (ours - batch.old[batch.keep]).abs().max() < 1e-4
    head = models.ValueHead(model.config.hidden_size)
    learner = Learner(
        model, make_optimizer(model, head, 1e-3), Options(algorithm="ppo", minibatches=4), value_head=head
    )
    metrics = learner.step(1, sequences, [float(one.tokens[0]) for one in sequences])
    assert metrics["ratio_first_max"] == pytest.approx(1, abs=1e-3)


def test_a_model_that_cannot_be_used_is_refused():
    from transformers import ProphetNetConfig, ProphetNetForCausalLM

    small = {"decoder_ffn_dim": 32, "num_decoder_layers": 1, "num_decoder_attention_heads": 2}
    model = ProphetNetForCausalLM(ProphetNetConfig(vocab_size=300, hidden_size=32, is_decoder=True, **small))
    with pytest.raises(
        InvalidArgument, match="--model_name: models of type prophetnet have no logits_to_keep"
    ):
        models._ready(model)


class Mirror(http.server.BaseHTTPRequestHandler):
    """A hub, or a proxy to one, that has nothing but counts who asks."""

    def answer(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(404)
        self.end_headers()

    do_GET = do_HEAD = do_CONNECT = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


LOAD = (
    "import sys\n"
    "from weightcast import InvalidArgument\n"
    "from weightcast.rl import models\n"
    "try:\n"
    "    models.load(sys.argv[1])\n"
    "except InvalidArgument as error:\n"
    "    print(error)\n"
)


def loaded_elsewhere(name: str, cache: pathlib.Path, **environment: str) -> str:
    """What a process says that loads this model; huggingface_hub reads its environment when imported."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = {
        **kept,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    run = [sys.executable, "-c", LOAD, name]
    result = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_mirror_is_asked_and_what_it_lacks_is_an_error(mirror, tmp_path):
    address = f"http://127.0.0.1:{mirror.server_port}"
    said = loaded_elsewhere("gpt2", tmp_path, HF_ENDPOINT=address)
    assert any("gpt2" in path for path in mirror.asked)
    assert f"gpt2 cannot be loaded from the hub {address}" in said and "--random_weights" in said


def test_a_proxy_is_asked(mirror, tmp_path):
    address = f"http://127.0.0.1:{mirror.server_port}"
    said = loaded_elsewhere(
        "nobody/nothing", tmp_path, HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=address, http_proxy=address
    )
    assert any(path.startswith("http://hub.invalid/") for path in mirror.asked)
    assert "cannot be loaded" in said and "--random_weights" not in said


def test_a_hub_that_is_away_is_an_error_and_random_weights_an_option(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setitem(models.BUILT_IN, "nobody/small", models.BUILT_IN["tiny"])
    with pytest.raises(
        InvalidArgument, match=r"cannot be loaded from .*\(.+\); check the name, .* --random_weights"
    ):
        models.load("nobody/small", seed=7)
    loaded = models.load("nobody/small", seed=7, random=True)
    assert loaded.origin == "random"
    assert same(loaded.model, models.load("tiny", seed=7).model)
    with pytest.raises(InvalidArgument, match="nobody/other is not built in"):
        models.load("nobody/other", random=True)


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


def test_transformers_is_a_range_that_holds_the_tested_ones():
    """Of the loop, and of the engines that it is to live beside."""
    from packaging.specifiers import SpecifierSet

    wanted = re.search(r'"transformers([^"]+)"', (ROOT / "pyproject.toml").read_text())
    files = [ROOT / "scripts" / "bootstrap", *(ROOT / "tests" / "engines").glob("*.txt")]
    tested = {one for file in files for one in re.findall(r"\btransformers==([\d.]+)", file.read_text())}
    assert len(tested) > 1
    for one in tested:
        assert SpecifierSet(wanted[1]).contains(one), one
