"""weightcast.torch.Stage: gathered tensors, each there only until the next."""

import contextlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import weightcast as wc  # noqa: E402
from conftest import FAST  # noqa: E402
from weightcast.torch import Stage  # noqa: E402

SHAPES = {"embed": (7, 5), "bias": (2,), "cube": (3, 4, 2), "scale": (), "none": (0, 4)}


def gathered(version: int, dtype=torch.float32, names=SHAPES):
    """One buffer for all tensors: what is not copied is overwritten."""
    buffer = torch.empty(64, dtype=dtype)
    torch.manual_seed(version)
    for name in names:
        whole = buffer[: int(np.prod(SHAPES[name], dtype=int))].view(SHAPES[name])
        whole.copy_(torch.randn(SHAPES[name]))
        yield name, whole
        buffer.fill_(-1)


def wanted(version: int, dtype=torch.float32):
    return {name: tensor.clone() for name, tensor in gathered(version, dtype)}


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_the_ranks_keep_every_row_once(world):
    stages = [Stage(gathered(1), rank, world) for rank in range(world)]
    for stage in stages:
        stage.fill(gathered(2))
    for name, whole in wanted(2).items():
        kept = [stage[name].array for stage in stages if name in stage]
        if whole.numel() == 0:
            assert kept == []
        else:
            assert torch.equal(torch.cat(kept) if whole.dim() else kept[0], whole)


def test_moves_like_any_source(controller):
    live = {
        name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in SHAPES.items() if 0 not in shape
    }
    with contextlib.ExitStack() as stack:
        trainers = [
            stack.enter_context(wc.Trainer(controller, rank=rank, world_size=2, settings=FAST))
            for rank in range(2)
        ]
        engine = stack.enter_context(wc.Inference(controller, engine="e", settings=FAST))
        stages = [Stage(gathered(0), rank, 2, dtype=torch.bfloat16) for rank in range(2)]
        for trainer, stage in zip(trainers, stages, strict=True):
            trainer.register(stage)
        engine.register(live)
        for version in (1, 2):
            for stage in stages:
                stage.fill(gathered(version))
            updates = [trainer.publish(version) for trainer in trainers]
            assert engine.wait(version - 1 if version > 1 else None, timeout=30).number == version
            for update in updates:
                update.wait(30)
            for name, tensor in live.items():
                assert torch.equal(tensor, wanted(version)[name].bfloat16()), name


def test_large_tensors_have_blocks_of_their_own(monkeypatch):
    monkeypatch.setattr("weightcast._stage._BLOCK", 128)
    stage = Stage(gathered(3))
    for name, whole in wanted(3).items():
        assert whole.numel() == 0 or torch.equal(stage[name].array, whole)


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (lambda: gathered(1, names=["embed"]), "ended without bias, cube, none, scale"),
        (lambda: [("new", torch.zeros(3))], "new was not there"),
        (lambda: [("embed", torch.zeros(7, 6))], r"embed is torch.float32 \[7, 6\] now; it was .*\[7, 5\]"),
        (lambda: [("embed", torch.zeros(7, 5).double())], "embed is torch.float64"),
        (lambda: [*gathered(1, names=["bias"]), *gathered(1, names=["bias"])], "bias comes twice"),
    ],
)
def test_other_tensors_than_the_first_time_are_refused(again, words):
    with pytest.raises(wc.InvalidArgument, match=words):
        Stage(gathered(0)).fill(again())


def test_bad_ranks_and_names_are_refused():
    with pytest.raises(
        wc.InvalidArgument, match=r"rank is 2, world is 2; rank must be an integer in \[0, world - 1\]"
    ):
        Stage(gathered(0), 2, 2)
    with pytest.raises(wc.InvalidArgument, match="bias comes twice"):
        Stage([*gathered(1, names=["bias"]), *gathered(1, names=["bias"])])
