"""What those without the job token can do to the queue. They are other processes, of another user under root.

Every test bounds what they cost the processes of the job.
"""

import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("msgpack")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from processes import Process, memory_peak  # noqa: E402
from rl_queues import a_queue, a_stranger, clients_of, come_in, item, outcome, work  # noqa: E402
from weightcast.rl.report import Report  # noqa: E402
from weightcast.rl.rollout_client import RolloutClient  # noqa: E402
from weightcast.rl.rollout_protocol import item_of, pack  # noqa: E402
from weightcast.rl.telemetry import Telemetry  # noqa: E402

HERE = pathlib.Path(__file__).parent
LEASE, FLOOD, PATIENCE = 2.0, 4.0, 20
NOBODY = 65534

# PORT SECONDS HOW: without weightcast, as it knows only the address.
ATTACKER = r"""
import os, random, resource, socket, sys, threading, time
port, end, how = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), sys.argv[3]
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
RUBBISH = {"byte": b"\x00", "messages": b"\x81\x01x" * 400, "huge": b"\xdf\xff" * 2048}

def connect():
    made = socket.socket()
    made.settimeout(0.2)
    made.connect(("127.0.0.1", port))
    return made

def flood():
    while time.monotonic() < end:
        try:
            with connect() as made:
                rubbish = random.choice(list(RUBBISH.values()))
                while time.monotonic() < end:
                    made.sendall(rubbish)
        except OSError:
            pass

def trickle():
    while time.monotonic() < end:
        try:
            with connect() as made:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.sendall(b"\xdb\x00\x00\x08\x00")  # A text of 2,048 bytes.
                while time.monotonic() < end:
                    made.sendall(b"\x00")
        except OSError:
            pass

def idle():
    kept = []
    while time.monotonic() < end:
        if len(kept) == 2000:
            time.sleep(0.05)
            continue
        try:
            kept.append(connect())
            if len(kept) % 2:
                kept[-1].send(b"\x81")
        except OSError:
            pass

threads = [threading.Thread(target=globals()[how]) for _ in range(1 if how == "idle" else 8)]
for one in threads: one.start()
print("begun", flush=True)
for one in threads: one.join()
"""


class Alone:
    """A queue in its process, and one engine in this."""

    def __init__(self, descriptors: int = 1024) -> None:
        command = [sys.executable, HERE / "rl_queue_alone.py", LEASE, descriptors]
        self._process = Process(*command, stdin=subprocess.PIPE)
        self.port = int(self._process.line(60))
        self.engine = self.join("engine")

    def join(self, name: str) -> RolloutClient:
        return RolloutClient(
            f"127.0.0.1:{self.port}", name=name, role="inference", lease=LEASE, timeout=PATIENCE
        )

    def seconds_of_an_item(self) -> float:
        """It raises if the engine thinks that the trainers are gone."""
        begin = time.monotonic()
        self.engine.ask(0, {})
        order = self.engine.next(PATIENCE)
        while order is not None and order["type"] != "item":
            order = self.engine.next(PATIENCE)
        found = item_of(order)
        self.engine.bring(found, outcome(found), {})
        return time.monotonic() - begin

    def memory(self) -> int:
        """The most that its process has had, in bytes."""
        return memory_peak(self._process.pid)

    def log(self) -> list[str]:
        return self._process.errors().splitlines()

    def close(self) -> None:
        self.engine.close()
        with self._process:
            done = self._process.end(PATIENCE)
            assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr


@contextlib.contextmanager
def alone(descriptors: int = 1024) -> Iterator[Alone]:
    made = Alone(descriptors)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def an_attacker(port: int, how: str) -> Iterator[Process]:
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    user = {"user": NOBODY} if os.geteuid() == 0 else {}
    command = ["nice", "-n", "19", python, "-c", ATTACKER, port, FLOOD, how]
    with Process(*command, environment={}, cwd="/", **user) as process:
        process.hear("begun")
        yield process


@pytest.mark.parametrize("how", ["flood", "trickle", "idle"])
def test_work_goes_on_under_a_flood_of_strangers(how):
    with alone(descriptors=256) as queue:
        quiet = max(queue.seconds_of_an_item() for _ in range(20))
        memory, lines = queue.memory(), len(queue.log())
        seconds = []
        with an_attacker(queue.port, how) as attacker:
            while attacker.running():
                seconds.append(queue.seconds_of_an_item())
                time.sleep(0.05)
        assert statistics.median(seconds) <= max(3 * quiet, 0.5) and max(seconds) < LEASE
        assert queue.memory() - memory <= 64 << 20
        assert len(queue.log()) - lines <= FLOOD + 3, queue.log()
        # And after it as before.
        queue.join("another").close()
        assert queue.seconds_of_an_item() < LEASE


def test_a_new_engine_comes_in_while_places_are_full():
    with alone() as queue, an_attacker(queue.port, "idle"):
        begin = time.monotonic()
        queue.join("another").close()
        assert time.monotonic() - begin < FLOOD


def test_a_flood_of_one_that_has_the_token_leaves_beats_and_others_alone():
    with a_queue() as queue, clients_of(queue) as connect, a_stranger(queue) as evil:
        engine = connect("good")
        come_in(evil, "evil")
        over = threading.Event()

        def flood() -> None:
            with contextlib.suppress(OSError, RuntimeError):
                while not over.is_set():
                    evil.send(pack({"type": "alive", "telemetry": {}}))
                    evil.wait(1, to_send=True)

        flooding = threading.Thread(target=flood)
        flooding.start()
        for number in range(20):
            queue.offer([item(0, iteration=number + 1)])
            work(engine)
            assert queue.take(number + 1, 0, PATIENCE)
        over.set()
        flooding.join()


# --- Any bytes at all

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary()
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.binary(), inner, max_size=3),
    max_leaves=5,
)
SPANS = st.fixed_dictionaries(
    {},
    optional={
        "process": st.text() | VALUES,
        "kind": st.sampled_from(["generate", "commit"]) | VALUES,
        "start": st.floats() | VALUES,
        "end": st.floats() | VALUES,
        "version": st.integers(0, 9) | VALUES,
        "iteration": st.integers(0, 9) | VALUES,
        "extra": VALUES,
    },
)
TELEMETRY = st.fixed_dictionaries(
    {},
    optional={
        "spans": st.lists(SPANS, max_size=2) | VALUES,
        "digests": st.dictionaries(st.text("0123456789", max_size=20) | st.text(), VALUES, max_size=2)
        | VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"type": st.sampled_from(["hello", "proof", "free", "done", "want", "alive"]) | st.text()},
    optional={
        "name": VALUES,
        "role": st.sampled_from(["inference", "trainer"]) | VALUES,
        "nonce": st.binary(min_size=32, max_size=32) | VALUES,
        "proof": VALUES,
        "version": VALUES,
        "iteration": st.just(1) | VALUES,
        "number": st.just(0) | VALUES,
        "sequences": st.lists(VALUES, min_size=4, max_size=4) | VALUES,
        "telemetry": TELEMETRY | VALUES,
    },
)


@settings(max_examples=60, deadline=None, database=None)
@given(
    known=st.booleans(),
    said=st.lists(MESSAGES.map(pack) | st.binary(max_size=100), min_size=1, max_size=3),
)
def test_no_bytes_end_the_queue(shared, known, said):
    queue, report = shared
    with a_stranger(queue) as one:
        if known:
            come_in(one, "evil")
        with contextlib.suppress(OSError, RuntimeError):
            for message in said:
                one.send(message)
        one.say_no_more()
        with contextlib.suppress(RuntimeError):  # Until the queue has heard all of it.
            while one.wait(PATIENCE):
                one.receive()
    report.flush()
    assert queue._thread.is_alive() and queue._failure is None


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[tuple]:
    with pytest.MonkeyPatch.context() as patch, open(os.devnull, "w") as nowhere:
        patch.setenv("WEIGHTCAST_TOKEN", "a-token-of-sixteen-characters-or-more")
        with (
            Report(tmp_path_factory.mktemp("run"), out=nowhere) as report,
            a_queue(Telemetry(report).on) as queue,
            clients_of(queue) as connect,
        ):
            queue.offer([item(0)])
            yield queue, report
            assert work(connect("good")).number == 0
