"""What an interface has carried, beside what the all-reduce of the gradients must cost."""

import dataclasses
import fcntl
import pathlib
import socket
import struct

from failure import Failure

SIOCGIFADDR = 0x8915
LINK_LOCAL = "20"  # In /proc/net/if_inet6.
# Of each packet: Ethernet, IP, TCP with time stamps. Acknowledgements are packets, too.
IPV4_HEADERS = 14 + 20 + 32
IPV6_HEADERS = 14 + 40 + 32


@dataclasses.dataclass(frozen=True)
class Counters:
    """Bytes and packets of an interface since it exists, or between two moments."""

    sent: int
    received: int
    sent_packets: int

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(
            self.sent - other.sent, self.received - other.received, self.sent_packets - other.sent_packets
        )


class Interface:
    """The interface that leads to `master`, or the one that is named.

    `/proc/net/dev` shows the network namespace of this process; sysfs may show that of another.
    """

    def __init__(self, master: str, name: str | None) -> None:
        known = [one for _, one in socket.if_nameindex()]
        if name is not None and name not in known:
            raise Failure(
                f"GLOO_SOCKET_IFNAME={name} is not an interface of this host: set one of {', '.join(known)}"
            )
        self.name = name or _owner(_local_address(master), known)
        if not (addresses := _addresses(self.name)):
            raise Failure(f"interface {self.name} has no address: give it one, or set GLOO_SOCKET_IFNAME")
        self.address = addresses[0]  # As gloo's.
        self.headers = IPV6_HEADERS if ":" in self.address else IPV4_HEADERS

    def counters(self) -> Counters:
        return parse(pathlib.Path("/proc/net/dev").read_text(), self.name)


def parse(table: str, interface: str) -> Counters:
    """table: the text of /proc/net/dev."""
    for line in table.splitlines():
        name, colon, values = line.partition(":")
        if colon and name.strip() == interface:
            fields = [int(one) for one in values.split()]
            return Counters(sent=fields[8], received=fields[0], sent_packets=fields[9])
    raise Failure(f"interface {interface} has gone: bring it up and start all ranks again")


def ring_bytes(gradient_bytes: int, world_size: int) -> float:
    """What each rank sends, and receives, in a ring all-reduce: 2(N-1) steps of a share of 1/N."""
    return 2 * (world_size - 1) / world_size * gradient_bytes


def _local_address(master: str) -> str:
    """This host's address on the way to `master`. Nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError as error:
        raise Failure(
            f"there is no way to MASTER_ADDR={master} ({error.strerror}): set it to rank 0's address on the"
            " network that connects the hosts"
        ) from None


def _owner(address: str, interfaces: list[str]) -> str:
    for name in interfaces:
        if address in _addresses(name):
            return name
    if address.startswith("127."):
        return "lo"
    raise Failure(f"no interface has the address {address}: set GLOO_SOCKET_IFNAME to the one to use")


def _addresses(interface: str) -> list[str]:
    """Its first IPv4 address, then its IPv6 addresses that need no interface beside them."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", interface.encode())
            found.append(socket.inet_ntoa(fcntl.ioctl(any_socket, SIOCGIFADDR, request)[20:24]))
        except OSError:
            pass  # It has no IPv4 address.
    table = pathlib.Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else []:
        number, _, _, scope, _, name = line.split()
        if name == interface and scope != LINK_LOCAL:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number)))
    return found
