#!/usr/bin/env python3
"""Plants faults in the machine that rxevm boots, and checks what `weightcast doctor` says: doctor.py [NAME…]

Each fault must be all that is WARN or FAIL, and a healthy machine has neither.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIGHTCAST = os.environ.get("WC_TEST_BINARY", str(ROOT / "build" / "debug" / "weightcast"))

Report = dict


def sh(command: str) -> None:
    """Lines of `ip`, `tc` and the like: one process each, as they are slow to start here."""
    subprocess.run(["bash", "-ec", command], check=True)


@contextlib.contextmanager
def planted(plant: str, mend: str) -> Iterator[None]:
    sh(plant)
    try:
        yield
    finally:
        sh(mend)


def report_of(*arguments: object, **environment: str) -> Report:
    command = [WEIGHTCAST, "doctor", "--json", *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )
    if not done.stdout:
        sys.exit(f"{command}: {done.stderr}")
    report = json.loads(done.stdout)
    troubles = [one for one in report["findings"] if one["level"] in ("warn", "fail")]
    for one in troubles:
        print(json.dumps(one), flush=True)
    expect(done.returncode == (1 if report["worst"] == "fail" else 0), f"exit code {done.returncode}")
    return report


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"not so: {what}")


def expect_only(report: Report, *wanted: tuple[str, str, str, str]) -> None:
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
    expect(not left, f"found: {left}")


def healthy() -> None:
    report = report_of()
    expect_only(report)
    for name in ("state", "gid", "mtu", "device"):
        found = [one for one in report["findings"] if (one["group"], one["check"]) == ("rdma", name)]
        expect(
            [one["level"] for one in found] == ["ok"] * 4, f"four devices are seen by rdma.{name}: {found}"
        )


DOWN, UP = (f"{ROOT}/tests/rdma/rails {{}} 0".format(what) for what in ("down", "up"))


def port_down() -> None:
    with planted(DOWN, UP):
        report = report_of()
    wanted = [("warn", "rdma.state", f"rxe{end}:1", f"ip link set v{end} up") for end in (0, 1)]
    expect_only(report, *wanted)


def wrong_mtu() -> None:
    with planted("ip link set v1 mtu 1500", "ip link set v1 mtu 4500"):
        report = report_of()
    expect_only(report, ("warn", "rdma.mtu", "rxe1:1", "ip link set v1 mtu 9000"))


def name_host() -> None:
    """As a host's /etc/hosts has it."""
    with pathlib.Path("/etc/hosts").open("a") as file:
        file.write("10.0.0.1 rxevm\n")


CHECKS: dict[str, Callable[[], None]] = {one.__name__: one for one in (healthy, port_down, wrong_mtu)}

if __name__ == "__main__":
    name_host()
    for name in sys.argv[1:] or CHECKS:
        began = time.monotonic()
        CHECKS[name]()
        print(f"doctor-{name:<21} ok {time.monotonic() - began:7.1f} s", flush=True)
