"""Counts the TCP packets of a wire by connection and DSCP: sniffer.py INTERFACE, as root.

Says "ready" when it listens, ends with its standard input, and prints one JSON list.
"""

import collections
import ipaddress
import json
import select
import socket
import struct
import sys
from typing import NamedTuple

ALL_PROTOCOLS = 0x0003
SO_RCVBUFFORCE = 33  # Python has no name for it.
HEADERS = 128  # Bytes of a packet that are read.
ETHERNET, IPV4, IPV6 = 14, 0x0800, 0x86DD


class Flow(NamedTuple):
    """One direction of a connection: "10.0.0.1 port 80" and so on."""

    source: str
    target: str
    dscp: int


def flow_of(packet: bytes) -> tuple[Flow, int] | None:
    """And the bytes behind the TCP header; None for other packets."""
    (kind,) = struct.unpack_from(">H", packet, ETHERNET - 2)
    at = ETHERNET
    if kind == IPV4 and packet[at + 9] == socket.IPPROTO_TCP:
        size, dscp = struct.unpack_from(">H", packet, at + 2)[0], packet[at + 1] >> 2
        header = (packet[at] & 15) * 4
        ends = packet[at + 12 : at + 16], packet[at + 16 : at + 20]
    elif kind == IPV6 and packet[at + 6] == socket.IPPROTO_TCP:
        size = struct.unpack_from(">H", packet, at + 4)[0] + 40
        dscp = struct.unpack_from(">I", packet, at)[0] >> 22 & 63
        header = 40
        ends = packet[at + 8 : at + 24], packet[at + 24 : at + 40]
    else:
        return None
    at += header
    ports = struct.unpack_from(">HH", packet, at)
    source, target = (
        f"{ipaddress.ip_address(end)} port {port}" for end, port in zip(ends, ports, strict=True)
    )
    return Flow(source, target, dscp), size - header - (packet[at + 12] >> 4) * 4


def main() -> None:
    packets: collections.Counter = collections.Counter()
    moved: collections.Counter = collections.Counter()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        wire.bind((sys.argv[1], 0))
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([wire, sys.stdin], [], [])
            if wire in ready:
                found = flow_of(wire.recv(HEADERS))
                if found is not None:
                    packets[found[0]] += 1
                    moved[found[0]] += found[1]
            elif sys.stdin in ready:
                break
    print(json.dumps([[*flow, count, moved[flow]] for flow, count in packets.items()]))


if __name__ == "__main__":
    main()
