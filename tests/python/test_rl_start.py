"""What a run is put together from."""

import json
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from weightcast import InvalidArgument  # noqa: E402
from weightcast.rl import checkpoint, models, start  # noqa: E402
from weightcast.rl.options import Options  # noqa: E402


class Ranks:
    """torch.distributed of three ranks: what the others say, and what this one sends."""

    def __init__(self, *others_have_one: bool) -> None:
        self._others = list(others_have_one)
        self.sent: list[str] = []

    def get_world_size(self) -> int:
        return 1 + len(self._others)

    def all_gather_object(self, found: list, mine: bool) -> None:
        found[:] = [mine, *self._others]

    def broadcast_object_list(self, box: list, src: int) -> None:
        self.sent += box


@pytest.fixture
def ranks(monkeypatch):
    def make(*others_have_one: bool, token: str = "") -> Ranks:
        made = Ranks(*others_have_one)
        monkeypatch.setattr(start, "dist", made)
        monkeypatch.setenv("WEIGHTCAST_TOKEN", token)
        monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE", raising=False)
        return made

    return make


def test_a_token_that_nobody_had_to_set(ranks):
    made = ranks(False, False)
    start._share_token()
    assert made.sent == [os.environ["WEIGHTCAST_TOKEN"]] and len(made.sent[0]) == 64


def test_a_token_that_was_set_is_sent_to_nobody(ranks):
    made = ranks(True, True, token="a-secret-of-these-tests")
    start._share_token()
    assert made.sent == [] and os.environ["WEIGHTCAST_TOKEN"] == "a-secret-of-these-tests"


def test_ranks_without_the_token_that_others_have_are_named(ranks):
    for token, named in (("a-secret-of-these-tests", "token: 2;"), ("", "token: 0, 2;")):
        made = ranks(True, False, token=token)
        with pytest.raises(InvalidArgument, match=named):
            start._share_token()
        assert made.sent == []


@pytest.fixture
def place(monkeypatch):
    """What a rank of four makes of its options."""
    loaded = models.load("tiny")

    def make(rank: int = 0, **options) -> start.Place:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        return start._place(Options(**options), loaded)

    return make


def test_sequences_fit_the_models_positions(place, tmp_path):
    file = tmp_path / "prompts.jsonl"
    texts = [f"{number}=".rjust(50) for number in range(60)]
    file.write_text("".join(json.dumps({"prompt": one, "answer": ""}) + "\n" for one in texts))
    known = ((5, {}), (11, {"digits": 10}), (33, {"task": "text"}), (50, {"prompts": str(file)}))
    for longest, options in known:
        place(max_gen_length=256 - longest, **options)
        with pytest.raises(InvalidArgument, match=f"prompt of {longest} tokens .* 256 positions of tiny"):
            place(max_gen_length=257 - longest, **options)


def save(folder, iteration: int, **options) -> None:
    """A checkpoint of a run with these options."""
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1)).backward()
    optimizer.step()
    checkpoint.save(
        folder,
        iteration=iteration,
        version=iteration,
        run_id="r",
        options=start.identity(Options(**options)),
        modules={"model": module},
        optimizers=[optimizer],
    )


def test_a_run_that_goes_on_from_one_checkpoint_writes_beside_it(place, tmp_path, monkeypatch):
    assert place(checkpoint_dir=str(tmp_path)).checkpoints == tmp_path
    for iteration in (2, 4):
        save(tmp_path, iteration)
    monkeypatch.chdir(tmp_path / "iteration-000002")
    for name, last in ((str(tmp_path), 4), (str(tmp_path / "iteration-000002"), 2), (".", 2)):
        found = place(checkpoint_dir=name, resume=True)
        assert found.resumed == tmp_path / f"iteration-00000{last}"
        assert found.checkpoints == tmp_path


def test_a_run_goes_on_only_with_the_same_items_and_learning_rates(place, tmp_path):
    save(tmp_path / "a", 2, num_training=1, num_inference=1)
    go_on = {"checkpoint_dir": str(tmp_path / "a"), "resume": True, "num_training": 1}
    place(**go_on, num_inference=1, rl_iterations=20)
    with pytest.raises(InvalidArgument, match="rollouts_per_gpu x num_inference is 8 in it, 16 now"):
        place(**go_on, num_inference=2, item_prompts=8)
    with pytest.raises(InvalidArgument, match="item_prompts is 8 in it, 4 now"):
        place(**go_on, num_inference=2, rollouts_per_gpu=4)
    place(**go_on, num_inference=2, rollouts_per_gpu=4, item_prompts=8)
    save(tmp_path / "b", 2, lr_decay=True, rl_iterations=10)
    go_on = {"checkpoint_dir": str(tmp_path / "b"), "resume": True}
    place(**go_on, lr_decay=True, rl_iterations=10)
    with pytest.raises(InvalidArgument, match="rl_iterations is 10 in it, 20 now"):
        place(**go_on, lr_decay=True, rl_iterations=20)


def test_what_cannot_be_written_is_seen_before_training(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    (tmp_path / "empty").mkdir()
    place(export_hf=str(tmp_path / "new"), checkpoint_dir=str(tmp_path / "a" / "b"), plots=str(tmp_path))
    place(export_hf=str(tmp_path / "empty"))
    assert not (tmp_path / "a").exists()
    for name in ("checkpoint_dir", "export_hf", "plots"):
        with pytest.raises(InvalidArgument, match=f"--{name}: .* cannot be written: .*/file is not a folder"):
            place(**{name: str(tmp_path / "file" / "a" / "b")})
    for name in ("other", "file"):
        with pytest.raises(InvalidArgument, match=f"{name} is not a transformers folder"):
            place(export_hf=str(tmp_path / name))
        place(3, export_hf=str(tmp_path / name))  # An engine, which may be on another host.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidArgument, match="matplotlib"):
        place(plots=str(tmp_path))


def test_what_may_not_be_meant_is_said_before_the_run(monkeypatch):
    loaded = models.load("tiny")
    assert start.notices(Options(learning_rate=1e-3), loaded) == []
    slow = start.notices(Options(), loaded)
    assert len(slow) == 1 and "random weights" in slow[0] and "1e-05" in slow[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    idle = start.notices(Options(learning_rate=1e-3), loaded)
    assert len(idle) == 1 and "8 GPUs are visible and stay idle" in idle[0]
