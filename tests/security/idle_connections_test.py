"""Connections that say nothing, at the controller's port."""

import contextlib
import socket

from harness import JobTest, main


def connect_and_say_nothing(stop, tried, address: str) -> None:
    host, port = address.rsplit(":", 1)
    held = []
    while not stop():
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((host, int(port)), timeout=0.2))
        tried()
        if len(held) >= 200:
            held.pop(0).close()


class IdleConnections(JobTest):
    def test_an_update_goes_on_beside_200_silent_connections(self) -> None:
        with self.job() as job:
            job.start_all()
            self.check_flood(job, connect_and_say_nothing, job.address, attempts=200)


if __name__ == "__main__":
    main()
