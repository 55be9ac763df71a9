#!/usr/bin/env python3
"""As doctor.py, between two hosts: `weightcast doctor --serve` and `--peer`. doctor_peer.py [NAME…]

Each has a name of its own and the devices that it is given. They talk over rail 1, so that what is planted in
rail 0 meets RDMA alone.
"""

import contextlib
from collections.abc import Iterator

from planted import ROOT, WEIGHTCAST, Report, expect, expect_only, planted, report_of, run

from processes import Process

TOKEN = {"WEIGHTCAST_TOKEN": "5d0c1b7a9e3f48620d1c7b5a9e3f4862"}
RAILS = f"{ROOT}/tests/rdma/rails"
SERVER = "10.0.1.2"
NO_MODULE = "mount -t tmpfs none /sys/class/infiniband"


def host(name: str, before: str = ":") -> tuple[str, ...]:
    """Runs a command on a host of this name, after `before`."""
    return ("unshare", "--uts", "--mount", "bash", "-ec", f'hostname {name}; {before}; exec "$@"', name)


@contextlib.contextmanager
def serving(nics: str, before: str) -> Iterator[None]:
    command = [*host("node2", before), WEIGHTCAST, "doctor", "--serve"]
    with Process(*command, env={**TOKEN, "WEIGHTCAST_NICS": nics}) as server:
        line = server.line(300)
        expect(line.startswith("serving tests at "), f"it serves: {line}")
        yield


def between(here: str = "rxe0", there: str = "rxe1", before: str = ":", before_there: str = ":") -> Report:
    """What node1 finds on the way to node2; the devices of both, and what is done on them first."""
    # Of this machine, and not by its own network: from an address of the wire.
    by_wire = f"rule {{}} pref 90 to {SERVER} iif lo lookup 1002"
    with planted(f"ip {by_wire.format('add')}", f"ip {by_wire.format('del')}"), serving(there, before_there):
        return report_of(
            *("--peer", SERVER, "--milliseconds", 300),
            prefix=host("node1", before),
            limit=300,
            WEIGHTCAST_NICS=here,
            **TOKEN,
        )


def peer_healthy() -> None:
    report = between()
    expect_only(report)
    for name in ("connection", "latency", "device_latency", "bandwidth"):
        found = [one for one in report["findings"] if (one["group"], one["check"]) == ("verbs", name)]
        expect([one["level"] for one in found] == ["ok"], f"verbs.{name} is measured: {found}")


def peer_port_down() -> None:
    """On either side; the other one has the other rail's device, which is up."""
    with planted(f"{RAILS} down 0", f"{RAILS} up 0"):
        for name, end, devices in (("node1", 0, ("rxe0", "rxe3")), ("node2", 1, ("rxe2", "rxe1"))):
            text = f"{name} has no RDMA port that is active: rxe{end}:1 is DOWN"
            remedy = f"ip link set v{end} up  # on {name}"
            expect_only(between(*devices), ("warn", "verbs.connection", text, remedy))


def peer_module_missing() -> None:
    for missing, other, before in (
        ("node1", "node2", (NO_MODULE, ":")),
        ("node2", "node1", (":", NO_MODULE)),
    ):
        text = f"{missing} has no RDMA device, and {other} has one"
        report = between(before=before[0], before_there=before[1])
        expect_only(report, ("warn", "verbs.connection", text, f"# on {missing}"))


def netem(what: str, ends: tuple[int, ...] = (0, 1)) -> contextlib.AbstractContextManager[None]:
    """On these ends of rail 0."""
    line = "tc qdisc {} dev v{} root netem {}"
    return planted(*("; ".join(line.format(verb, end, what) for end in ends) for verb in ("add", "del")))


def peer_loss() -> None:
    with netem("loss 2%"):
        report = between()
    expect_only(
        report, ("warn", "verbs.loss", "queue pairs time out and send them again", "mlnx_qos -i IFACE")
    )


def peer_all_lost() -> None:
    with netem("loss 100%"):
        report = between()
    expect_only(report, ("fail", "verbs.loss", "until transfers fail", "ethtool -S IFACE"))


def peer_jitter() -> None:
    # With a rate packets keep their order: those that overtake each other are sent again, as if lost. A delay
    # drawn from -9 to 11 ms, where less than 0 is none: an exchange waits for the longest of several, and
    # these would be near each other if all were positive. In one direction for the same reason.
    with netem("delay 1ms 10ms rate 1gbit limit 100000", ends=(0,)):
        report = between()
    expect_only(report, ("warn", "verbs.device_latency", "Latency jitters", "tc -s qdisc show"))


if __name__ == "__main__":
    run([peer_healthy, peer_port_down, peer_module_missing, peer_loss, peer_all_lost, peer_jitter])
