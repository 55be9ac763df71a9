#!/usr/bin/env python3
"""Compiles headers of include/ and src/ alone: those that changed (scripts/changed), and who includes them.

A header that compiles only behind another one is an error. --all compiles all of them, which takes minutes.
build/debug must be configured.
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


def wanted() -> set[str]:
    headers = [
        path
        for path in output(
            "git", "ls-files", "--cached", "--others", "--exclude-standard", "include/*.h", "src/*.h"
        )
        if (ROOT / path).exists()
    ]
    names = {name_of(path) for path in output("scripts/changed", "--list", "include/*.h", "src/*.h")}
    includes = {
        name_of(path): set(re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.MULTILINE))
        for path in headers
    }
    while new := {name for name, included in includes.items() if included & names} - names:
        names |= new
    return names & set(includes)


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
