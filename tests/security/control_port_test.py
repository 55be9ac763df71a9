"""Attacks on the controller's port by who does not know the job token, and too many who do."""

import contextlib
import os
import subprocess
import time
import zlib

import http2
from harness import MIB, JobTest, main, wait_until

os.environ["WEIGHTCAST_TOKEN"] = TOKEN = "the-token-of-this-test"
LIMIT = 1024


def hold_connections(stop, tried, address: str, spoken: bytes) -> None:
    """1,200 connections that stay, and new ones for those that are ended."""
    held = []
    while not stop():
        with contextlib.suppress(OSError):
            one = http2.connect(address, 0.2)
            one.sendall(spoken)
            held.append(one)
        tried()
        if len(held) > 1200:
            held.pop(0).close()


def hold_silent_connections(stop, tried, address: str) -> None:
    host, port = address.rsplit(":", 1)
    held = []
    while not stop():
        with contextlib.suppress(OSError):
            held.append(http2.socket.create_connection((host, int(port)), timeout=0.2))
        tried()
        if len(held) > 1200:
            held.pop(0).close()


def send(stop, tried, address: str, opening: bytes, repeated: bytes) -> None:
    """Says `opening`, then `repeated` for as long as somebody takes it."""
    while not stop():
        tried()
        with contextlib.suppress(OSError), http2.connect(address, 0.5) as one:
            one.sendall(opening)
            while repeated and not stop():
                one.sendall(repeated)
                tried()
            while one.recv(4096):
                pass


def send_slowly(stop, tried, address: str, parts: list[bytes]) -> None:
    while not stop():
        with contextlib.suppress(OSError), http2.connect(address, 0.5) as one:
            for part in parts:
                one.sendall(part)
                time.sleep(0.005)  # So that the receiver's window has opened again.
        tried()


def bomb() -> list[bytes]:
    """A call whose one message is half a megabyte long, and 512 MiB once it is decompressed."""
    squeeze = zlib.compressobj(wbits=31)
    squeezed = b"".join(squeeze.compress(bytes(MIB)) for _ in range(512)) + squeeze.flush()
    body = http2.message(squeezed, compressed=True)
    parts = [body[at : at + 16384] for at in range(0, len(body), 16384)]
    # Of a call with one message gRPC reads that message before it asks whether the call may be made.
    headers = http2.request(1, http2.WATCH, more={"grpc-encoding": "gzip"})
    end = http2.END_STREAM
    return [headers, *(http2.frame(http2.DATA, end if part is parts[-1] else 0, 1, part) for part in parts)]


def resets(token: str) -> bytes:
    cancel = (8).to_bytes(4, "big")
    return b"".join(
        http2.request(stream, http2.ATTACH, token) + http2.frame(http2.RESET, 0, stream, cancel)
        for stream in range(1, 4001, 2)
    )


class ControlPort(JobTest):
    def start(self, job) -> None:
        limit = ["prlimit", f"--nofile={LIMIT}:{LIMIT}", "--"]
        job.start_controller(prefix=limit)
        job.start_trainer()
        job.start_engine()
        job.publish()

    def check(self, attack, *arguments, attempts: int = 50) -> None:
        with self.job() as job:
            self.start(job)
            self.check_flood(job, attack, job.address, *arguments, attempts=attempts)
            self.check_hears(job)

    def check_hears(self, job) -> None:
        with http2.watch(job.address, TOKEN) as one:
            wait_until(lambda: b"policy" in one.recv(65536) or b"default" in one.recv(65536), "a view")

    def test_1200_silent_connections(self) -> None:
        self.check(hold_silent_connections, attempts=1500)

    def test_1200_connections_that_only_begin(self) -> None:
        self.check(hold_connections, b"", attempts=1500)

    def test_1200_calls_without_a_token(self) -> None:
        self.check(hold_connections, http2.request(1, http2.ATTACH), attempts=1500)

    def test_wrong_tokens(self) -> None:
        self.check(send, http2.request(1, http2.ATTACH, "wrong"), b"", attempts=20)

    def test_compressed_messages(self) -> None:
        self.check(send_slowly, bomb(), attempts=5)

    def test_rapid_resets(self) -> None:
        self.check(send, resets("wrong"), resets("wrong"), attempts=5)

    def test_the_controller_hears_again_after_70_watched_it(self) -> None:
        # These watchers answer no pings, which come every half lease.
        settings = ["--lease=60", "--connect-timeout=5", "--timeout=20", "--commit-timeout=10"]
        with self.job(settings=settings) as job:
            job.start_controller(prefix=["prlimit", "--nofile=64:64", "--"])
            job.start_trainer()
            job.start_engine()
            job.publish()
            watching, said = [], []
            for _ in range(70):
                with contextlib.suppress(OSError):
                    watching.append(http2.watch(job.address, TOKEN))
                    said.append(watching[-1].recv(4096))
            job.publish()
            self.assertGreater(len([text for text in said if b"raise its limit" in text]), 10)
            self.assertGreater(len([text for text in said if b"raise its limit" not in text]), 10)
            for one in watching:
                one.close()
            wait_until(lambda: self.info(job) == 0, "an answer to info")
            job.start_engine("b")  # A new worker is heard, too.
            job.publish()
            job.check_alive()

    def info(self, job) -> int:
        command = [os.environ["WC_TEST_BINARY"], "info", "--controller", job.address]
        return subprocess.run(command, capture_output=True, timeout=20).returncode


if __name__ == "__main__":
    main()
