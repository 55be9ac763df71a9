"""Peers are installed below a folder of the build: in environments of their own, or only unpacked."""

import pathlib
import shutil
import subprocess
import sys

from . import Missing

LIBRARIES = (
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/aarch64-linux-gnu",
)


def _run(what: str, command: list[object], **options: object) -> None:
    try:
        subprocess.run(
            list(map(str, command)), check=True, capture_output=True, text=True, timeout=600, **options
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or ["no reason given"]
        raise Missing(f"{what}: {lines[-1]}; correct that and run again") from None
    except (subprocess.SubprocessError, OSError) as error:
        raise Missing(f"{what}: {error}; correct that and run again") from None


def python_with(folder: pathlib.Path, package: str) -> pathlib.Path:
    """An interpreter of an environment with this package of PyPI and numpy, and nothing else."""
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run("no environment", [sys.executable, "-m", "venv", folder])
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run("numpy cannot be installed", [*pip, "numpy"])
        _run(f"{package} cannot be installed", [*pip, "--no-deps", package])
        done.touch()
    return python


def unpack_debian(folder: pathlib.Path, packages: list[str]) -> pathlib.Path:
    """The files of these packages of Debian below the folder; nothing of the system changes."""
    done = folder / "unpacked"
    if not done.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Missing("its packages are Debian's, and apt-get or dpkg-deb is missing; run on Debian")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _run("cannot be fetched", ["apt-get", "download", *packages], cwd=folder)
        for archive in folder.glob("*.deb"):
            _run("cannot be unpacked", ["dpkg-deb", "-x", archive, folder])
        done.touch()
    return folder


def library_path(root: pathlib.Path) -> str:
    """For LD_LIBRARY_PATH."""
    return ":".join(str(root / part) for part in LIBRARIES if (root / part).is_dir())
