"""Checkpoints of the reinforcement-learning loop: real ones, of processes that are joined by gloo."""

import hashlib
import json
import os
import pathlib
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weightcast as wc
from processes import Child

torch = pytest.importorskip("torch")
dist = torch.distributed
checkpoint = pytest.importorskip("weightcast.rl.checkpoint")
from weightcast.rl import checkpoint_folder  # noqa: E402

KINDS = ("plain", "ddp", "fsdp2")
OPTIONS = {"model_name": "tiny", "algorithm": "ppo", "lr": 1e-2}


class Run:
    """A small training that draws from every global generator."""

    def __init__(self, kind: str = "plain", seed: int = 0, width: int = 16) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 8))
        self.model, self.value = self._wrap(kind, model), self._wrap(kind, torch.nn.Linear(8, 1))
        parameters = [*self.model.parameters(), *self.value.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.sums_itself = kind == "plain" and dist.is_initialized()

    @staticmethod
    def _wrap(kind: str, module: Any) -> Any:
        if kind == "ddp":
            return torch.nn.parallel.DistributedDataParallel(module)
        if kind == "fsdp2":
            return torch.distributed.fsdp.fully_shard(module)
        return module

    def train(self, iteration: int) -> None:
        data = torch.Generator().manual_seed(iteration * 10 + self.rank)
        inputs = torch.randn(4, 8, generator=data)
        noise = torch.randn(4, 8) + random.gauss(0, 1) + np.random.normal()
        loss = self.value(self.model(inputs + 0.1 * noise)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        if self.sums_itself:
            for one in [*self.model.parameters(), *self.value.parameters()]:
                dist.all_reduce(one.grad)
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"modules": {"model": self.model, "value": self.value}, "optimizers": [self.optimizer]}

    def save(self, folder: pathlib.Path, iteration: int, **more: Any) -> pathlib.Path:
        arguments = {"run_id": "r1", "options": OPTIONS, **self.state(), **more}
        return checkpoint.save(folder, iteration=iteration, version=iteration, **arguments)

    def load(self, path: pathlib.Path) -> Any:
        return checkpoint.load(path, options=OPTIONS, **self.state())

    def digest(self) -> str:
        """Of every bit of the weights and the optimizer's state that this rank holds."""
        found = hashlib.sha256()
        for parameter in [*self.model.parameters(), *self.value.parameters()]:
            for one in [parameter, *self.optimizer.state[parameter].values()]:
                local = one.to_local() if hasattr(one, "to_local") else one
                found.update(local.detach().numpy().tobytes())
        return found.hexdigest()


def _join(rank: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)


def _train_all(rank: int, meeting: str, folder: str) -> dict[str, str]:
    """Six iterations, saved after the third."""
    _join(rank, meeting)
    digests = {}
    for kind in KINDS:
        run = Run(kind)
        for iteration in range(1, 7):
            run.train(iteration)
            if iteration == 3:
                run.save(pathlib.Path(folder) / kind, 3)
        digests[kind] = run.digest()
    dist.destroy_process_group()
    return digests


def _resume_all(rank: int, meeting: str, folder: str) -> dict[str, str]:
    """Goes on after the third, in processes that began otherwise."""
    _join(rank, meeting)
    digests = {}
    for kind in KINDS:
        run = Run(kind, seed=77)
        run.train(1)
        complete = run.load(checkpoint_folder.latest(pathlib.Path(folder) / kind))
        assert (complete.iteration, complete.version, complete.world_size) == (3, 3, 2)
        for iteration in range(4, 7):
            run.train(iteration)
        digests[kind] = run.digest()
    dist.destroy_process_group()
    return digests


def _two(spawn: Callable[..., Any], function: Callable[..., Any], meeting: pathlib.Path, *more: Any) -> list:
    return [spawn(function, rank, str(meeting), *more) for rank in (0, 1)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[pathlib.Path, list[dict[str, str]]]]:
    """Checkpoints of two processes, by kind; and how their training ended."""
    folder = tmp_path_factory.mktemp("trained")
    children = _two(Child, _train_all, folder / "meeting", str(folder))
    yield folder, [one.value(120) for one in children]
    for one in children:
        one.end()


def test_a_resumed_training_goes_on_bit_for_bit(
    tmp_path: pathlib.Path, spawn: Callable[..., Any], trained: tuple[pathlib.Path, list[dict[str, str]]]
):
    folder, digests = trained
    again = [one.value(120) for one in _two(spawn, _resume_all, tmp_path / "meeting", str(folder))]
    assert again == digests
    assert digests[0]["fsdp2"] != digests[1]["fsdp2"]  # Each rank has its part.


def test_another_number_of_trainers_goes_on(trained: tuple[pathlib.Path, list[dict[str, str]]]):
    folder, _ = trained
    whole = {kind: Run(seed=5) for kind in KINDS}
    for kind, run in whole.items():
        run.train(1)
        before = torch.get_rng_state()
        assert run.load(checkpoint_folder.latest(folder / kind)).world_size == 2
        assert torch.equal(torch.get_rng_state(), before)
    # The same training, but for the order of sums.
    for ours, theirs in zip(whole["ddp"].model.parameters(), whole["fsdp2"].model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def _die_while_saving(rank: int, meeting: str, folder: str, where: str) -> None:
    _join(rank, meeting)
    run = Run("fsdp2")
    run.train(1)
    run.save(pathlib.Path(folder), 1)
    run.train(2)
    if where == "part" and rank == 1:
        from torch.distributed.checkpoint import filesystem

        filesystem._write_item = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    if where == "complete" and rank == 0:
        pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    run.save(pathlib.Path(folder), 2)


@pytest.mark.parametrize(("where", "killed"), [("part", 1), ("complete", 0)])
def test_death_while_saving_leaves_the_one_before(
    tmp_path: pathlib.Path, spawn: Callable[..., Any], where: str, killed: int
):
    folder = tmp_path / "checkpoints"
    both = _two(spawn, _die_while_saving, tmp_path / "a", str(folder), where)
    kind, text = both[1 - killed].outcome(120)
    assert kind != "ok"
    both[killed].process.join(60)
    assert both[killed].process.exitcode == -signal.SIGKILL
    rest = folder / "iteration-000002"
    assert rest.exists() and not (rest / "complete").exists(), text
    assert checkpoint_folder.latest(folder) == checkpoint_folder.find(folder) == folder / "iteration-000001"
    run = Run(seed=9)
    run.train(1)
    assert run.load(checkpoint_folder.latest(folder)).iteration == 1
    # The remains are no hindrance, and leave nothing behind.
    run.train(2)
    assert run.save(folder, 2) == checkpoint_folder.latest(folder) == rest
    names = {one.name for one in rest.iterdir()}
    assert names == {".metadata", "__0_0.distcp", "complete"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The checkpoint of a single process; not to be changed."""
    run = Run()
    run.train(1)
    return run.save(tmp_path_factory.mktemp("saved"), 1)


def _copy(path: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    copied = folder / path.name
    copied.mkdir()
    for one in path.iterdir():
        (copied / one.name).write_bytes(one.read_bytes())
    return copied


def _refused(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(wc.InvalidArgument) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_the_last_ones_are_kept(tmp_path: pathlib.Path):
    run = Run()
    assert checkpoint_folder.latest(tmp_path / "none") is None
    for iteration in range(1, 6):
        run.train(iteration)
        run.save(tmp_path, iteration, keep=3)
    names = [one.name for one in checkpoint_folder.complete_ones(tmp_path)]
    assert names == ["iteration-000003", "iteration-000004", "iteration-000005"]
    # Going on from the third makes another fourth, and the old fifth is of a past that was not.
    run.load(checkpoint_folder.find(tmp_path / "iteration-000003"))
    run.save(tmp_path, 4, keep=3)
    names = [one.name for one in checkpoint_folder.complete_ones(tmp_path)]
    assert names == ["iteration-000003", "iteration-000004"]


def test_checkpoints_of_another_run_are_left_alone(tmp_path: pathlib.Path):
    run = Run()
    run.train(1)
    run.save(tmp_path, 9, run_id="another")
    _refused(lambda: checkpoint_folder.check_new(tmp_path), "iteration-000009", "--resume")
    for iteration in (1, 2):
        run.save(tmp_path, iteration, keep=1)
    names = [one.name for one in checkpoint_folder.complete_ones(tmp_path)]
    assert names == ["iteration-000002", "iteration-000009"]
    checkpoint_folder.check_new(tmp_path / "none")


def test_other_options_are_named(saved: pathlib.Path):
    checkpoint_folder.check(saved, dict(reversed(OPTIONS.items())))
    other = {**OPTIONS, "algorithm": "grpo", "model_name": "gpt2"}
    _refused(
        lambda: checkpoint_folder.check(saved, other),
        "of another run",
        "algorithm is 'ppo' in it, 'grpo' now",
        "model_name is 'tiny' in it, 'gpt2' now",
        "without --resume",
    )
    _refused(lambda: checkpoint_folder.check(saved, {**OPTIONS, "seed": 1}), "seed is None in it, 1 now")


def test_another_model_is_refused(saved: pathlib.Path):
    _refused(lambda: Run(width=32).load(saved), "broken or of another model", "--resume")


def test_broken_ones_are_refused(saved: pathlib.Path, tmp_path: pathlib.Path):
    path = _copy(saved, tmp_path)
    part = path / "__0_0.distcp"
    whole = part.read_bytes()
    part.write_bytes(whole[:-10])
    _refused(lambda: checkpoint_folder.check(path), "broken", f"has {len(whole) - 10} bytes of {len(whole)}")
    part.unlink()
    _refused(lambda: Run().load(path), "broken", "__0_0.distcp is missing", "one before it")
    part.write_bytes(bytes(len(whole)))
    _refused(lambda: Run().load(path), "broken", "trainer 0")
    part.write_bytes(whole)
    (path / ".metadata").write_bytes(b"x" * (path / ".metadata").stat().st_size)
    _refused(lambda: Run().load(path), "broken")


def test_a_bad_complete_file_is_refused(saved: pathlib.Path, tmp_path: pathlib.Path):
    path = _copy(saved, tmp_path)
    good = json.loads((path / "complete").read_text())
    assert good["format"] == 2 and good["run_id"] == "r1" and good["world_size"] == 1
    bad = {
        "cannot be read": "{",
        "has format 1": json.dumps({**good, "format": 1}),
        "broken": json.dumps({**good, "files": None}),
        "has been changed": json.dumps({**good, "options": {}}),
    }
    for words, text in bad.items():
        (path / "complete").write_text(text)
        _refused(lambda: checkpoint_folder.check(path), words)
    (path / "complete").unlink()
    _refused(lambda: checkpoint_folder.find(path), "not complete")
    _refused(lambda: checkpoint_folder.find(tmp_path), "no complete checkpoint", "--resume")


def test_a_folder_that_cannot_be_written(tmp_path: pathlib.Path):
    (tmp_path / "file").write_text("")
    run = Run()
    run.train(1)
    with pytest.raises(wc.Error, match="cannot write .*file"):
        run.save(tmp_path / "file", 1)


def _tiny_gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=2, n_head=2)
    torch.manual_seed(3)
    return transformers.GPT2LMHeadModel(config)


def _logits(model: Any) -> Any:
    with torch.no_grad():
        return model.eval()(torch.arange(8)[None]).logits


def _export_sharded(rank: int, meeting: str, folder: str) -> None:
    _join(rank, meeting)
    model = _tiny_gpt2()
    for block in model.transformer.h:
        torch.distributed.fsdp.fully_shard(block)
    torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)[None]).logits.square().mean().backward()
    optimizer.step()
    arguments = {"run_id": "r", "options": {}, "modules": {"model": model}, "optimizers": [optimizer]}
    path = checkpoint.save(f"{folder}/checkpoints", iteration=1, version=1, **arguments)
    again = {"modules": {"model": model}, "optimizers": [optimizer]}
    checkpoint.load(path, options={}, **again)
    checkpoint.export_hf(model, None, f"{folder}/export")
    dist.destroy_process_group()


def test_a_sharded_model_with_tied_weights_is_exported(tmp_path: pathlib.Path, spawn: Callable[..., Any]):
    transformers = pytest.importorskip("transformers")
    for one in _two(spawn, _export_sharded, tmp_path / "a", str(tmp_path)):
        one.value(120)
    assert json.loads((tmp_path / "export" / "config.json").read_text())["architectures"] == [
        "GPT2LMHeadModel"
    ]
    exported = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "export")
    assert exported.lm_head.weight is exported.transformer.wte.weight
    model = _tiny_gpt2()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)[None]).logits.square().mean().backward()
    optimizer.step()
    torch.testing.assert_close(_logits(exported), _logits(model), rtol=1e-4, atol=1e-5)
    assert not torch.equal(_logits(exported), _logits(_tiny_gpt2()))


def test_an_export_replaces_one_but_nothing_else(tmp_path: pathlib.Path):
    transformers = pytest.importorskip("transformers")
    model = _tiny_gpt2()
    folder = tmp_path / "export"
    checkpoint.export_hf(model, None, folder)
    with torch.no_grad():
        model.transformer.wte.weight.mul_(2)
    assert checkpoint.export_hf(model, None, folder) == folder
    assert torch.equal(_logits(transformers.GPT2LMHeadModel.from_pretrained(folder)), _logits(model))
    assert [one.name for one in tmp_path.iterdir()] == ["export"]
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    _refused(lambda: checkpoint.export_hf(model, None, other), "not a transformers folder")
    assert (other / "thesis.tex").exists()
