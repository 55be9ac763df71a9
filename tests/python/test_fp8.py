"""The rule `quantise` through Trainer and Inference: FP8 and scales against the definition in numpy."""

import concurrent.futures
import contextlib

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

ml_dtypes = pytest.importorskip("ml_dtypes")

SHAPE = (512 + 70, 300)
SCALES = (5, 3)
RULE = {"quantise": "{**}.weight", "scales": "{**}.weight_scale_inv", "block": [128, 128]}
LARGEST = np.float32(448)


def weight(version: int, dtype: type) -> np.ndarray:
    rng = np.random.default_rng(version)
    values = rng.standard_normal(SHAPE) * 10.0 ** rng.uniform(-4, 2, size=SHAPE)
    values[128:256, 128:256] = 0
    return values.astype(dtype)


def quantised(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each step in F32, rounded to nearest, ties to even."""
    values = np.zeros(SHAPE, ml_dtypes.float8_e4m3fn)
    scales = np.zeros(SCALES, np.float32)
    for i, row in enumerate(range(0, SHAPE[0], 128)):
        for j, column in enumerate(range(0, SHAPE[1], 128)):
            box = (slice(row, row + 128), slice(column, column + 128))
            x = matrix[box].astype(np.float32)
            amax = np.maximum(np.abs(x).max(), np.float32(2.0**-100))
            values[box] = np.clip(x * (LARGEST / amax), -LARGEST, LARGEST).astype(values.dtype)
            scales[i, j] = amax / LARGEST
    return values, scales


@contextlib.contextmanager
def connected(controller: str, settings: dict, trainers: int, ranks: int):
    with contextlib.ExitStack() as stack:
        yield (
            [
                stack.enter_context(wc.Trainer(controller, rank=rank, world_size=trainers, settings=settings))
                for rank in range(trainers)
            ],
            [
                stack.enter_context(
                    wc.Inference(controller, engine="e", rank=rank, world_size=ranks, settings=settings)
                )
                for rank in range(ranks)
            ],
        )


def at_once(call, workers):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return [answer.result() for answer in [threads.submit(call, worker) for worker in workers]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_two_trainers_to_an_engine_of_two_ranks(controller, dtype, transport):
    """Rows at the trainers, columns at the engine, whose ranks both have all scales."""
    settings = {**FAST, "transport": transport, "compare": 1}
    rows, columns = [(0, 256), (256, SHAPE[0])], [(0, 128), (128, SHAPE[1])]
    held = [np.zeros((end - first, SHAPE[1]), dtype) for first, end in rows]
    live = [np.zeros((SHAPE[0], end - first), ml_dtypes.float8_e4m3fn) for first, end in columns]
    scales = [np.zeros(SCALES, np.float32) for _ in columns]
    with connected(controller, settings, 2, 2) as (trainers, ranks):
        for trainer, array, (first, _) in zip(trainers, held, rows, strict=True):
            trainer.register({"a.weight": wc.Shard(array, SHAPE, (first, 0))}, rules=[RULE])
        for rank, array, scale, (first, _) in zip(ranks, live, scales, columns, strict=True):
            rank.register({"a.weight": wc.Shard(array, SHAPE, (0, first)), "a.weight_scale_inv": scale})
        for version in (1, 2):
            new = weight(version, dtype)
            for array, (first, end) in zip(held, rows, strict=True):
                array[...] = new[first:end]
            updates = at_once(lambda trainer, version=version: trainer.publish(version), trainers)
            at_once(lambda rank: rank.wait(timeout=30), ranks)
            assert [rank.compared for rank in updates[0].wait(30).receivers] == [2, 2]
            values, expected = quantised(new)
            for array, scale, (first, end) in zip(live, scales, columns, strict=True):
                assert array.tobytes() == np.ascontiguousarray(values[:, first:end]).tobytes()
                assert scale.tobytes() == expected.tobytes()
        assert [digest.name for digest in trainers[0].digest()] == ["a.weight"]


def test_a_late_engine_gets_the_same_bytes_from_another(controller):
    with connected(controller, {**FAST, "compare": 1}, 1, 1) as ((trainer,), (engine,)):
        array = weight(1, np.float32)
        live, scale = np.zeros(SHAPE, ml_dtypes.float8_e4m3fn), np.zeros(SCALES, np.float32)
        trainer.register({"a.weight": array}, rules=[RULE])
        engine.register({"a.weight": live, "a.weight_scale_inv": scale})
        update = trainer.publish(1)
        engine.wait(timeout=30)
        update.wait(30)
        trainer.close()
        late, late_scale = np.zeros_like(live), np.zeros_like(scale)
        with wc.Inference(controller, engine="late", settings=FAST) as newcomer:
            newcomer.register({"a.weight": late, "a.weight_scale_inv": late_scale})
            assert newcomer.wait(timeout=30).number == 1
        values, expected = quantised(array)
        assert live.tobytes() == late.tobytes() == values.tobytes()
        assert scale.tobytes() == late_scale.tobytes() == expected.tobytes()


def test_refusals_say_what_to_do(controller):
    array = np.zeros((100, 300), np.float32)
    with wc.Trainer(controller, world_size=2, settings=FAST) as trainer:
        with pytest.raises(wc.InvalidArgument, match=r"box \[0:100, 0:300\] of rank 0 cuts blocks"):
            trainer.register({"a.weight": wc.Shard(array, SHAPE, (0, 0))}, rules=[RULE])
        with pytest.raises(wc.InvalidArgument, match=r"only \[128, 128\] is allowed"):
            trainer.register({"a.weight": array}, rules=[{**RULE, "block": [1, 128]}])
        with pytest.raises(wc.InvalidArgument, match="must have two dimensions"):
            trainer.register({"a.weight": array[0]}, rules=[RULE])


@pytest.mark.parametrize(
    ("dtype", "scales", "rules", "reason"),
    [
        (np.float32, np.zeros((1, 3), np.float32), [RULE], "must be F8_E4M3"),
        (ml_dtypes.float8_e4m3fn, np.zeros((1, 3), np.float16), [RULE], "must be F32"),
        (ml_dtypes.float8_e4m3fn, np.zeros((3, 1), np.float32), [RULE], r"has shape \[1, 3\]"),
        (ml_dtypes.float8_e4m3fn, np.zeros((1, 3), np.float32), [], "give the trainers a rule 'quantise'"),
        (
            ml_dtypes.float8_e4m3fn,
            np.zeros((1, 3), np.float32),
            [RULE, {**RULE, "quantise": "b.{**}.w", "scales": "b.{**}.s"}],
            "but no tensor of the trainers has that name",
        ),
    ],
)
def test_an_engine_that_does_not_fit_is_told_why(controller, dtype, scales, rules, reason):
    with connected(controller, FAST, 1, 1) as ((trainer,), (engine,)):
        trainer.register({"a.weight": np.zeros((100, 300), np.float32)}, rules=rules)
        with pytest.raises(wc.Error, match=reason):
            engine.register({"a.weight": np.zeros((100, 300), dtype), "a.weight_scale_inv": scales})
            engine.wait(timeout=20)
