"""Hosts for tests: network namespaces, each with a wire to one bridge and to nothing else."""

import json
import os
import pathlib
import shutil
import subprocess

_made = 0


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Network:
    """A bridge in a namespace of its own, and a host at the end of each wire. Removed by `close`."""

    def __init__(self) -> None:
        global _made
        _made += 1
        self.prefix = f"wc{os.getpid()}n{_made}"
        self.hub = f"{self.prefix}-hub"
        self.interfaces: dict[str, str] = {}
        ip("netns", "add", self.hub)
        try:
            ip("-n", self.hub, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            ip("-n", self.hub, "link", "set", "br0", "up")
        except BaseException:
            self.close()
            raise

    def add_host(self, name: str, *addresses: str, interface: str = "eth0") -> None:
        """`addresses`: with their prefix lengths, in the order in which the host is to have them."""
        host = self.namespace(name)
        number = len(self.interfaces)
        self.interfaces[name] = interface
        ip("netns", "add", host)
        # So that an IPv6 address can be used at once, where there is IPv6.
        self.run(name, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad || true")
        wire = ["link", "add", f"p{number}", "netns", self.hub, "type", "veth"]
        ip(*wire, "peer", "name", interface, "netns", host)
        ip("-n", self.hub, "link", "set", f"p{number}", "master", "br0", "up")
        ip("-n", host, "link", "set", interface, "up")
        ip("-n", host, "link", "set", "lo", "up")
        for address in addresses:
            self.add_address(name, address)

    def add_address(self, name: str, address: str) -> None:
        more = ["nodad"] if ":" in address else []
        ip("-n", self.namespace(name), "addr", "add", address, "dev", self.interfaces[name], *more)

    def remove_address(self, name: str, address: str) -> None:
        ip("-n", self.namespace(name), "addr", "del", address, "dev", self.interfaces[name])

    def link_local(self, name: str) -> str:
        """Its IPv6 address on the wire."""
        shown = ip("-n", self.namespace(name), "-j", "-6", "addr", "show", "dev", self.interfaces[name])
        found = [one["local"] for one in json.loads(shown)[0]["addr_info"] if one["scope"] == "link"]
        return found[0]

    def namespace(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def inside(self, name: str, hosts: pathlib.Path | None = None) -> list[str]:
        """What to put in front of a command.

        `hosts`: it sees this file as /etc/hosts, and no name server; and the host's own name is `name`.
        """
        command = ["ip", "netns", "exec", self.namespace(name)]
        if hosts is not None:
            mounts = 'mount --bind "$0" /etc/hosts && mount --bind /dev/null /etc/resolv.conf'
            called = 'hostname "$1" && shift && exec "$@"'
            command += ["unshare", "--mount", "--uts", "sh", "-c", f"{mounts} && {called}", str(hosts), name]
        return command

    def run(self, name: str, *command: str) -> str:
        """A command on this host, to its end."""
        whole = [*self.inside(name), *command]
        return subprocess.run(whole, check=True, capture_output=True, text=True).stdout

    def filter(self, name: str, *rules: str) -> None:
        """What this host does with packets that arrive: rules of nft, instead of those before."""
        table = "table inet test"
        self.run(name, "nft", f"add {table}; delete {table}")
        if not rules:
            return
        chain = f"add {table}; add chain inet test in {{ type filter hook input priority 0; }}"
        self.run(name, "nft", "; ".join([chain, *(f"add rule inet test in {rule}" for rule in rules)]))

    def limit(self, name: str, megabits: int) -> None:
        """Both directions of the host's wire."""
        port = f"p{list(self.interfaces).index(name)}"
        for namespace, device in ((self.namespace(name), self.interfaces[name]), (self.hub, port)):
            qdisc = ["tc", "-n", namespace, "qdisc", "add", "dev", device]
            rate = ["rate", f"{megabits}mbit", "burst", "256k", "cburst", "256k", "quantum", "60000"]
            # Of 20 ms, as a switch has, not one that hides the limit for seconds; but bursts have to fit.
            queue = max(megabits * 1_000_000 // 8 // 50, 4 * 65536)
            for command in (
                [*qdisc, "root", "handle", "1:", "htb", "default", "1"],
                ["tc", "-n", namespace, "class", "add", "dev", device, "parent", "1:"]
                + ["classid", "1:1", "htb", *rate],
                [*qdisc, "parent", "1:1", "handle", "10:", "bfifo", "limit", str(queue)],
            ):
                subprocess.run(command, check=True, capture_output=True, text=True)

    def counters(self, name: str) -> tuple[int, int]:
        """Bytes sent and received by this host."""
        stats = self.statistics(name, self.interfaces[name])
        return stats["tx_bytes"], stats["rx_bytes"]

    def statistics(self, name: str, interface: str) -> dict[str, int]:
        """What this host's kernel counts at an interface: tx_bytes, rx_packets and so on."""
        folder = f"/sys/class/net/{interface}/statistics"
        found = self.run(name, "grep", "-r", "", folder).splitlines()
        return {path.rpartition("/")[2]: int(value) for path, value in (one.split(":") for one in found)}

    def moved(self, name: str, since: tuple[int, int]) -> int:
        """Bytes sent and received by this host since then."""
        return sum(self.counters(name)) - sum(since)

    def close(self) -> None:
        for namespace in [self.hub, *map(self.namespace, self.interfaces)]:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)


def make_network(*tools: str) -> Network:
    """Skips the test where namespaces, or one of these programs, are not available."""
    import pytest  # Benchmarks need it not.

    for tool in ("ip", *tools):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    try:
        return Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
