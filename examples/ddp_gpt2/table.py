"""The table that a run prints: a row for each step, and what the steps carried on average."""

import os
import pathlib
import statistics

from job import gather
from place import Place
from traffic import Counters, Interface, ring_bytes

MEGABYTE = 1_000_000


class Table:
    """Printed by one rank of each host. Counters are those of this host's interface."""

    def __init__(self, interface: Interface, place: Place, gradient_bytes: int) -> None:
        self.interface, self._place, self._gradient_bytes = interface, place, gradient_bytes
        self._each = ring_bytes(gradient_bytes, place.world_size)
        self._expected = _ranks_behind(interface) * self._each
        self._rows: list[tuple[float, Counters]] = []

    def counters(self) -> Counters:
        return self.interface.counters()

    def head(self) -> None:
        self._say(" step         loss   seconds     sent MB  received MB  headers MB  sent/theory")

    def row(self, step: int, loss: float, seconds: float, carried: Counters) -> None:
        """loss: nine digits, which tell any two float32 apart."""
        self._rows.append((seconds, carried))
        sent, received = carried.sent / MEGABYTE, carried.received / MEGABYTE
        headers = self._headers(carried.sent_packets) / MEGABYTE
        ratio = self._ratio(carried.sent, carried.sent_packets)
        self._say(
            f"{step:5} {loss:12.9g} {seconds:9.3f} {sent:11.3f} {received:12.3f} {headers:11.3f} {ratio:>12}"
        )

    def summary(self) -> None:
        count = self._place.world_size
        self._say(
            f"theory: 2 x ({count} - 1) / {count} x {self._gradient_bytes / MEGABYTE:,.3f} MB of gradients"
            f" = {self._each / MEGABYTE:,.3f} MB sent by each rank per step"
        )
        sent = statistics.mean(carried.sent for _, carried in self._rows)
        packets = statistics.mean(carried.sent_packets for _, carried in self._rows)
        seconds = statistics.median(seconds for seconds, _ in self._rows)
        self._say(
            f"measured on {self.interface.name}: {sent / MEGABYTE:,.3f} MB sent per step, of which"
            f" {self._headers(packets) / MEGABYTE:,.3f} MB headers; sent/theory {self._ratio(sent, packets)};"
            f" median step {seconds:.3f} s"
        )

    def _headers(self, packets: float) -> float:
        return packets * self.interface.headers

    def _ratio(self, sent: float, packets: float) -> str:
        """Without headers."""
        return f"{(sent - self._headers(packets)) / self._expected:.4f}" if self._expected else "-"

    def _say(self, line: str) -> None:
        if self._place.local_rank == 0:
            print(line, flush=True)


def _ranks_behind(interface: Interface) -> int:
    """How many ranks' bytes this interface carries; 0: not to be told.

    The bytes of two ranks of one host go over `lo`, whatever interface is named. So they can only be told
    where all ranks are on `lo`, or each is on an interface of its own.
    """
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    network = os.stat("/proc/self/ns/net").st_ino
    everyone = gather((boot, network, interface.name))
    if len(set(everyone)) == len(everyone):
        return 1
    return len(everyone) if interface.name == "lo" and len(set(everyone)) == 1 else 0
