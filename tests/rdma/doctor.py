#!/usr/bin/env python3
"""Plants faults in the machine that rxevm boots, and checks what `weightcast doctor` says: doctor.py [NAME…]

Each fault must be all that is WARN or FAIL, and a healthy machine has neither. doctor_peer.py has two hosts.
"""

import pathlib

from planted import ROOT, expect, expect_only, planted, report_of, run


def healthy() -> None:
    report = report_of()
    expect_only(report)
    for name in ("state", "gid", "mtu", "device"):
        found = [one for one in report["findings"] if (one["group"], one["check"]) == ("rdma", name)]
        expect(
            [one["level"] for one in found] == ["ok"] * 4, f"four devices are seen by rdma.{name}: {found}"
        )


RAILS = f"{ROOT}/tests/rdma/rails"


def port_down() -> None:
    with planted(f"{RAILS} down 0", f"{RAILS} up 0"):
        report = report_of()
    wanted = [("warn", "rdma.state", f"rxe{end}:1", f"ip link set v{end} up") for end in (0, 1)]
    expect_only(report, *wanted)


def wrong_mtu() -> None:
    with planted("ip link set v1 mtu 1500", "ip link set v1 mtu 4500"):
        report = report_of()
    expect_only(report, ("warn", "rdma.mtu", "rxe1:1", "ip link set v1 mtu 9000"))


def module_missing() -> None:
    with planted(f"{RAILS} unload 0 1", f"{RAILS} load 0 1"):
        # Whoever asks for no RDMA is told nothing.
        expect_only(report_of())
        report = report_of(WEIGHTCAST_TRANSPORT="verbs,tcp")
        expect_only(report, ("fail", "rdma.device", "No RDMA device", "rdma_rxe"))
    expect_only(report_of())


def name_host() -> None:
    """As a host's /etc/hosts has it."""
    with pathlib.Path("/etc/hosts").open("a") as file:
        file.write("10.0.0.1 rxevm\n")


if __name__ == "__main__":
    name_host()
    run([healthy, port_down, wrong_mtu, module_missing])
