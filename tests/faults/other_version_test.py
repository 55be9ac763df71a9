"""Workers and a controller of an older release, which speak HTTP/2, are named as such by this one."""

import os
import socket
import subprocess
import threading

from harness import JobTest, main, wait_until

os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"
BINARY = os.environ["WC_TEST_BINARY"]
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # An empty frame of HTTP/2.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS


class OlderController:
    """Greets as a server of HTTP/2 does and ends what it cannot read."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            with one:
                one.sendall(SETTINGS)
                one.recv(4096)

    def __enter__(self) -> "OlderController":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


class OtherVersion(JobTest):
    def test_a_worker_of_an_older_release_is_told_of_in_one_line(self) -> None:
        with self.job() as job:
            job.start_controller()
            before = job.lines()
            host, port = job.address.rsplit(":", 1)
            with socket.create_connection((host, int(port)), timeout=20) as one:
                one.sendall(PREFACE)
                self.assertEqual(one.recv(4096), b"")
            wait_until(lambda: "as an older release of weightcast does" in job.logs(), "its name in the log")
            self.assertEqual(job.lines() - before, 1, job.logs())
            self.assertIn("use the same weightcast on all hosts", job.logs())

    def test_a_worker_names_a_controller_of_an_older_release(self) -> None:
        with OlderController() as older, self.job() as job:
            job.address = older.address
            trainer = job.start_trainer()
            self.assertNotEqual(trainer.process.wait(20), 0)
            self.assertIn("speaks HTTP/2, as the controller of an older release does", trainer.errors())

    def test_info_names_a_controller_of_an_older_release(self) -> None:
        with OlderController() as older:
            command = [BINARY, "info", "--controller", older.address]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("older release", ended.stderr)


if __name__ == "__main__":
    main()
