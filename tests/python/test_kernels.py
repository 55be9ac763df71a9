"""The FP8 kernels' host versions against the definition in numpy and ml_dtypes."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

from conftest import ROOT

ml_dtypes = pytest.importorskip("ml_dtypes")

BLOCK = 128
LARGEST = np.float32(448)
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    out = tmp_path_factory.mktemp("bin") / "kernels_main"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-Isrc", "-o", str(out)]
    sources = ["tests/python/kernels_main.cc", "src/kernels/host_kernels.cc"]
    subprocess.run(command + sources, cwd=ROOT, check=True)
    return out


def kernel(program: pathlib.Path, dtype: str, how: str, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scales and the bytes of the elements."""
    command = [str(program), dtype, how, *map(str, matrix.shape)]
    out = subprocess.run(command, input=matrix.tobytes(), stdout=subprocess.PIPE, check=True).stdout
    split = len(out) - matrix.size
    return np.frombuffer(out[:split], np.float32), np.frombuffer(out[split:], np.uint8).reshape(matrix.shape)


def quantise(block: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """The definition: every step in F32, rounded to nearest, ties to even."""
    x = block.astype(np.float32)
    with np.errstate(all="ignore"):
        amax = np.maximum(np.abs(x).max(), np.float32(2.0**-100))
        scaled = x * (LARGEST / amax)
        q = np.clip(scaled, -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        scale = amax / LARGEST
    return scale, np.where(np.isnan(scaled), np.uint8(0x7F), q)


def special(matrix: np.ndarray, seed: int) -> np.ndarray:
    """Some blocks with zeros only, with an infinity or with a NaN."""
    if seed % 2:
        matrix[:BLOCK, :BLOCK] = 0
        matrix[-1, -1] = np.inf
        matrix[0, -1] = np.nan if seed % 4 == 1 else matrix[0, -1]
    return matrix


def matrix_of(dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows, columns = (int(n) for n in rng.integers(1, 500, size=2))
    values = rng.standard_normal((rows, columns)) * 10.0 ** rng.uniform(-4, 2, size=(rows, columns))
    return special(values.astype(DTYPES[dtype]), seed)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_have_their_own_scales(program: pathlib.Path, dtype: str, seed: int) -> None:
    matrix = matrix_of(dtype, seed)
    scales, elements = kernel(program, dtype, "blocks", matrix)
    places = [(r, c) for r in range(0, matrix.shape[0], BLOCK) for c in range(0, matrix.shape[1], BLOCK)]
    assert len(scales) == len(places)
    for found, (row, column) in zip(scales, places, strict=True):
        box = np.s_[row : row + BLOCK, column : column + BLOCK]
        scale, expected = quantise(matrix[box])
        np.testing.assert_array_equal(found, scale)
        np.testing.assert_array_equal(elements[box], expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_has_one_scale(program: pathlib.Path, dtype: str, seed: int) -> None:
    matrix = matrix_of(dtype, seed)
    scales, elements = kernel(program, dtype, "tensor", matrix)
    scale, expected = quantise(matrix)
    np.testing.assert_array_equal(scales, [scale])
    np.testing.assert_array_equal(elements, expected)


def test_e4m3_of_a_sample_of_all_values(program: pathlib.Path) -> None:
    """A tensor whose largest value is 448 is not scaled."""
    bits = np.arange(0, 1 << 32, 251, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    values = values[np.abs(values) <= LARGEST]
    values = np.append(values, LARGEST).reshape(1, -1)
    _, elements = kernel(program, "f32", "tensor", values)
    np.testing.assert_array_equal(elements, values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
