"""The digest of tensors: the C++ core against the definition in numpy, box by box."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from conftest import ROOT
from digest_reference import digest

SOURCES = [
    *("src/digest/" + name for name in ("digest.cc", "dots.cc")),
    *("src/plan/" + name for name in ("box.cc", "segments.cc", "tensor.cc")),
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
