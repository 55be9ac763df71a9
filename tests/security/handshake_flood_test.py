"""Half-open connections at the ports where workers take handshakes and lanes."""

import collections
import contextlib
import pathlib
import random
import resource
import socket
import struct
import sys
import time

from harness import Attacker, JobTest, main, wait_until

HELD = 8000  # As long as the attacker may open so many.
RATE = 2000  # Connections a second, where the attacker gets enough of a core.


def whole_hello() -> bytes:
    """A handshake's first message as any stranger can write it (docs/wire.md); its proof never comes."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    who = text("default") + text("trainer") + text("") + struct.pack("<IQ", 0, random.getrandbits(63) + 1)
    rest = text("") + struct.pack("<QQ", 1 << 20, 10**9) + random.randbytes(32)
    payload = struct.pack("<IHH", 0x54534357, 2, 1) + who + rest
    return struct.pack("<IB", len(payload), 1) + payload


KINDS = {"silent": b"", "one byte": b"x", "whole hello": whole_hello()}


def open_and_wait(stop, tried, ports: list[int], words: bytes) -> None:
    """Connects to the ports in turn, says `words`, and then nothing."""
    held: collections.deque[socket.socket] = collections.deque()
    most = min(HELD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 100)
    begin, count = time.monotonic(), 0
    while not stop():
        for port in ports:
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))  # On loopback it is there at once.
            with contextlib.suppress(OSError):
                one.send(words)
            held.append(one)
            if len(held) > most:
                held.popleft().close()
            tried()
            count += 1
        time.sleep(max(0.0, begin + count / RATE - time.monotonic()))


def listening_ports(pid: int) -> dict[int, str]:
    """Port and address, as /proc writes it, of each TCP socket at which the process listens."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(descriptor.readlink()))
    found = {}
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, port = fields[1].split(":")
                found[int(port, 16)] = address
    return found


class HandshakeFlood(JobTest):
    def test_an_update_goes_on_under_each_kind_of_flood(self) -> None:
        with self.job() as job:
            job.settings = [*job.settings, "--transport=tcp"]
            job.start_all()
            workers = ("trainer-0", "engine-a-0")
            ports = [port for name in workers for port in listening_ports(job.processes[name].process.pid)]
            self.assertEqual(len(ports), 4, "a port for handshakes and one for lanes, each")
            for kind, words in KINDS.items():
                with self.subTest(kind):
                    self.check_flood(job, open_and_wait, ports, words, attempts=600, seconds=2)

    def test_a_job_begins_under_each_kind_of_flood(self) -> None:
        for kind, words in KINDS.items():
            with self.subTest(kind), self.job() as job:
                job.settings = [*job.settings, "--transport=tcp"]
                job.start_controller()
                engine = job.start_engine().process.pid
                ports = wait_until(lambda e=engine: len(p := [*listening_ports(e)]) == 2 and p, "it listens")
                with Attacker(open_and_wait, ports, words, seconds=60) as attacker:
                    # More than are kept for each port, and none of them older than a few seconds.
                    wait_until(lambda a=attacker: a.attempts >= 1000, "half-open connections")
                    before, begin = job.lines(), time.monotonic()
                    job.start_trainer()
                    job.publish()
                    took, logged = time.monotonic() - begin, job.lines() - before
                    tried = attacker.attempts
                print(f"{kind}: {tried} attempts; begun in {took:.1f} s; {logged} lines", file=sys.stderr)
                self.assertLessEqual(logged, 2 + took, job.logs())
                self.assertNotIn("refused", job.logs())
                job.check_alive()
                job.publish()

    def test_data_ports_follow_the_controller_to_loopback(self) -> None:
        with self.job() as job:
            job.start_all()
            job.start_engine("b", 0, 1, "--bind", "0.0.0.0")
            wait_until(lambda: job.serves("b", job.version), "engine b serves")
            loopback, every = "0100007F", "00000000"
            for name, expected in (("trainer-0", loopback), ("engine-a-0", loopback), ("engine-b-0", every)):
                found = listening_ports(job.processes[name].process.pid)
                self.assertEqual(set(found.values()), {expected}, name)


if __name__ == "__main__":
    main()
