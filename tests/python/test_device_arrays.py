"""Arrays in GPU memory: on the fake driver, which `make test-cpp` builds."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = pathlib.Path(
    os.environ.get("WC_TEST_CUDA_LIBRARY", ROOT / "build" / "debug" / "tests" / "libfake_cuda.so")
)


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")
def test_arrays_on_the_fake_driver() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "fake_cuda" / "python" / "arrays.py"],
        env={**os.environ, "WC_TEST_CUDA_LIBRARY": str(LIBRARY)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
