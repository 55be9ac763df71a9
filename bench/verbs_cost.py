#!/usr/bin/env python3
"""Counts the instructions of the verbs transport for each posted write and each completion.

Runs build/cost/tests/verbs_cost under callgrind, over the simulated network of the tests. Counted is what is
below Post and below Progress (the target's too), but for libibverbs' own part, which the network plays. The
difference of two lengths of the run takes the start away.

    cmake -S . -B build/cost -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \\
        '-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG' -DWEIGHTCAST_INSTALL=OFF
    cmake --build build/cost --target verbs_cost
    bench/verbs_cost.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent / "build" / "cost" / "tests" / "verbs_cost"
WRITES = (6_400, 19_200)
POST = "weightcast::transport::verbs::VerbsTransport::Post("
PROGRESS = "weightcast::transport::verbs::VerbsTransport::Progress("
PROVIDER = "weightcast::fake::FakeIbverbs::"
NAMES = re.compile(r"^\((\d+)\)(?: (.*))?$")


def inclusive(profile: Path) -> dict[str, int]:
    """Instructions below Post and below Progress, without the provider's."""
    names: dict[str, str] = {}
    own: dict[str, int] = {}
    calls: dict[str, dict[str, int]] = {}

    def name_of(text: str) -> str:
        found = NAMES.match(text)
        if found is None:
            return text
        if found.group(2) is not None:
            names[found.group(1)] = found.group(2)
        return names[found.group(1)]

    current = callee = ""
    for line in profile.read_text().splitlines():
        if line.startswith("fn="):
            current = name_of(line[3:])
        elif line.startswith("cfn="):
            callee = name_of(line[4:])
        elif line.startswith("calls="):
            continue
        elif line[:1] in "0123456789+-*" and line:
            cost = int(line.split()[-1])
            if callee:
                calls.setdefault(current, {}).setdefault(callee, 0)
                calls[current][callee] += cost
                callee = ""
            else:
                own[current] = own.get(current, 0) + cost

    def total(root: str) -> int:
        caller = next(name for name in calls if name.startswith(root))
        return own.get(caller, 0) + sum(calls[caller].values())

    # A batch is posted whole within Post, so the provider's part is below the one or the other by its name.
    provider = {POST: 0, PROGRESS: 0}
    for caller, callees in calls.items():
        for callee, cost in callees.items():
            if callee.startswith(PROVIDER) and not caller.startswith("weightcast::fake::"):
                provider[POST if "::PostSend(" in callee else PROGRESS] += cost
    return {root: total(root) - provider[root] for root in (POST, PROGRESS)}


def run(writes: int, length: int, signalled: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--compress-strings=yes", f"--callgrind-out-file={out}",
             str(PROGRAM), str(writes), str(length), str(signalled)],
            check=True, capture_output=True)  # fmt: skip
        return inclusive(out)


def main() -> None:
    print("| write | instructions, posted | instructions, completed |\n|---|---|---|")
    for what, length, signalled in (
        ("8 B", 8, 0),
        ("8 B, each with a signal", 8, 1),
        ("4 KiB", 4096, 0),
    ):
        few, many = (run(writes, length, signalled) for writes in WRITES)
        per = {root: (many[root] - few[root]) / (WRITES[1] - WRITES[0]) for root in (POST, PROGRESS)}
        print(f"| {what} | {per[POST]:.0f} | {per[PROGRESS]:.0f} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
