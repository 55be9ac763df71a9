"""Several shards of one tensor at one rank: two trainers, and an engine of two ranks."""

import concurrent.futures
import contextlib

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST

HIDDEN = 12
PARTS = {"q": 16, "k": 8, "v": 8}  # Rows of a fused qkv: 4 heads of 4, 2 of keys and values.
SHAPES = {"qkv": (sum(PARTS.values()), HIDDEN), "experts": (4, 6, 10), "embed": (20, HIDDEN), "scale": ()}
EXPERTS = [(0, 3), (2, 1)]  # Of each rank of the engine.


def values(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def shard(name: str, array: np.ndarray, *offset: int) -> wc.Shard:
    return wc.Shard(array, SHAPES[name], offset + (0,) * (array.ndim - len(offset)))


class Trainer:
    """Rows of qkv, experts two by two; rank 0 has `embed` twice."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.rows = np.zeros((16, HIDDEN), np.float32)
        self.experts = [np.zeros((10, 6), np.float32).T for _ in range(2)]  # Not contiguous.
        self.embed = [np.zeros(SHAPES["embed"], np.float32) for _ in range(2)]
        self.scale = np.zeros((), np.float32)

    def tensors(self):
        experts = [shard("experts", one[None], self.rank + 2 * i) for i, one in enumerate(self.experts)]
        held = {"qkv": shard("qkv", self.rows, 16 * self.rank), "experts": experts[::-1]}
        if self.rank == 0:
            held |= {"embed": [shard("embed", one) for one in self.embed], "scale": self.scale}
        return held

    def fill(self, version: int) -> None:
        new = values(version)
        self.rows[...] = new["qkv"][16 * self.rank : 16 * self.rank + 16]
        for i, one in enumerate(self.experts):
            one[...] = new["experts"][self.rank + 2 * i]
        for one in self.embed:
            one[...] = new["embed"]
        self.scale[...] = new["scale"]


class Engine:
    """What a rank of two holds under tensor parallelism: a part of each of q, k and v, one after another."""

    def __init__(self, rank: int, dtype: type = np.float32) -> None:
        self.rank = rank
        self.fused = np.zeros((SHAPES["qkv"][0] // 2, HIDDEN), dtype)
        self.experts = np.zeros((2, 6, 10), dtype)
        self.embed = [np.zeros(SHAPES["embed"], dtype) for _ in range(2)]
        self.scale = [np.zeros((), dtype) for _ in range(2)]

    def rows(self):
        """(view of the fused buffer, its first row in the whole)"""
        start = 0
        for rows in PARTS.values():
            yield (
                self.fused[start // 2 : start // 2 + rows // 2],
                start + self.rank * rows // 2,
            )
            start += rows

    def tensors(self):
        slots = zip(self.experts, EXPERTS[self.rank], strict=True)
        return {
            "qkv": [shard("qkv", view, row) for view, row in self.rows()],
            "experts": [shard("experts", slot[None], expert) for slot, expert in slots],
            "embed": [shard("embed", one) for one in self.embed],
            "scale": [wc.Shard(one) for one in self.scale],
        }

    def check(self, version: int) -> None:
        new = {name: value.astype(self.fused.dtype) for name, value in values(version).items()}
        for view, row in self.rows():
            np.testing.assert_array_equal(view, new["qkv"][row : row + len(view)])
        np.testing.assert_array_equal(self.experts, new["experts"][list(EXPERTS[self.rank])])
        for name, places in (("embed", self.embed), ("scale", self.scale)):
            for one in places:
                np.testing.assert_array_equal(one, new[name])


@contextlib.contextmanager
def connected(controller, settings, engine="e"):
    """Two trainers and the two ranks of an engine."""
    with contextlib.ExitStack() as stack:
        yield (
            [
                stack.enter_context(wc.Trainer(controller, rank=rank, world_size=2, settings=settings))
                for rank in range(2)
            ],
            join(stack, controller, settings, engine),
        )


def join(stack, controller, settings, engine):
    return [
        stack.enter_context(
            wc.Inference(controller, engine=engine, rank=rank, world_size=2, settings=settings)
        )
        for rank in range(2)
    ]


def at_once(call, workers):
    with concurrent.futures.ThreadPoolExecutor() as threads:
        return [answer.result() for answer in [threads.submit(call, worker) for worker in workers]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("landing", "dtype"),
    [("in_place", np.float32), ("shadow", np.float32), ("shadow", np.float16), ("loader", np.float32)],
)
def test_every_shard_gets_its_version(controller, landing, dtype, transport):
    settings = {**FAST, "transport": transport, "checksum": 1}
    held, live = [Trainer(rank) for rank in range(2)], [Engine(rank, dtype) for rank in range(2)]
    with connected(controller, settings) as (trainers, ranks):
        for trainer, tensors in zip(trainers, held, strict=True):
            trainer.register(tensors.tensors)
        for rank, tensors in zip(ranks, live, strict=True):
            rank.register(
                tensors.tensors, landing=landing, on_switch=(lambda _: None) if landing == "loader" else None
            )
        assert ranks[0].describe() == [f"{name}: {landing}" for name in SHAPES]
        for version in (1, 2):
            for tensors in held:
                tensors.fill(version)
            updates = at_once(lambda trainer, version=version: trainer.publish(version), trainers)
            at_once(lambda rank: rank.wait(timeout=30), ranks)
            assert updates[0].wait(30).bytes == sum(
                array.nbytes for one in live for array in (one.fused, one.experts, *one.embed, *one.scale)
            )
            for tensors in live:
                tensors.check(version)


def test_moved_shards_sleep_and_a_late_engine(controller):
    """Registered again at other addresses; asleep and awake; then a source for an engine that joins late."""
    held, live = [Trainer(rank) for rank in range(2)], [Engine(rank) for rank in range(2)]
    with connected(controller, FAST) as (trainers, ranks):
        for trainer, tensors in zip(trainers, held, strict=True):
            trainer.register(tensors.tensors)
        for version in (1, 2):
            if version == 2:
                live = [Engine(rank) for rank in range(2)]
            for rank, tensors in zip(ranks, live, strict=True):
                rank.register(tensors.tensors())
            for tensors in held:
                tensors.fill(version)
            at_once(lambda trainer, version=version: trainer.publish(version), trainers)
            at_once(lambda rank: rank.wait(timeout=30), ranks)
            for tensors in live:
                tensors.check(version)
        for rank in ranks:
            rank.suspend(timeout=30)
            rank.resume(intact=True)
        for trainer in trainers:
            trainer.close()
        late = [Engine(rank) for rank in range(2)]
        with contextlib.ExitStack() as stack:
            newcomers = join(stack, controller, FAST, "late")
            for rank, tensors in zip(newcomers, late, strict=True):
                rank.register(tensors.tensors())
            assert [v.number for v in at_once(lambda rank: rank.wait(timeout=30), newcomers)] == [2, 2]
        for tensors in late:
            tensors.check(2)


def test_a_fused_tensor_from_trainers_that_hold_its_parts(controller):
    """The parts join by a rule; the ranks of the engine say which rows of each they hold."""
    parts = {
        name: np.arange(rows * HIDDEN, dtype=np.float32).reshape(rows, HIDDEN) for name, rows in PARTS.items()
    }
    rules = {"rules": [{"fuse": list(PARTS), "to": "qkv"}]}
    live = [Engine(rank) for rank in range(2)]
    with contextlib.ExitStack() as stack:
        trainer = stack.enter_context(wc.Trainer(controller, settings=FAST))
        ranks = join(stack, controller, FAST, "e")
        trainer.register(parts, rules=rules)
        for rank, tensors in zip(ranks, live, strict=True):
            rank.register({"qkv": tensors.tensors()["qkv"]})
        trainer.publish(1)
        at_once(lambda rank: rank.wait(timeout=30), ranks)
    whole = np.concatenate(list(parts.values()))
    for tensors in live:
        for view, row in tensors.rows():
            np.testing.assert_array_equal(view, whole[row : row + len(view)])


def test_shards_of_one_rank_that_overlap_are_refused(controller):
    halves = [shard("embed", np.zeros((12, HIDDEN), np.float32), first) for first in (0, 8)]
    words = r"tensor 'embed': the boxes \[0:12, 0:12\] and \[8:20, 0:12\] of rank 1 overlap"
    with connected(controller, FAST) as (trainers, ranks):
        for worker in (trainers[1], ranks[1]):
            with pytest.raises(wc.InvalidArgument, match=words):
                worker.register({"embed": halves})


def test_what_no_rank_holds_is_named(controller):
    held = Trainer(0), Trainer(1)
    with connected(controller, FAST) as (trainers, ranks):
        for trainer, tensors in zip(trainers, held, strict=True):
            trainer.register(tensors.tensors())
        for rank, worker in enumerate(ranks):
            tensors = Engine(rank).tensors()
            if rank == 1:
                del tensors["qkv"][1]  # Its rows of k.
            worker.register(tensors)
        with pytest.raises(
            wc.Error, match=r"engine e: tensor 'qkv' \[32, 12\]: no rank holds the box \[20:24, 0:12\]"
        ):
            ranks[0].wait(timeout=30)
