"""The parts of examples/ddp_gpt2: the model, its batches, its checkpoints, and the counters it reads."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")

from ddp_gpt2 import FOLDER  # noqa: E402

sys.path.append(str(FOLDER))  # Behind all else: its modules have short names.

from checkpoint import Checkpoints, newest_common  # noqa: E402
from failure import Failure  # noqa: E402
from model import GPT2, MODELS, Shape, parameter_count  # noqa: E402
from place import Place  # noqa: E402
from text import Batches  # noqa: E402
from traffic import Counters, Interface, parse, ring_bytes  # noqa: E402

SETTINGS = {"--model": "simple", "WORLD_SIZE": 2}


# --- The model


def test_gpt2_has_its_parameters():
    with torch.device("meta"):
        assert parameter_count(GPT2(MODELS["gpt2"])) == 124_439_808


def test_it_computes_what_transformers_computes():
    transformers = pytest.importorskip("transformers")
    shape = Shape(vocabulary=31, context=16, width=24, layers=2, heads=3)
    torch.manual_seed(3)
    ours = GPT2(shape).eval()
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=16, n_embd=24, n_layer=2, n_head=3, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter)
    theirs.load_state_dict(_by_their_names(ours), strict=False)
    tokens = torch.randint(31, (2, 16))
    with torch.no_grad():
        assert torch.allclose(ours.logits(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-3)
        targets = tokens.roll(-1, 1)
        expected = torch.nn.functional.cross_entropy(theirs(tokens).logits.transpose(1, 2), targets)
        assert torch.allclose(ours(tokens, targets), expected, rtol=1e-4)


def _by_their_names(model: GPT2) -> dict[str, "torch.Tensor"]:
    names = {
        "tokens": "wte",
        "positions": "wpe",
        "norm": "ln_f",
        "attention_norm": "ln_1",
        "mlp_norm": "ln_2",
    }
    names |= {"query_key_value": "attn.c_attn", "attention_out": "attn.c_proj"}
    names |= {"mlp_in": "mlp.c_fc", "mlp_out": "mlp.c_proj", "blocks": "h"}
    state = {}
    for name, value in model.state_dict().items():
        renamed = ".".join(names.get(part, part) for part in name.split("."))
        linear = name.startswith("blocks") and value.dim() == 2
        state[f"transformer.{renamed}"] = value.T.contiguous() if linear else value
    state["lm_head.weight"] = model.tokens.weight.detach()
    return state


# --- The text


def batches(rank: int = 0, *, length: int = 1001) -> Batches:
    data = bytes(index * 7 % 251 for index in range(length))
    return Batches(data, sequence=10, batch=3, rank=rank, world_size=2, seed=5)


def test_ranks_share_the_windows_of_an_epoch():
    seen: list[tuple[int, ...]] = []
    for rank in (0, 1):
        source = batches(rank)
        for _ in range(16):  # 100 windows: 16 steps of six, and four that are left out.
            inputs, targets = source.next()
            assert inputs.shape == targets.shape == (3, 10)
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            seen += [tuple(one.tolist()) for one in inputs]
        assert source.position()["epoch"] == 0
        source.next()
        assert source.position() == {"epoch": 1, "window": 6}
    assert len(set(seen)) == len(seen) == 96


@pytest.mark.parametrize("made", [3, 15, 16, 20])
def test_batches_go_on_from_a_position(made: int):
    first, second = batches(1), batches(1)
    for _ in range(made):
        first.next()
    second.go_to(first.position())
    for _ in range(20):
        assert all(map(torch.equal, first.next(), second.next()))


def test_a_dataset_that_is_just_long_enough():
    batches(length=61)
    with pytest.raises(Failure, match=r"has 60 bytes, and a step of 2 ranks needs 61: give a longer"):
        batches(length=60)


# --- Checkpoints


def test_a_rank_keeps_its_last_two(tmp_path: pathlib.Path):
    ours, other = Checkpoints(tmp_path / "ck", 0), Checkpoints(tmp_path / "ck", 1)
    assert ours.steps() == []
    other.save(1, SETTINGS, {"value": 1})
    for step in (9, 10, 100):
        ours.save(step, SETTINGS, {"value": step})
    assert ours.steps() == [10, 100] and other.steps() == [1]
    assert ours.load(10, SETTINGS)["value"] == 10
    assert sorted(one.suffix for one in (tmp_path / "ck").iterdir()) == [".pt"] * 3


def test_a_kill_while_it_writes_leaves_those_before(tmp_path, monkeypatch):
    ours = Checkpoints(tmp_path, 0)
    ours.save(5, SETTINGS, {"value": 5})

    def half(_: object, file: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(KeyboardInterrupt):
            ours.save(10, SETTINGS, {"value": 10})
    assert ours.steps() == [5] and ours.load(5, SETTINGS)["value"] == 5
    ours.save(10, SETTINGS, {"value": 10})
    assert ours.load(10, SETTINGS)["value"] == 10 and not list(tmp_path.glob("*.partial"))


def test_a_checkpoint_that_cannot_be_written(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match=r"cannot be written .*: make room, or give another --checkpoint"):
        Checkpoints(tmp_path / "file" / "ck", 0).save(1, SETTINGS, {})


@pytest.mark.parametrize("content", [b"", b"PK\3\4 and so on", b"text"])
def test_an_unreadable_checkpoint(tmp_path: pathlib.Path, content: bytes):
    ours = Checkpoints(tmp_path, 0)
    ours.path(5).write_bytes(content)
    with pytest.raises(
        Failure, match=r"step-00000005-rank-0.pt cannot be read .*: delete the file"
    ) as caught:
        ours.load(5, SETTINGS)
    assert "\n" not in str(caught.value)


def test_a_cut_checkpoint(tmp_path: pathlib.Path):
    ours = Checkpoints(tmp_path, 0)
    ours.save(5, SETTINGS, {"value": torch.zeros(1000)})
    whole = ours.path(5).read_bytes()
    for length in (len(whole) // 2, len(whole) - 1):
        ours.path(5).write_bytes(whole[:length])
        with pytest.raises(Failure, match="cannot be read"):
            ours.load(5, SETTINGS)


def test_checkpoints_of_something_else(tmp_path: pathlib.Path):
    ours = Checkpoints(tmp_path, 0)
    torch.save({"model": {}}, ours.path(5))
    with pytest.raises(Failure, match="is not a checkpoint of this program"):
        ours.load(5, SETTINGS)
    ours.save(5, SETTINGS, {})
    with pytest.raises(Failure, match="of a run with --model simple, and this run has --model gpt2: start"):
        ours.load(5, {**SETTINGS, "--model": "gpt2"})
    with pytest.raises(Failure, match="WORLD_SIZE 2, and this run has WORLD_SIZE 3"):
        ours.load(5, {**SETTINGS, "WORLD_SIZE": 3})


def test_the_step_that_all_ranks_have():
    folder = pathlib.Path("ck")
    assert newest_common([[], []], folder) == 0
    assert newest_common([[10, 20], [20, 30], [20]], folder) == 20
    with pytest.raises(Failure, match=r"in ck \(rank 0 \[10, 20\], rank 1 none\): bring"):
        newest_common([[10, 20], []], folder)


# --- The environment and the counters


def test_a_place_from_the_environment():
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
    assert Place.from_environment(given) == Place(1, 2, 0, "h", 29500, False)
    with pytest.raises(Failure, match="^RANK, MASTER_PORT must be set: start with torchrun, or with RANK=0"):
        Place.from_environment({**given, "RANK": "", "MASTER_PORT": ""})
    for name, value in {"RANK": "2", "WORLD_SIZE": "two", "MASTER_PORT": "70000", "LOCAL_RANK": "-1"}.items():
        with pytest.raises(Failure, match=rf"^{name}={value} must be an integer in \[\d, \d+\]"):
            Place.from_environment({**given, name: value})


def test_counters_of_the_kernels_table():
    table = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0
  eth0:12345678      90    0    0    0     0          0         0  8765432      80    0    0    0     0
"""
    assert parse(table, "eth0") == Counters(sent=8765432, received=12345678, sent_packets=80)
    with pytest.raises(Failure, match="interface eth has gone"):
        parse(table, "eth")


def test_the_interface_towards_the_master():
    found = Interface("127.0.0.1", None)
    assert found.name == "lo" and found.headers == 66
    with pytest.raises(Failure, match=r"GLOO_SOCKET_IFNAME=eth99 is not an interface of this host: .*lo"):
        Interface("127.0.0.1", "eth99")
    with pytest.raises(Failure, match=r"no way to MASTER_ADDR=no.such.host.invalid .*: set it to rank 0's"):
        Interface("no.such.host.invalid", None)


def test_what_a_ring_sends():
    assert [ring_bytes(1200, ranks) for ranks in (1, 2, 3, 4)] == [0, 1200, 1600, 1800]
