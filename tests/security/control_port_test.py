"""Attacks on the controller's port by who has no key of the job, and too many who have one."""

import contextlib
import os
import socket
import subprocess

from harness import JobTest, Running, main, wait_until

os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"
ANOTHER = "the-token-of-another-job"
LIMIT = 1024
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
BINARY = os.environ["WC_TEST_BINARY"]


def connect(address: str, timeout: float) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=timeout)


def hold(stop, tried, address: str, spoken: bytes) -> None:
    """1,200 connections that say this and stay, and new ones for those that are ended."""
    held = []
    while not stop():
        with contextlib.suppress(OSError):
            one = connect(address, 0.2)
            held.append(one)
            one.sendall(spoken)
        tried()
        if len(held) > 1200:
            held.pop(0).close()


def send(stop, tried, address: str, spoken: bytes) -> None:
    """Says it over and over, each time until the connection is ended."""
    while not stop():
        with contextlib.suppress(OSError), connect(address, 0.5) as one:
            one.sendall(spoken)
            while one.recv(4096):
                pass
        tried()


def send_without_end(stop, tried, address: str, spoken: bytes, repeated: bytes) -> None:
    while not stop():
        with contextlib.suppress(OSError), connect(address, 0.5) as one:
            one.sendall(spoken)
            while not stop():
                one.sendall(repeated)
                tried()
        tried()


def recorded_hello(token: str) -> bytes:
    """The first message of `weightcast info` with this token, as who listens on the network records it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        command = [BINARY, "info", "--controller", f"127.0.0.1:{listener.getsockname()[1]}"]
        env = {**os.environ, "WEIGHTCAST_TOKEN": token}
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as info:
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(20)
                hello = accepted.recv(5, socket.MSG_WAITALL)
                hello += accepted.recv(int.from_bytes(hello[3:5], "big"), socket.MSG_WAITALL)
            info.kill()
    assert hello[0] == 22, hello
    return hello


class ControlPort(JobTest):
    def start(self, job) -> None:
        job.start_controller(prefix=["prlimit", f"--nofile={LIMIT}:{LIMIT}", "--"])
        job.start_trainer()
        job.start_engine()
        job.publish()

    def check(self, attack, *arguments, attempts: int = 50) -> None:
        with self.job() as job:
            self.start(job)
            self.check_flood(job, attack, job.address, *arguments, attempts=attempts)
            self.assertIn("default", self.info(job).stdout)

    def info(self, job) -> subprocess.CompletedProcess:
        command = [BINARY, "info", "--controller", job.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=20)

    def test_1200_silent_connections(self) -> None:
        self.check(hold, b"", attempts=1500)

    def test_1200_connections_that_only_begin(self) -> None:
        self.check(hold, recorded_hello(ANOTHER)[:100], attempts=1500)

    def test_1200_first_messages_that_were_recorded(self) -> None:
        """They name the job's key: the controller must begin a handshake with each."""
        self.check(hold, recorded_hello(os.environ["WEIGHTCAST_TOKEN"]), attempts=1500)

    def test_tokens_of_another_job(self) -> None:
        self.check(send, recorded_hello(ANOTHER), attempts=20)

    def test_an_older_release(self) -> None:
        self.check(send, HTTP2, attempts=20)

    def test_bytes_without_end(self) -> None:
        self.check(send_without_end, b"\x16\x03\x01\x02\x00", b"x" * 65536, attempts=20)

    def test_bytes_without_end_after_a_recorded_message(self) -> None:
        hello = recorded_hello(os.environ["WEIGHTCAST_TOKEN"])
        self.check(send_without_end, hello, b"\x17\x03\x03\x40\x00" + b"x" * 16384, attempts=20)

    def test_the_controller_hears_again_after_many_watched_it(self) -> None:
        with self.job() as job:
            job.start_controller(prefix=["prlimit", "--nofile=64:64", "--"])
            job.start_trainer()
            job.start_engine()
            job.publish()
            watch = ["info", "--controller", job.address, "--watch"]
            watching = [Running(*watch) for _ in range(44)]
            # 48 of the descriptors are for streams, and 12 of those for workers alone; two are here.
            wait_until(lambda: sum(not one.running() for one in watching) >= 10, "ten end", 60)
            for one in watching:
                if not one.running():
                    self.assertIn("raise its limit of open files", one.errors())
            alive = [one for one in watching if one.running()]
            for one in alive:
                self.assertIn("default", one.line())
            for one in alive[:4]:
                one.kill()  # The trainer looks at the engines now and then, as an observer.
            job.publish()
            job.start_engine("b")  # A new worker is heard, too.
            job.publish()
            for one in watching:
                one.close()
            wait_until(lambda: self.info(job).returncode == 0, "an answer to info")
            job.check_alive()


if __name__ == "__main__":
    main()
