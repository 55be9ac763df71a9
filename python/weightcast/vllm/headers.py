"""What a checkpoint has, from the headers of its safetensors files. Needs neither torch nor vLLM."""

from __future__ import annotations

import json
import pathlib
import struct
from typing import Any

from ..errors import InvalidArgument


def offered_by(folder: pathlib.Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{name: (dtype, shape)} as trainers would offer what is in these safetensors files."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InvalidArgument(
            f"{folder} has no *.safetensors; give the folder of a checkpoint (only headers are read)"
        )
    return {
        name: (one["dtype"], tuple(one["shape"]))
        for file in files
        for name, one in _header(file).items()
        if name != "__metadata__"
    }


def _header(file: pathlib.Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            return json.loads(opened.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise InvalidArgument(f"{file} cannot be read as safetensors ({error}); write it again") from error
