"""Workers and `weightcast info` of another protocol version are told that they are of one."""

import os
import socket

import http2
from harness import JobTest, main, wait_until

os.environ["WEIGHTCAST_TOKEN"] = TOKEN = "the-token-of-this-test"
SENTENCE = "this controller speaks protocol version %d, not %s; use the same weightcast on all hosts"

# As version 2 wrote it, which was protobuf: a Hello in an envelope.
OLD_HELLO = (
    b"\x0a\x2c\x08\x02\x12\x01j\x1a\x06policy\x22\x05\x08\x01\x12\x01a\x28\x01\x31\x07\0\0\0\0\0\0\0"
    b"\x42\x01h\x5a\x02\x10\x01\x62\x02\x10\x01\x6a\0"
)


class OtherVersion(JobTest):
    def check_told(self, one: socket.socket, expected: bytes) -> None:
        heard = bytearray()

        def told() -> bool:
            heard.extend(one.recv(4096))
            return expected in heard

        with one:
            wait_until(told, f"{expected!r} in {heard!r}")

    def test_a_worker_of_version_2(self) -> None:
        with self.job() as job:
            job.start_controller()
            hello = bytes([0x2A, len(OLD_HELLO)]) + OLD_HELLO
            text = (SENTENCE % (http2.PROTOCOL, 2)).encode()
            # Refused { Status { code, message } }, as version 2 reads it.
            reason = b"\x08\x0a\x12" + bytes([len(text)]) + text
            refused = b"\x12" + bytes([len(reason) + 2]) + b"\x0a" + bytes([len(reason)]) + reason
            self.check_told(http2.call(job.address, TOKEN, http2.ATTACH, hello), refused)

    def test_who_watches_without_a_version(self) -> None:
        with self.job() as job:
            job.start_controller()
            text = (SENTENCE % (http2.PROTOCOL, "an older one")).encode()
            self.check_told(http2.call(job.address, TOKEN, http2.WATCH, b""), text)

    def test_who_watches_with_a_later_one(self) -> None:
        with self.job() as job:
            job.start_controller()
            later = http2.PROTOCOL + 1
            text = (SENTENCE % (http2.PROTOCOL, later)).encode()
            self.check_told(http2.call(job.address, TOKEN, http2.WATCH, bytes([0x08, later])), text)


if __name__ == "__main__":
    main()
