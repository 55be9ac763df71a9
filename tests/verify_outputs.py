#!/usr/bin/env python3
"""Proves that the inference side wrote exactly the weights of each version.

Makes every version again from the formula written down in src/checkpoint/generate.h, with numpy
and without any code of weightcast, and compares it with OUTPUT/<engine>/<version>/. The files are
also opened with the reference reader, the safetensors package.

  tests/verify_outputs.py OUT --model gpt2 --versions 5 --engines 2   # generated weights
  tests/verify_outputs.py OUT --checkpoint DIR                        # a checkpoint and its changed versions

Prints `bit-exact: N files` and exits with 0, or says what differs first and exits with 1; 2: usage.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import safetensors

CHUNK = 1 << 20  # bytes compared at a time; a multiple of 8
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
WORD_STEP, VERSION_STEP = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
MASK_64 = (1 << 64) - 1


class Mismatch(Exception):
    """What was written is not what it should be."""


@dataclass(frozen=True)
class Masks:
    """A row of the table in generate.h, each mask repeated over 64 bits."""

    keep: int
    set: int
    low: int
    change: int
    nan: int = 0
    care: int = 0


def masks(width: int, *values: int) -> Masks:
    repeat = sum(1 << shift for shift in range(0, 64, width))
    return Masks(*(value * repeat for value in values))


_BYTE = masks(8, 0xFE, 0x00, 0x01, 0x0E)
_FNUZ = masks(8, 0x9E, 0x20, 0x01, 0x02, 0x80, 0xFF)
_F32 = masks(32, 0x81FFFFFE, 0x3C000000, 1, 0x0000FFFE)
_INT16 = masks(16, 0xFFFE, 0, 1, 0x000E)
_INT32 = masks(32, 0xFFFFFFFE, 0, 1, 0x000000FE)
_INT64 = masks(64, 0xFFFFFFFFFFFFFFFE, 0, 1, 0xFE)

# name: bits, masks, and the numpy type in which to show an element.
DTYPES: dict[str, tuple[int, Masks, str]] = {
    "BOOL": (8, masks(8, 0x01, 0x00, 0x01, 0x00), "bool"),
    "F4": (4, masks(8, 0xEE, 0x00, 0x11, 0x22), "uint8"),
    "F6_E2M3": (6, _BYTE, "uint8"),
    "F6_E3M2": (6, _BYTE, "uint8"),
    "U8": (8, _BYTE, "uint8"),
    "I8": (8, _BYTE, "int8"),
    "F8_E5M2": (8, masks(8, 0xBE, 0x00, 0x01, 0x02), "float8_e5m2"),
    "F8_E4M3": (8, masks(8, 0xBE, 0x00, 0x01, 0x02, 0x7F, 0x7F), "float8_e4m3fn"),
    "F8_E8M0": (8, masks(8, 0x0E, 0x70, 0x01, 0x02, 0xFF, 0xFF), "float8_e8m0fnu"),
    "F8_E4M3FNUZ": (8, _FNUZ, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, _FNUZ, "float8_e5m2fnuz"),
    "I16": (16, _INT16, "int16"),
    "U16": (16, _INT16, "uint16"),
    "F16": (16, masks(16, 0x8FFE, 0x2000, 1, 0x001E), "float16"),
    "BF16": (16, masks(16, 0x81FE, 0x3C00, 1, 0x0006), "bfloat16"),
    "I32": (32, _INT32, "int32"),
    "U32": (32, _INT32, "uint32"),
    "F32": (32, _F32, "float32"),
    "C64": (64, _F32, "complex64"),
    "F64": (64, masks(64, 0x803FFFFFFFFFFFFE, 0x3F80000000000000, 1, 0x00000000FFFFFFFE), "float64"),
    "I64": (64, _INT64, "int64"),
    "U64": (64, _INT64, "uint64"),
}


def numpy_type(dtype: str) -> np.dtype:
    name = DTYPES[dtype][2]
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][0] // 8


# --- The formula -------------------------------------------------------------------------------


def mix_in_place(z: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64."""
    for shift, factor in ((30, MIX_1), (27, MIX_2)):
        z ^= z >> np.uint64(shift)
        z *= factor
    z ^= z >> np.uint64(31)
    return z


def seed(name: str, version: int) -> np.uint64:
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = ((digest ^ byte) * 0x100000001B3) & MASK_64
    start = (digest + version * VERSION_STEP) & MASK_64
    return mix_in_place(np.array([start], np.uint64))[0]


def noise(name: str, version: int, first: int, count: int) -> np.ndarray:
    """noise(name, version, i) for words first .. first + count - 1."""
    z = np.arange(first, first + count, dtype=np.uint64)
    z *= np.uint64(WORD_STEP)
    z += seed(name, version)
    return mix_in_place(z)


def generated(name: str, dtype: str, version: int, begin: int, size: int) -> np.ndarray:
    """Bytes begin .. begin + size of a generated tensor; begin is a multiple of 8."""
    mask = DTYPES[dtype][1]
    words = noise(name, 0 if dtype == "BOOL" else version, begin // 8, -(-size // 8))
    words &= np.uint64(mask.keep)
    words |= np.uint64(mask.set)
    words ^= np.uint64(mask.low if version % 2 else 0)
    return words.view(np.uint8)[:size]


def zero_bytes(words: np.ndarray) -> np.ndarray:
    """0x80 for each byte that is zero."""
    return (words.view(np.uint8) == 0).astype(np.uint8).view(np.uint64) << np.uint64(7)


def changed(name: str, dtype: str, version: int, begin: int, original: np.ndarray) -> np.ndarray:
    """The same of a checkpoint's tensor, of which `original` are the bytes from begin on."""
    if version == 1:
        return original
    mask = DTYPES[dtype][1]
    before = np.zeros(-(-original.size // 8), np.uint64)
    before.view(np.uint8)[: original.size] = original
    after = noise(name, version, begin // 8, before.size) & np.uint64(mask.change)
    after ^= before ^ np.uint64(mask.low if version % 2 == 0 else 0)
    if mask.care:
        nan, care = np.uint64(mask.nan), np.uint64(mask.care)
        made, had = zero_bytes((after ^ nan) & care), zero_bytes((before ^ nan) & care)
        after ^= (made & ~had) >> np.uint64(1)
    return after.view(np.uint8)[: original.size]


# --- Files -------------------------------------------------------------------------------------


@dataclass
class File:
    """A safetensors file, taken apart by hand and checked against the reference reader."""

    path: pathlib.Path
    header: bytes = b""
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    data: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raw = np.memmap(self.path, np.uint8, "r")
        start = 8 + struct.unpack("<Q", raw[:8].tobytes())[0]
        self.header = raw[:start].tobytes()
        entries = json.loads(self.header[8:])
        self.metadata = entries.pop("__metadata__", None) or {}
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            self.tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]))
            self.data[name] = raw[start + begin : start + end]
        self._check_with_reference()

    def _check_with_reference(self) -> None:
        with safetensors.safe_open(self.path, "numpy") as reference:
            found = {}
            for name in reference.keys():  # noqa: SIM118
                part = reference.get_slice(name)
                found[name] = Tensor(part.get_dtype(), tuple(part.get_shape()))
            if found != self.tensors or (reference.metadata() or {}) != self.metadata:
                raise Mismatch(f"{self.path}: the safetensors package reads another header")


class Checkpoint:
    """What the trainers published as version 1."""

    def __init__(self, path: pathlib.Path) -> None:
        self.files = [File(found) for found in self._paths(path)]
        self.tensors = {name: tensor for file in self.files for name, tensor in file.tensors.items()}
        self.data = {name: data for file in self.files for name, data in file.data.items()}

    @staticmethod
    def _paths(path: pathlib.Path) -> list[pathlib.Path]:
        if path.is_file():
            return [path]
        if (path / "model.safetensors").exists():
            return [path / "model.safetensors"]
        index = path / "model.safetensors.index.json"
        if index.exists():
            return sorted({path / name for name in json.loads(index.read_text())["weight_map"].values()})
        return sorted(path.glob("*.safetensors"))


def gpt2(dtype: str) -> dict[str, Tensor]:
    """GPT-2 small, from its model card: 12 layers of 768, vocabulary 50257, context 1024."""
    width = 768
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (50257, width), "wpe.weight": (1024, width)}
    linear = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
    linear |= {"mlp.c_fc": (width, 4 * width), "mlp.c_proj": (4 * width, width)}
    norms = [f"h.{layer}.ln_{n}" for layer in range(12) for n in (1, 2)] + ["ln_f"]
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for layer in range(12):
        for name, shape in linear.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
    assert len(shapes) == 148 and sum(map(math.prod, shapes.values())) == 124_439_808
    return {name: Tensor(dtype, shape) for name, shape in shapes.items()}


def qwen(dtype: str) -> dict[str, Tensor]:
    """Qwen2.5-0.5B, from its config.json: 24 layers of 896, 2 key/value heads of 64, tied embeddings."""
    shapes = qwen_shapes(layers=24, width=896, inner=4864, keys=128, words=151936)
    assert len(shapes) == 290 and sum(map(math.prod, shapes.values())) == 494_032_768
    return {name: Tensor(dtype, shape) for name, shape in shapes.items()}


def qwen_7b(dtype: str) -> dict[str, Tensor]:
    """Qwen2.5-7B: 28 layers of 3584, 4 key/value heads of 128, a head of its own."""
    shapes = qwen_shapes(layers=28, width=3584, inner=18944, keys=512, words=152064)
    shapes["lm_head.weight"] = (152064, 3584)
    assert len(shapes) == 339 and sum(map(math.prod, shapes.values())) == 7_615_616_512
    return {name: Tensor(dtype, shape) for name, shape in shapes.items()}


def qwen_shapes(layers: int, width: int, inner: int, keys: int, words: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, width),
        "model.norm.weight": (width,),
    }
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        for part, outputs in (("q", width), ("k", keys), ("v", keys)):
            shapes[f"{stem}self_attn.{part}_proj.weight"] = (outputs, width)
            shapes[f"{stem}self_attn.{part}_proj.bias"] = (outputs,)
        shapes[f"{stem}self_attn.o_proj.weight"] = (width, width)
        shapes |= {f"{stem}mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        shapes[f"{stem}mlp.down_proj.weight"] = (width, inner)
        shapes |= {f"{stem}{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
    return shapes


MODELS = {"gpt2": gpt2, "qwen2.5-0.5b": qwen, "qwen2.5-7b": qwen_7b}


# --- Comparing ---------------------------------------------------------------------------------


class Expected:
    """Every byte of every version."""

    def __init__(self, tensors: dict[str, Tensor] | None, checkpoint: Checkpoint | None) -> None:
        self.tensors = checkpoint.tensors if checkpoint else tensors
        self.checkpoint = checkpoint

    def chunks(self, name: str, tensor: Tensor, version: int) -> Iterator[tuple[int, np.ndarray]]:
        """(begin, bytes) of the whole tensor."""
        for begin in range(0, tensor.bytes, CHUNK):
            size = min(CHUNK, tensor.bytes - begin)
            if self.checkpoint is None:
                yield begin, generated(name, tensor.dtype, version, begin, size)
            else:
                original = self.checkpoint.data[name][begin : begin + size]
                yield begin, changed(name, tensor.dtype, version, begin, original)

    def whole(self, name: str, tensor: Tensor, version: int) -> np.ndarray:
        out = np.empty(tensor.bytes, np.uint8)
        for begin, part in self.chunks(name, tensor, version):
            out[begin : begin + part.size] = part
        return out

    def check_tensors(self, found: dict[str, Tensor], where: pathlib.Path) -> None:
        if self.tensors is None:
            if not found:
                raise Mismatch(f"{where}: no tensors")
            return
        for name in sorted(self.tensors.keys() | found.keys()):
            if self.tensors.get(name) != found.get(name):
                raise Mismatch(
                    f"{where}: tensor {name}: expected {self.tensors.get(name)}, found {found.get(name)}"
                )


def report_difference(where: str, dtype: str, begin: int, expected: np.ndarray, found: np.ndarray) -> None:
    """Raises for the first byte that differs; `begin` is where both begin in the tensor."""
    at = int(np.flatnonzero(expected != found)[0])
    size = numpy_type(dtype).itemsize
    first = at - (begin + at) % size
    values = [part[first : first + size].copy().view(numpy_type(dtype))[:1] for part in (expected, found)]
    raise Mismatch(
        f"{where}: first difference at byte {begin + at}: expected 0x{expected[at]:02x} "
        f"(element {values[0]}), found 0x{found[at]:02x} (element {values[1]})"
    )


def compare_whole(file: File, expected: Expected, version: int) -> None:
    expected.check_tensors(file.tensors, file.path)
    for name, tensor in file.tensors.items():
        for begin, part in expected.chunks(name, tensor, version):
            found = file.data[name][begin : begin + part.size]
            if not np.array_equal(found, part):
                report_difference(f"{file.path}: tensor {name}", tensor.dtype, begin, part, found)
    if expected.checkpoint and len(expected.checkpoint.files) == 1:
        original = expected.checkpoint.files[0]
        if file.header != original.header:
            raise Mismatch(f"{file.path}: the header is not that of {original.path}")


def byte_box(shape: tuple[int, ...], bits: int) -> list[int]:
    """A shape or an offset with its last dimension in bytes."""
    dims = list(shape)
    dims[-1] = dims[-1] * bits // 8
    return dims


def compare_shard(file: File, name: str, whole: Tensor, offset: list[int], data: np.ndarray) -> None:
    part = file.tensors[name]
    if part.dtype != whole.dtype or len(offset) != len(whole.shape) or len(part.shape) != len(whole.shape):
        raise Mismatch(f"{file.path}: tensor {name}: {part} at {offset} is no part of {whole}")
    if whole.shape:
        bits = DTYPES[whole.dtype][0]
        starts, sizes = byte_box(tuple(offset), bits), byte_box(part.shape, bits)
        box = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
        data = data.reshape(byte_box(whole.shape, bits))[box].reshape(-1)
    if data.size != file.data[name].size:
        raise Mismatch(f"{file.path}: tensor {name}: {part} at {offset} is not inside {whole}")
    if not np.array_equal(data, file.data[name]):
        report_difference(f"{file.path}: shard of tensor {name}", whole.dtype, 0, data, file.data[name])


def check_coverage(name: str, whole: Tensor, boxes: set[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Replicas are one box; different boxes must cover the tensor without overlap."""
    ordered = sorted(boxes)
    for i, (offset, size) in enumerate(ordered):
        for other, other_size in ordered[i + 1 :]:
            apart = [
                o + s <= p or p + t <= o for o, s, p, t in zip(offset, size, other, other_size, strict=True)
            ]
            if not any(apart) and math.prod(size) and math.prod(other_size):
                raise Mismatch(f"tensor {name}: shards at {offset} and {other} overlap")
    if sum(math.prod(size) for _, size in ordered) != math.prod(whole.shape):
        raise Mismatch(f"tensor {name}: the shards do not cover {whole}")


def compare_shards(files: list[File], expected: Expected, version: int) -> None:
    offsets: dict[str, dict[pathlib.Path, list[int]]] = {}
    tensors: dict[str, Tensor] = {}
    for file in files:
        shards = json.loads(file.metadata["weightcast.shards"])
        if shards.keys() != file.tensors.keys():
            raise Mismatch(f"{file.path}: weightcast.shards names other tensors than the file has")
        for name, shard in shards.items():
            whole = Tensor(file.tensors[name].dtype, tuple(shard["shape"]))
            if tensors.setdefault(name, whole) != whole:
                raise Mismatch(f"{file.path}: tensor {name} is {whole} here and {tensors[name]} elsewhere")
            offsets.setdefault(name, {})[file.path] = shard["offset"]
    expected.check_tensors(tensors, files[0].path.parent)
    for name, whole in tensors.items():
        data = expected.whole(name, whole, version)
        holders = [file for file in files if file.path in offsets[name]]
        for file in holders:
            compare_shard(file, name, whole, offsets[name][file.path], data)
        check_coverage(name, whole, {(tuple(offsets[name][f.path]), f.tensors[name].shape) for f in holders})


def compare_version(folder: pathlib.Path, expected: Expected) -> int:
    """Compares one version of one engine; the number of files."""
    version = int(folder.name.rpartition(":")[2])
    names = sorted(path.name for path in folder.iterdir())
    if names == ["model.safetensors"]:
        compare_whole(File(folder / names[0]), expected, version)
        return 1
    count = re.fullmatch(r"model-rank-\d{5}-of-(\d{5})\.safetensors", names[0]) if names else None
    ranks = int(count[1]) if count else 0
    if not ranks or names != [f"model-rank-{rank:05}-of-{ranks:05}.safetensors" for rank in range(ranks)]:
        raise Mismatch(f"{folder}: not the file of one rank, nor one of each rank: {names}")
    compare_shards([File(folder / name) for name in names], expected, version)
    return ranks


def folders(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def verify(output: pathlib.Path, expected: Expected, versions: int | None, engines: int | None) -> int:
    found = folders(output)
    if not found or engines not in (None, len(found)):
        raise Mismatch(f"{output}: {len(found)} engines, not {engines or 'one at least'}")
    files = 0
    for engine in found:
        labels = sorted(folders(engine), key=lambda folder: (len(folder.name), folder.name))
        numbers = sorted(int(label.name.rpartition(":")[2]) for label in labels)
        if not labels or (versions and numbers != list(range(1, versions + 1))):
            raise Mismatch(
                f"{engine}: versions {numbers}, not {f'1 to {versions}' if versions else 'one at least'}"
            )
        files += sum(compare_version(label, expected) for label in labels)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=pathlib.Path, help="the folder that holds one folder an engine")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--model", choices=MODELS, help="generated weights of this model (default: of the tensors found)"
    )
    source.add_argument(
        "--checkpoint", type=pathlib.Path, help="version 1 is this checkpoint, later ones are changed from it"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="BF16", help="of --model (default: %(default)s)")
    parser.add_argument("--versions", type=int, help="each engine must have exactly versions 1 to this")
    parser.add_argument("--engines", type=int, help="there must be exactly this many engines")
    options = parser.parse_args()
    if not options.output.is_dir():
        parser.error(f"{options.output} is not a folder")
    try:
        checkpoint = Checkpoint(options.checkpoint) if options.checkpoint else None
        tensors = MODELS[options.model](options.dtype) if options.model else None
        files = verify(options.output, Expected(tensors, checkpoint), options.versions, options.engines)
    except (Mismatch, OSError, ValueError, KeyError, struct.error, safetensors.SafetensorError) as error:
        print(f"NOT bit-exact: {error or repr(error)}", file=sys.stderr)
        return 1
    print(f"bit-exact: {files} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
