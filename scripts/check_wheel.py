#!/usr/bin/env python3
"""Is a wheel true to its tag? Reads the symbol versions of every ELF file in it, and more.

scripts/check_wheel.py dist/*.whl      exits with 1 and names file and symbol version if not
"""

import argparse
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import zipfile

# What manylinux_2_34 promises to find on x86_64 (PEP 600; auditwheel's policy of that name).
LIMITS = {"GLIBC": "2.34", "GLIBCXX": "3.4.29", "CXXABI": "1.3.13", "GCC": "7.0.0", "ZLIB": "1.2.9"}
SYSTEM_LIBRARIES = {
    *("libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"),
    *("libgcc_s.so.1", "libstdc++.so.6", "libz.so.1"),
}
NUMBERED = re.compile(r"\d+(\.\d+)*")
UNNUMBERED = ("FLOAT128", "TM_1")  # CXXABI's.
MAX_BYTES = 25_000_000
TAG = "manylinux_2_34_x86_64"


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


class Elf:
    """What a dynamic ELF file wants of others, as `objdump -p` tells it."""

    def __init__(self, path: pathlib.Path):
        text = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
        self.needed = re.findall(r"^\s+NEEDED\s+(\S+)", text, re.MULTILINE)
        self.run_paths = re.findall(r"^\s+(?:RPATH|RUNPATH)\s+(\S+)", text, re.MULTILINE)
        references = text.partition("Version References:")[2]
        #: (family, version): ("GLIBC", "2.34"), ("GLIBC", "PRIVATE").
        self.versions = re.findall(r"^\s+0x\S+ 0x\S+ \d+ ([A-Za-z]\w*?)_([\w.]+)$", references, re.MULTILINE)


def elf_files(folder: pathlib.Path) -> dict[str, Elf]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    elves = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    return {path.relative_to(folder).as_posix(): Elf(path) for path in elves}


def wrong_versions(name: str, elf: Elf, limits: dict[str, str]) -> list[str]:
    problems = []
    for family, version in elf.versions:
        if family not in limits or version in UNNUMBERED:
            continue  # A bundled library's own (OPENSSL_3.0.0), or one that has always been there.
        if not NUMBERED.fullmatch(version) or number(version) > number(limits[family]):
            problems.append(f"{name} wants {family}_{version}; {TAG} has {limits[family]} at most")
    return problems


def wrong_libraries(name: str, elf: Elf, bundled: set[str]) -> list[str]:
    missing = [library for library in elf.needed if library not in SYSTEM_LIBRARIES | bundled]
    parts = [part for path in elf.run_paths for part in path.split(":")]
    outside = [part for part in parts if not part.startswith("$ORIGIN")]
    return [f"{name} needs {library}, neither in the wheel nor promised by {TAG}" for library in missing] + [
        f"{name} looks for libraries in {part}, outside the wheel" for part in outside
    ]


def unpack(wheel: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Extracts it; the problems of its form."""
    problems = []
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
        files = archive.infolist()
        commands = [info for info in files if info.filename.endswith(".data/scripts/weightcast")]
        if not commands or not (commands[0].external_attr >> 16) & stat.S_IXUSR:
            problems.append("the command `weightcast` is not in it, or not executable")
        (metadata,) = [info for info in files if info.filename.endswith(".dist-info/WHEEL")]
        tags = set(re.findall(r"^Tag: (.+)$", archive.read(metadata).decode(), re.MULTILINE))
    named = "-".join(wheel.name.removesuffix(".whl").split("-")[2:])
    if tags != {named} or not named.endswith(f"-{TAG}"):
        problems.append(f"named {named}, tagged {', '.join(sorted(tags))}; the platform should be {TAG}")
    return problems


def highest(elves: dict[str, Elf], family: str) -> str:
    every = {version for elf in elves.values() for of, version in elf.versions if of == family}
    versions = [version for version in every if NUMBERED.fullmatch(version)]
    return f"{family} {max(versions, key=number)}" if versions else f"no {family}"


def check(wheel: pathlib.Path, limits: dict[str, str], max_bytes: int) -> list[str]:
    size = wheel.stat().st_size
    problems = [f"{size / 1e6:.1f} MB, at most {max_bytes / 1e6:.1f}"] if size > max_bytes else []
    with tempfile.TemporaryDirectory() as unpacked:
        folder = pathlib.Path(unpacked)
        problems += unpack(wheel, folder)
        elves = elf_files(folder)
    bundled = {pathlib.PurePath(name).name for name in elves}
    for name, elf in elves.items():
        problems += wrong_versions(name, elf, limits) + wrong_libraries(name, elf, bundled)
    versions = ", ".join(highest(elves, family) for family in ("GLIBC", "GLIBCXX", "CXXABI", "GCC"))
    print(f"{wheel.name}: {size / 1e6:.1f} MB, {len(elves)} ELF files; at most {versions}")
    return [f"{wheel.name}: {problem}" for problem in problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    parser.add_argument("--limit", action="append", default=[], metavar="GLIBC=2.34", help="another limit")
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES)
    arguments = parser.parse_args()
    limits = {**LIMITS, **dict(limit.split("=", 1) for limit in arguments.limit)}
    problems = []
    for wheel in arguments.wheels:
        problems += check(wheel, limits, arguments.max_bytes)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
