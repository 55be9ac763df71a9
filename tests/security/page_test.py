"""The page of a controller: its routes in a running job, and clients who read nothing or send rubbish."""

import contextlib
import http.client
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from harness import Attacker, Job, JobTest, main, memory_peak, wait_until

os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"
BINARY = os.environ["WC_TEST_BINARY"]
FEEDS = 200
MIB = 1 << 20


def observer() -> str:
    made = subprocess.run([BINARY, "token", "--role", "observer"], capture_output=True, text=True, timeout=30)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    """(status, content type, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()


class Events:
    """Follows /api/events."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.socket.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.bytes = b""

    def next(self, kind: str, timeout: float = 30) -> dict:
        """The data of the next event of this kind; what comes before it is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            event, found, rest = self.bytes.partition(b"\n\n")
            if found:
                self.bytes = rest
                lines = event.decode().splitlines()
                if f"event: {kind}" in lines:
                    return json.loads(next(one[6:] for one in lines if one.startswith("data: ")))
                continue
            ready, _, _ = select.select([self.socket], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {kind} event within {timeout} s"
            more = self.socket.recv(1 << 16)
            assert more, f"the stream has ended: {self.bytes!r}"
            self.bytes += more


def read_nothing(stop, tried, port: int, count: int) -> None:
    """Opens streams and never reads them; opens others where they end."""
    held: list[socket.socket] = []
    while not stop():
        if len(held) < count:
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(2)
            try:
                one.connect(("127.0.0.1", port))
                one.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                held.append(one)
            except OSError:
                one.close()
            tried()
        else:
            time.sleep(0.01)


def send_rubbish(stop, tried, port: int) -> None:
    """Bytes that are no request, heads without end, half requests that stay."""
    half: list[socket.socket] = []
    while not stop():
        for text in (os.urandom(4096), b"GET / HTTP/1.1\r\nX: " + b"x" * 65536, b"GET /api/state HTT"):
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), timeout=1)
                one.sendall(text)
                half.append(one)
            tried()
        while len(half) > 300:
            half.pop(0).close()


class Page(JobTest):
    @contextlib.contextmanager
    def serving(self, where: str = "127.0.0.1:0") -> Iterator[tuple[Job, int]]:
        """A job of a trainer and two engines that has served version 1, and the page's port."""
        with self.job() as job:
            controller = job.start_controller("--http", where, "--min-engines", 2)
            line = controller.line()
            self.assertTrue(line.startswith("page at http://"), line)
            job.start_trainer()
            job.start_engine("a")
            job.start_engine("b")
            job.publish()
            yield job, int(line.rstrip("/").rsplit(":", 1)[1])

    def test_every_route(self) -> None:
        with self.serving() as (job, port):
            for path, kind in (
                ("/", "text/html"),
                ("/page.css", "text/css"),
                ("/page.js", "text/javascript"),
            ):
                status, found, body = ask(port, path)
                self.assertEqual((status, found.split(";")[0]), (200, kind))
                self.assertGreater(len(body), 500)
            self.assertEqual(ask(port, "/healthz")[::2], (200, b"ok\n"))
            self.assertIn(b"\nweightcast_control_update_seconds_count ", ask(port, "/metrics")[2])
            for path in ("/nowhere", "/api", "/api/", "/api/state/", "//", "/../etc/passwd", "/page.html"):
                self.assertEqual(ask(port, path)[0], 404, path)
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                self.assertEqual(ask(port, "/api/state", method)[0], 405, method)
            self.assertEqual(ask(port, "/api/state", "HEAD")[::2], (200, b""))
            self.check_state(port)
            self.check_updates(port)
            job.check_alive()

    def check_state(self, port: int) -> None:
        def state() -> dict | None:
            model = json.loads(ask(port, "/api/state")[2])["models"][0]
            done = all(one["state"] == "SERVING" for one in model["engines"])
            return model if done and model["version"] else None

        model = wait_until(state, "both engines serve")
        self.assertEqual(model["version"]["number"], 1)
        self.assertEqual(
            sorted((one["name"], one["version"]["number"]) for one in model["engines"]), [("a", 1), ("b", 1)]
        )
        self.assertEqual([one["name"] for one in model["trainers"]], ["trainer 0"])
        self.assertEqual(sorted(one["engine"] for one in model["ranks"]), ["a", "b"])
        self.assertEqual([one["from"] for one in model["connections"]], ["trainer 0"] * 2)
        for one in model["connections"]:
            self.assertIn("shm", one["path"])
            self.assertGreater(one["last"]["bytes"], 0)

    def check_updates(self, port: int) -> None:
        (update,) = json.loads(ask(port, "/api/updates")[2])["updates"]
        self.assertTrue(update["committed"])
        self.assertEqual((update["number"], update["version"]["number"], update["model"]), (1, 1, "policy"))
        self.assertEqual(update["bytes"], 2 * 8 * 512 * 512 * 2)
        moments = {one["name"]: one["seconds"] for one in update["moments"]}
        self.assertEqual(set(moments), {"start", "release", "commit", "serve", "done"})
        self.assertEqual(sorted(moments.values()), [one["seconds"] for one in update["moments"]])
        self.assertAlmostEqual(moments["release"], update["seconds"], delta=0.05)
        self.assertEqual({one["name"]: one["committed"] for one in update["engines"]}, {"a": True, "b": True})
        self.assertLess(abs(time.time() - update["ended"] / 1000), 60)

    def test_an_update_appears_at_once(self) -> None:
        with self.serving() as (job, port):
            events = Events(port)
            self.assertEqual(events.next("update")["version"]["number"], 1)
            late = []
            verdicts = 0
            for _ in range(5):
                version = job.write()
                # Verdicts of the version before may come first.
                update = events.next("update")
                while update["version"]["number"] < version:
                    verdicts += bool(update["verdict"]["text"])
                    update = events.next("update")
                late.append(time.time() - update["ended"] / 1000)
                self.assertEqual(update["version"]["number"], version)
                job.wait_served(version)
            wait_until(lambda: events.next("state")["models"][0]["version"]["number"] == version, "its state")
            print(f"{self.id()}: seen after {[f'{1000 * one:.0f} ms' for one in late]}", file=sys.stderr)
            self.assertLess(statistics.median(late), 0.2)
            self.assertGreater(verdicts, 0)

    def test_beyond_loopback_it_asks_for_the_observers_token(self) -> None:
        token = observer()
        with self.serving(where="0.0.0.0:0") as (_, port):
            data = ("/api/state", "/api/updates", "/api/events", "/metrics")
            for path in (*data, "/"):
                self.assertEqual(ask(port, path)[0], 401, path)
                self.assertEqual(ask(port, f"{path}?token=wrong")[0], 401, path)
                self.assertEqual(ask(port, path, Authorization=f"Bearer {token[:-1]}x")[0], 401, path)
                self.assertEqual(ask(port, path, Authorization="Bearer the-token-of-this-test")[0], 401, path)
            for path in ("/api/state", "/api/updates", "/metrics", "/"):
                self.assertEqual(ask(port, path, Authorization=f"Bearer {token}")[0], 200, path)
                self.assertEqual(ask(port, f"{path}?token={token}")[0], 200, path)
            self.assertEqual(ask(port, "/healthz")[0], 200)

    def test_a_port_in_use_is_named(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            where = f"127.0.0.1:{taken.getsockname()[1]}"
            words = [BINARY, "controller", "--listen", "127.0.0.1:0", "--http", where]
            refused = subprocess.run(words, capture_output=True, text=True, timeout=30)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(where, refused.stderr)

    def test_200_readers_that_read_nothing(self) -> None:
        with self.serving() as (job, port):
            self.check_flood(job, read_nothing, port, FEEDS, attempts=FEEDS, seconds=12)
            quiet = self.median_of_metrics(port)
            with Attacker(read_nothing, port, FEEDS, seconds=60) as attacker:
                wait_until(lambda: attacker.attempts >= FEEDS, "all streams")
                wait_until(lambda: ask(port, "/api/events", "HEAD")[0] in (200, 503), "an answer")
                under = self.median_of_metrics(port)
            print(f"{self.id()}: /metrics {under:.4f} s, quiet {quiet:.4f} s", file=sys.stderr)
            self.assertLess(under, max(3 * quiet, 0.25))
            self.assertEqual(ask(port, "/healthz")[0], 200)

    def median_of_metrics(self, port: int) -> float:
        took = []
        for _ in range(15):
            begin = time.monotonic()
            self.assertEqual(ask(port, "/metrics")[0], 200)
            took.append(time.monotonic() - begin)
        return statistics.median(took)

    def test_rubbish(self) -> None:
        with self.serving() as (job, port):
            self.check_flood(job, send_rubbish, port)
            self.assertEqual(ask(port, "/api/state")[0], 200)

    def test_streams_that_end_leave_nothing(self) -> None:
        with self.serving() as (job, port):
            pid = job.processes["controller"].process.pid
            count = lambda: len(os.listdir(f"/proc/{pid}/fd"))  # noqa: E731
            before, peak = count(), memory_peak(pid)
            for _ in range(20):
                streams = [Events(port) for _ in range(50)]
                streams[-1].next("state")
                for one in streams:
                    one.socket.close()
            wait_until(lambda: count() <= before, "all descriptors are closed")
            self.assertLess(memory_peak(pid) - peak, 32 * MIB)


if __name__ == "__main__":
    main()
