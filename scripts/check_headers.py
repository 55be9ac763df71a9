#!/usr/bin/env python3
"""Compiles headers of include/ and src/ alone: those that changed since `scripts/changed --base`.

A header that is gone, or includes less than before, may have been relied on: then the headers that
include it, also through others, are compiled too. A header that compiles only behind another one is an
error. --all compiles all of them, which takes minutes. build/debug must be configured.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "debug"


def output(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def name_of(path: str) -> str:
    """As `#include` names it: "plan/pieces.h", "weightcast/status.h"."""
    return path.split("/", 1)[1]


HEADERS = ("include/*.h", "src/*.h")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def before(base: str, path: str) -> str:
    """The text of `path` in the commit `base`; none if it was not there."""
    shown = subprocess.run(
        ["git", "show", f"{base}:{path}"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return shown.stdout


def wanted() -> set[str]:
    tracked = output("git", "ls-files", "--cached", "--others", "--exclude-standard", *HEADERS)
    texts = {name_of(path): (ROOT / path).read_text() for path in tracked if (ROOT / path).exists()}
    includes = {name: set(INCLUDE.findall(text)) for name, text in texts.items()}
    base = output("scripts/changed", "--base")
    if not base:
        return set(texts)
    changed = set(output("git", "diff", "--name-only", "--no-renames", base[0], "--", *HEADERS))
    changed |= set(output("git", "ls-files", "--others", "--exclude-standard", *HEADERS))
    names = {name_of(path) for path in changed}
    relied_on = {
        name_of(path)
        for path in changed
        if name_of(path) not in texts or set(INCLUDE.findall(before(base[0], path))) - includes[name_of(path)]
    }
    while new := {name for name, included in includes.items() if included & relied_on} - relied_on:
        relied_on |= new
    return (names | relied_on) & set(texts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--all", action="store_true", help="all headers, whatever has changed")
    every = parser.parse_args().all
    names = wanted()
    subprocess.run(
        ["ninja", "-C", str(BUILD), "--quiet", "build.ninja"], check=True
    )  # Files may have come or gone.
    # CMake makes one object file for each header of a target's FILE_SET.
    pattern = re.compile(
        r"^(\S*_verify_interface_header_sets\.dir/\w+_verify_interface_header_sets/(\S+)\.cxx\.o):"
    )
    found = [
        match
        for line in output("ninja", "-C", str(BUILD), "-t", "targets", "all")
        if (match := pattern.match(line))
    ]
    objects = [match.group(1) for match in found if every or match.group(2) in names]
    if not found:
        print("headers: build/debug has no targets for them; run cmake --preset debug", file=sys.stderr)
        return 1
    if missing := names - {match.group(2) for match in found}:
        print(f"headers: no folder has {', '.join(sorted(missing))} in its FILE_SET", file=sys.stderr)
        return 1
    command = ["ninja", "-C", str(BUILD), "--quiet", f"-j{os.cpu_count()}", *objects]
    if objects and subprocess.run(command, check=False).returncode != 0:
        return 1
    print(f"headers: ok, {len(objects)} of {len(found)} compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
