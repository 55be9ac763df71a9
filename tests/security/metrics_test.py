"""Connections that say nothing, at the port of /metrics."""

import contextlib
import socket
import time
import urllib.request

from harness import Attacker, JobTest, main, wait_until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def hold(stop, tried, port: int, count: int) -> None:
    held = []
    while not stop():
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=0.2))
        tried()
        while len(held) >= count and not stop():
            time.sleep(0.01)


class Metrics(JobTest):
    def check_beside(self, count: int) -> None:
        port = free_port()
        with self.job() as job:
            job.start_controller("--metrics", f"127.0.0.1:{port}")
            before = job.lines()
            begin = time.monotonic()
            with Attacker(hold, port, count, seconds=60) as attacker:
                wait_until(lambda: attacker.attempts >= count, f"{count} connections", 60)
                for _ in range(5):
                    self.ask(port)
            self.assertLessEqual(job.lines() - before, 1 + time.monotonic() - begin)
            self.ask(port)

    def ask(self, port: int) -> None:
        begin = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            self.assertIn(b"weightcast_", answer.read())
        self.assertLess(time.monotonic() - begin, 2)

    def test_beside_40_silent_connections(self) -> None:
        self.check_beside(40)

    def test_beside_1000_silent_connections(self) -> None:
        self.check_beside(1000)


if __name__ == "__main__":
    main()
