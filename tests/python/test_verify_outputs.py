"""The independent proof of bit-exactness against files that the C++ code wrote, and against broken ones."""

import importlib.util
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
import safetensors
import safetensors.numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "tests" / "verify_outputs.py"
SOURCES = [
    *(
        "src/checkpoint/" + name
        for name in ("boxes.cc", "checkpoint.cc", "files.cc", "generate.cc", "header.cc")
    ),
    *("src/checkpoint/" + name for name in ("json.cc", "safetensors.cc", "version_folder.cc", "writer.cc")),
    *("src/plan/" + name for name in ("box.cc", "segments.cc", "tensor.cc")),
    *("src/base/" + name for name in ("json.cc", "random.cc", "status.cc", "strings.cc")),
]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_outputs", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["verify_outputs"] = module
    spec.loader.exec_module(module)
    return module


oracle = load_script()


def reference_knows(dtype: str) -> bool:
    """Older releases of the reference reader lack the youngest types: C64 before 0.7, FNUZ before 0.8."""
    size = oracle.DTYPES[dtype][0]
    header = json.dumps({"x": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}}).encode()
    try:
        safetensors.deserialize(struct.pack("<Q", len(header)) + header + bytes(size))
    except safetensors.SafetensorError:
        return False
    return True


DTYPES = [name for name in oracle.DTYPES if reference_knows(name)]


@pytest.fixture(scope="session")
def write_versions(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The C++ program that writes as the inference side does."""
    program = tmp_path_factory.mktemp("bin") / "write_versions"
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-O1", "-D_GNU_SOURCE", "-Isrc", "-Iinclude", "-o", str(program)]
    subprocess.run([*command, "tests/python/write_versions.cc", *SOURCES], cwd=ROOT, check=True)
    return program


def verify(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], text=True, capture_output=True)


def write(program: pathlib.Path, *arguments: object) -> None:
    subprocess.run([program, *map(str, arguments)], check=True)


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkpoint as the reference writer makes it, with every pattern of a byte in every dtype."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    patterns = np.random.default_rng(1).permuted(np.tile(np.arange(256, dtype=np.uint8), 24))
    header: dict[str, object] = {"__metadata__": {"format": "pt", "z": "ü", "a": '"'}}
    begin = 0
    for dtype in DTYPES:
        elements = patterns.size * 8 // oracle.DTYPES[dtype][0]
        header[dtype] = {
            "dtype": dtype,
            "shape": [2, elements // 2],
            "data_offsets": [begin, begin + patterns.size],
        }
        begin += patterns.size
    text = json.dumps(header, indent=1).encode()  # a layout that is not ours
    data = struct.pack("<Q", len(text)) + text + patterns.tobytes() * len(DTYPES)
    (folder / "model.safetensors").write_bytes(data)
    return folder


def test_the_reference_reader_knows_the_dtypes_of_its_release() -> None:
    release = tuple(int(part) for part in safetensors.__version__.split(".")[:2])
    young = {"C64": (0, 7), "F8_E4M3FNUZ": (0, 8), "F8_E5M2FNUZ": (0, 8)}
    assert [name for name in oracle.DTYPES if release >= young.get(name, (0, 6))] == DTYPES


def test_generated_weights_of_every_dtype(write_versions: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(write_versions, "generated", tmp_path, 1, 3, *DTYPES)
    result = verify(tmp_path, "--versions", 3, "--engines", 1)
    assert (result.returncode, result.stdout) == (0, "bit-exact: 3 files\n"), result.stderr


def test_shards_of_an_engine_of_several_ranks(write_versions: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(write_versions, "generated", tmp_path, 4, 2, *DTYPES)
    result = verify(tmp_path, "--versions", 2)
    assert (result.returncode, result.stdout) == (0, "bit-exact: 8 files\n"), result.stderr


def test_a_checkpoint_and_its_changed_versions(
    write_versions: pathlib.Path, checkpoint: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    out = tmp_path / "out"
    write(write_versions, "changed", checkpoint, out, 4)
    result = verify(out, "--checkpoint", checkpoint, "--versions", 4)
    assert (result.returncode, result.stdout) == (0, "bit-exact: 4 files\n"), result.stderr
    original = (checkpoint / "model.safetensors").read_bytes()
    assert (out / "engine-0" / "1" / "model.safetensors").read_bytes() == original
    assert (out / "engine-0" / "2" / "model.safetensors").read_bytes() != original


def test_a_checkpoint_of_several_files(write_versions: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    weight_map = {}
    for number in (1, 2):
        arrays = {
            f"w{number}": np.arange(100, dtype=np.float32),
            f"b{number}": np.full(7, number, np.float16),
        }
        name = f"model-0000{number}-of-00002.safetensors"
        safetensors.numpy.save_file(arrays, folder / name)
        weight_map |= dict.fromkeys(arrays, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    write(write_versions, "changed", folder, tmp_path / "out", 3)
    result = verify(tmp_path / "out", "--checkpoint", folder)
    assert (result.returncode, result.stdout) == (0, "bit-exact: 3 files\n"), result.stderr


def test_our_header_is_that_of_the_reference_writer(
    write_versions: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    write(write_versions, "generated", tmp_path, 1, 1, "F32", "F16", "I64", "BOOL", "U8")
    ours = tmp_path / "engine-0" / "1" / "model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(ours), tmp_path / "theirs", {"format": "pt"})
    assert ours.read_bytes() == (tmp_path / "theirs").read_bytes()


FLOATS = [name for name in DTYPES if "F" in name and not name.startswith(("F4", "F6_"))]


def finite(raw: np.ndarray, kind: np.dtype) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.isfinite(raw.view(kind).astype(np.float64, copy=False))


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_finite_and_stay_so(dtype: str) -> None:
    """By the definitions of ml_dtypes, not by ours."""
    kind = oracle.numpy_type(dtype)
    original = np.tile(np.arange(1 << 16, dtype=np.uint16).view(np.uint8), 8)
    before = finite(original, kind)
    assert before.any()
    for version in range(1, 5):
        assert finite(oracle.generated("w", dtype, version, 0, 1 << 16), kind).all()
        assert finite(oracle.changed("w", dtype, version, 0, original), kind)[before].all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_line_differs_between_consecutive_versions(dtype: str) -> None:
    original = np.random.default_rng(2).integers(0, 256, 1 << 14, dtype=np.uint8)
    for version in range(1, 6):
        for make in (
            lambda v: oracle.generated("w", dtype, v, 0, 1 << 14),
            lambda v: oracle.changed("w", dtype, v, 0, original),
        ):
            differs = make(version) != make(version + 1)
            for shift in (0, 2, 8, 37):  # lines need not begin where the tensor does
                assert differs[shift : shift + (1 << 14) - 64].reshape(-1, 64).any(axis=1).all()


@pytest.mark.parametrize(
    "offset", [0, 5, -1], ids=["in the header's length", "in the header", "in the last byte of the data"]
)
def test_a_changed_byte_is_found(write_versions: pathlib.Path, tmp_path: pathlib.Path, offset: int) -> None:
    write(write_versions, "generated", tmp_path, 1, 2, "BF16")
    path = tmp_path / "engine-0" / "2" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    result = verify(tmp_path)
    assert result.returncode == 1 and result.stdout == "" and result.stderr.startswith("NOT bit-exact: ")
    if offset == -1:
        assert "engine-0/2/model.safetensors: tensor BF16." in result.stderr
        assert "first difference at byte" in result.stderr


def test_what_is_missing_is_found(write_versions: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(write_versions, "generated", tmp_path, 2, 2, "BF16")
    assert verify(tmp_path, "--versions", 3).returncode == 1
    assert verify(tmp_path, "--engines", 2).returncode == 1
    assert verify(tmp_path, "--model", "gpt2").returncode == 1
    engine = tmp_path / "engine-0"
    second = engine / "2" / "model-rank-00001-of-00002.safetensors"
    kept = second.read_bytes()
    shutil.copy(engine / "1" / second.name, second)
    assert "first difference" in verify(tmp_path).stderr, "a file of another version"
    shutil.copy(engine / "2" / "model-rank-00000-of-00002.safetensors", second)
    assert "do not cover" in verify(tmp_path).stderr, "a rank's shards twice"
    second.write_bytes(kept)
    assert verify(tmp_path).returncode == 0
    second.unlink()
    assert "nor one of each rank" in verify(tmp_path).stderr
    shutil.rmtree(engine)
    assert verify(tmp_path).returncode == 1, "no engine at all"


def test_the_models_are_those_of_their_cards() -> None:
    sizes = {"gpt2": 124_439_808, "qwen2.5-0.5b": 494_032_768, "qwen2.5-7b": 7_615_616_512}
    for name, parameters in sizes.items():
        tensors = oracle.MODELS[name]("BF16")
        assert sum(tensor.bytes for tensor in tensors.values()) == 2 * parameters
