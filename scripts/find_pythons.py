#!/usr/bin/env python3
"""Finds the Pythons of this machine that an extension can be built for: on the PATH, then pyenv's.

Prints a line for each minor version, "3.12 /root/.pyenv/versions/3.12.1/bin/python", oldest first.
"""

import os
import pathlib
import shutil
import subprocess

OLDEST, NEWEST = 10, 19
# CPython with its headers and pip, and not the free-threaded build, which has no stable ABI.
PROBE = """
import ensurepip, os, sys, sysconfig
assert sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print(sys.version_info.minor if sys.version_info.major == 3 else -1, sys.executable)
"""


def probe(candidate: str) -> tuple[int, str] | None:
    """Its minor version and real path; None if nothing can be built for it."""
    try:
        command = [candidate, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    minor, path = done.stdout.strip().split(" ", 1)
    return int(minor), path


def candidates() -> list[str]:
    found = [shutil.which(f"python3.{minor}") for minor in range(OLDEST, NEWEST + 1)]
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    of_pyenv = sorted(root.glob("versions/3.*/bin/python"), reverse=True)
    return [path for path in found if path] + [os.fspath(path) for path in of_pyenv]


def find_pythons() -> dict[int, str]:
    """Minor version → interpreter, oldest first."""
    pythons: dict[int, str] = {}
    for candidate in candidates():
        known = probe(candidate)
        if known and OLDEST <= known[0] <= NEWEST:
            pythons.setdefault(*known)
    return dict(sorted(pythons.items()))


if __name__ == "__main__":
    for minor, path in find_pythons().items():
        print(f"3.{minor} {path}")
