"""The digest of tensors: the C++ core against the definition in numpy, and both sides of an update."""

import concurrent.futures
import contextlib
import os
import pathlib
import pickle
import subprocess

import numpy as np
import pytest

import weightcast as wc
from conftest import FAST, ROOT
from digest_reference import digest

SOURCES = [
    *("src/digest/" + name for name in ("combine.cc", "digest.cc", "dots.cc")),
    *("src/plan/" + name for name in ("box.cc", "box_index.cc", "cover.cc", "segments.cc", "tensor.cc")),
    *("src/base/" + name for name in ("hash.cc", "status.cc", "strings.cc")),
]
WIDTHS = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}


@pytest.fixture(scope="module")
def digest_boxes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    program = tmp_path_factory.mktemp("bin") / "digest_boxes"
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-O1", "-D_GNU_SOURCE", "-DXXH_INLINE_ALL", "-Isrc", "-Iinclude"]
    command += ["-o", str(program), "tests/python/digest_boxes.cc", *SOURCES, "-lcrypto"]
    subprocess.run(command, cwd=ROOT, check=True)
    return program


def core(program: pathlib.Path, name: str, dtype: str, *texts: object, data: bytes) -> str:
    numbers = [",".join(map(str, text)) for text in texts]
    done = subprocess.run([program, name, dtype, *numbers], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().strip()


@pytest.mark.parametrize("seed", range(40))
def test_boxes_agree_with_the_definition(digest_boxes: pathlib.Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = list(WIDTHS)[seed % len(WIDTHS)]
    shape = tuple(rng.integers(1, 60, size=rng.integers(1, 4)).tolist())
    offset = [int(rng.integers(0, size)) for size in shape]
    extent = [int(rng.integers(0, size - begin + 1)) for size, begin in zip(shape, offset, strict=True)]
    box = tuple(slice(begin, begin + size) for begin, size in zip(offset, extent, strict=True))
    elements = rng.integers(0, 256, size=(*shape, WIDTHS[dtype]), dtype=np.uint8)
    present = np.zeros(elements.shape, dtype=bool)
    present[box] = True
    expected = digest(f"layer {seed} é", dtype, shape, elements.tobytes(), present.reshape(-1))
    data = elements[box].tobytes()
    assert core(digest_boxes, f"layer {seed} é", dtype, shape, offset, extent, data=data) == expected


@pytest.mark.parametrize(("dtype", "shape"), [("F64", ()), ("U8", (300_001,))])
def test_scalars_and_long_tensors(digest_boxes: pathlib.Path, dtype: str, shape: tuple[int, ...]) -> None:
    count = sum(shape) or 8  # Bytes.
    data = np.random.default_rng(1).integers(0, 256, size=count, dtype=np.uint8).tobytes()
    expected = digest("w", dtype, shape, data, np.ones(count, dtype=bool))
    assert core(digest_boxes, "w", dtype, shape, [0] * len(shape), shape, data=data) == expected


SHAPES = {"embed": (37, 10), "norm": (9,), "experts": (4, 6, 8)}


def values(version: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(version)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def cut(name: str, dim: int, rank: int, fortran: bool = False) -> wc.Shard:
    """Half `rank` of a tensor of zeros, cut along `dim`."""
    shape = SHAPES[name]
    half = -(-shape[dim] // 2)
    size, offset = list(shape), [0] * len(shape)
    size[dim] = shape[dim] - half if rank else half
    offset[dim] = half * rank
    return wc.Shard(np.zeros(size, np.float32, order="F" if fortran else "C"), shape, offset)


def fill(held: dict[str, wc.Shard], version: int) -> None:
    for name, shard in held.items():
        box = tuple(
            slice(begin, begin + size) for begin, size in zip(shard.offset, shard.array.shape, strict=True)
        )
        shard.array[...] = values(version)[name][box]


class Sides:
    """Two trainers that hold rows, one of them in Fortran's order, and an engine whose ranks hold columns."""

    def __init__(self, stack: contextlib.ExitStack, controller: str, **more: object) -> None:
        settings = {**FAST, "transport": "shm", **more}
        self.rows = [{name: cut(name, 0, rank, fortran=rank == 1) for name in SHAPES} for rank in range(2)]
        self.columns = [{name: cut(name, -1, rank) for name in SHAPES} for rank in range(2)]
        for held in self.columns:  # Both ranks have all of it.
            held["norm"] = wc.Shard(np.zeros(9, np.float32), (9,), (0,))
        self.trainers = [
            stack.enter_context(wc.Trainer(controller, rank=rank, world_size=2, settings=settings))
            for rank in range(2)
        ]
        self.ranks = [
            stack.enter_context(
                wc.Inference(controller, engine="e", rank=rank, world_size=2, settings=settings)
            )
            for rank in range(2)
        ]
        for worker, held in zip(self.trainers + self.ranks, self.rows + self.columns, strict=True):
            worker.register(held)

    def update(self, version: int) -> list[wc.Update]:
        updates = []
        for trainer, held in zip(self.trainers, self.rows, strict=True):
            fill(held, version)
            updates.append(trainer.publish(version))
        with concurrent.futures.ThreadPoolExecutor() as threads:
            served = list(threads.map(lambda rank: rank.wait(timeout=30), self.ranks))
        assert [one.number for one in served] == [version, version]
        return updates


def combined(workers: list) -> dict[str, str]:
    """As when the ranks' digests come from other processes."""
    return wc.combine_digests([pickle.loads(pickle.dumps(worker.digest())) for worker in workers])


@pytest.fixture
def sides(controller: str):
    with contextlib.ExitStack() as stack:
        yield Sides(stack, controller)


def test_both_sides_of_an_update_have_equal_digests(sides: Sides) -> None:
    seen = []
    for version in (1, 2):
        sides.update(version)
        sent = combined(sides.trainers)
        assert combined(sides.ranks) == sent
        for name, value in values(version).items():
            data = np.ones(value.nbytes, dtype=bool)
            assert sent[name] == digest(name, "F32", SHAPES[name], value.tobytes(), data)
        seen += sent.values()
    assert len(set(seen)) == len(seen)


def test_with_the_setting_every_update_is_compared(controller: str, capfd: pytest.CaptureFixture) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(wc.set_log_level, "warning")
        wc.set_log_level("info")
        sides = Sides(stack, controller, compare=1)
        for version in (1, 2):
            for update in sides.update(version):
                assert [one.compared for one in update.wait(30).receivers] == [3, 3]
    said = [line for line in capfd.readouterr().err.splitlines() if "trainers == engines" in line]
    assert len(said) == 2, said
    assert all(line.endswith("trainers == engines, 6 tensors at 2 ranks, 0 gathers") for line in said), said


def test_a_flipped_byte_is_found_and_named(sides: Sides) -> None:
    sides.update(1)
    sent = combined(sides.trainers)
    sides.columns[1]["experts"].array.view(np.uint8)[2, 3, 5] ^= 0x10
    have = combined(sides.ranks)
    assert [name for name in SHAPES if have[name] != sent[name]] == ["experts"]


def test_replicas_that_differ_are_named(sides: Sides) -> None:
    sides.update(1)
    sides.columns[1]["norm"].array.view(np.uint8)[7] ^= 1
    with pytest.raises(wc.Corrupt, match=r"tensor 'norm': the box \[0:9\] .* at rank 0 and .* at rank 1"):
        combined(sides.ranks)


def test_a_missing_rank_is_named_by_its_box(sides: Sides) -> None:
    with pytest.raises(
        wc.InvalidArgument, match=r"'embed' \[37, 10\]: no rank holds the box \[19:37, 0:10\]"
    ):
        combined(sides.trainers[:1])


def test_ranks_of_different_dtypes_are_refused() -> None:
    halves = [
        wc.ShardDigest("w", dtype, (4,), (offset,), (2,), "0" * 32)
        for dtype, offset in (("F32", 0), ("BF16", 2))
    ]
    with pytest.raises(wc.InvalidArgument, match=r"'w' is F32 \[4\] at rank 0 and BF16 \[4\] at rank 1"):
        wc.combine_digests([[one] for one in halves])
    with pytest.raises(wc.InvalidArgument, match="is not a digest"):
        wc.combine_digests([[halves[0]._replace(digest="12")]])


def test_digests_are_refused_where_bytes_may_land(sides: Sides) -> None:
    with pytest.raises(wc.Unavailable, match="serves no version"):
        sides.ranks[0].digest()
    sides.update(1)
    for rank in sides.ranks:
        rank.begin()
    with pytest.raises(wc.InvalidArgument, match="after finish or abort"):
        sides.ranks[0].digest()
    for rank in sides.ranks:
        rank.abort()
    assert combined(sides.ranks) == combined(sides.trainers)


def test_tensors_that_moved_are_refused(controller: str) -> None:
    held = {"w": np.zeros(5, np.float32)}
    with wc.Trainer(controller, settings=FAST) as trainer:
        trainer.register(lambda: held)
        (before,) = trainer.digest()
        held["w"] = np.zeros(5, np.float32)
        with pytest.raises(wc.InvalidArgument, match=r"w moved in memory .* publish"):
            trainer.digest()
        trainer.publish(1)
        assert trainer.digest() == [before]
