#!/usr/bin/env python3
"""Which DSCP values the RoCE packets of a wire have while a command runs: dscp.py [-i v0] -- COMMAND...

Runs inside the machine that rxevm boots, or as root on any other. Prints a line for each source address and
value, {"from": "10.0.0.1", "dscp": 26, "packets": 1234}, and ends as the command does; with 3 when there was
no packet.
"""

import argparse
import collections
import ipaddress
import json
import struct
import subprocess
import sys
import tempfile

ROCE = "udp dst port 4791"
HEADERS = 64  # Bytes of a packet that are kept.
ETHERNET, VLAN, IPV4, IPV6 = 14, 0x8100, 0x0800, 0x86DD


def dscp_of(packet: bytes) -> tuple[str, int] | None:
    """The source address and the value."""
    at = ETHERNET
    (kind,) = struct.unpack_from(">H", packet, at - 2)
    if kind == VLAN:
        at += 4
        (kind,) = struct.unpack_from(">H", packet, at - 2)
    if kind == IPV4:
        return str(ipaddress.IPv4Address(packet[at + 12 : at + 16])), packet[at + 1] >> 2
    if kind == IPV6:
        (word,) = struct.unpack_from(">I", packet, at)
        return str(ipaddress.IPv6Address(packet[at + 8 : at + 24])), word >> 22 & 63
    return None


def read_capture(data: bytes) -> collections.Counter:
    """Of a file as tcpdump writes it here: a header of 24 bytes, then each packet after one of 16."""
    found: collections.Counter = collections.Counter()
    at = 24
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("=I", data, at + 8)
        found[dscp_of(data[at + 16 : at + 16 + length])] += 1
        at += 16 + length
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-i", "--interface", default="v0")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile() as capture:
        listen = [
            "tcpdump",
            "-i",
            arguments.interface,
            "-s",
            str(HEADERS),
            "-n",
            "--immediate-mode",
            "-Z",
            "root",
        ]
        sniffer = subprocess.Popen([*listen, "-w", capture.name, ROCE], stderr=subprocess.PIPE, text=True)
        heard = [sniffer.stderr.readline()]
        while heard[-1] and "listening on" not in heard[-1]:
            heard.append(sniffer.stderr.readline())
        if not heard[-1]:
            sys.exit("tcpdump: " + "".join(heard))
        status = subprocess.run(arguments.command).returncode
        sniffer.terminate()
        sniffer.communicate()
        found = read_capture(capture.read())
    for (source, dscp), packets in sorted(found.items()):
        print(json.dumps({"from": source, "dscp": dscp, "packets": packets}))
    sys.exit(status or (0 if found else 3))


if __name__ == "__main__":
    main()
