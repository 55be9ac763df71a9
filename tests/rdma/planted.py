"""Plants faults in the machine that rxevm boots, and checks what `weightcast doctor` says of them."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "python"))  # For `processes`.
WEIGHTCAST = os.environ.get("WC_TEST_BINARY", str(ROOT / "build" / "debug" / "weightcast"))
REPORTS = pathlib.Path("/out/reports.jsonl")

Report = dict
Wanted = tuple[str, str, str, str]


def sh(command: str) -> None:
    """Lines of `ip`, `tc` and the like: one process each, as they are slow to start here."""
    subprocess.run(["bash", "-ec", command], check=True)


@contextlib.contextmanager
def planted(plant: str, repair: str) -> Iterator[None]:
    sh(plant)
    try:
        yield
    finally:
        sh(repair)


def report_of(
    *arguments: object, prefix: tuple[str, ...] = (), limit: float = 120, **environment: str
) -> Report:
    """Of a doctor, run by `prefix`; what is WARN or FAIL is printed."""
    command = [*prefix, WEIGHTCAST, "doctor", "--json", *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=limit
    )
    if not done.stdout:
        sys.exit(f"{command}: {done.stderr}")
    report = json.loads(done.stdout)
    with REPORTS.open("a") as file:
        file.write(json.dumps(report) + "\n")
    troubles = [one for one in report["findings"] if one["level"] in ("warn", "fail")]
    for one in troubles:
        print(json.dumps(one), flush=True)
    expect(done.returncode == (1 if report["worst"] == "fail" else 0), f"exit code {done.returncode}")
    return report


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"not so: {what}")


def expect_only(report: Report, *wanted: Wanted) -> None:
    """`wanted`: level, "group.check", and parts of its subject or text, and of its remedy."""
    left = list(wanted)
    for one in report["findings"]:
        if one["level"] not in ("warn", "fail"):
            continue
        name = f"{one['group']}.{one['check']}"
        fits = [
            want
            for want in left
            if (want[0], want[1]) == (one["level"], name)
            and want[2] in f"{one['subject']} {one['text']}"
            and want[3] in one["remedy"]
        ]
        expect(bool(fits), f"{name} is wanted: {one}")
        left.remove(fits[0])
    expect(not left, f"found: {left} in {report['findings']}")


def run(checks: list[Callable[[], None]]) -> None:
    """Those that the command line names, or all; each is a step of tests/rdma/test."""
    by_name = {one.__name__: one for one in checks}
    for name in sys.argv[1:] or by_name:
        began = time.monotonic()
        by_name[name]()
        print(f"doctor-{name:<21} ok {time.monotonic() - began:7.1f} s", flush=True)
