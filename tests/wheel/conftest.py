"""Environments with nothing but numpy and a wheel from dist/. `make test-wheel` builds the wheels first."""

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, os.fspath(ROOT / "scripts"))


class Installed:
    """A wheel in an environment of its own; commands run as for a user who has nothing else."""

    def __init__(self, python: str, wheel: pathlib.Path, folder: pathlib.Path) -> None:
        self.folder = folder
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [folder / "bin/pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "numpy"], check=True)
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)

    def run(self, command: str, *arguments: object, timeout: float = 240) -> str:
        """A command of the environment, away from the source tree; its standard output."""
        environment = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "HOME": os.fspath(self.folder)}
        words = [os.fspath(self.folder / "bin" / command), *map(str, arguments)]
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def wheels() -> list[pathlib.Path]:
    found = sorted((ROOT / "dist").glob("weightcast-*.whl"))
    assert found, "run `make wheel` first"
    return found


@pytest.fixture(scope="session")
def stable(wheels: list[pathlib.Path]) -> pathlib.Path:
    """The wheel for the stable ABI."""
    (wheel,) = [wheel for wheel in wheels if "-cp312-abi3-" in wheel.name]
    return wheel


@pytest.fixture(scope="session")
def pythons() -> dict[int, str]:
    from find_pythons import find_pythons

    return find_pythons()


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, pathlib.Path], Installed]:
    made: dict[tuple[str, pathlib.Path], Installed] = {}

    def once(python: str, wheel: pathlib.Path) -> Installed:
        if (python, wheel) not in made:
            made[python, wheel] = Installed(python, wheel, tmp_path_factory.mktemp("environment"))
        return made[python, wheel]

    yield once
    for installed in made.values():
        shutil.rmtree(installed.folder, ignore_errors=True)
