"""A trainer's process."""

import signal
import socket
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from processes import Process  # noqa: E402
from weightcast.rl import run_trainer  # noqa: E402

PATIENCE = 60


@pytest.mark.parametrize("master", ["127.0.0.1", "172.17.0.2"])
@pytest.mark.parametrize(
    ("queue", "listens", "host"),
    [
        ("", "OWN:0", "OWN"),
        (":7", ":7", "OWN"),
        ("0.0.0.0:7", ":7", "OWN"),
        ("127.0.0.1:7", "127.0.0.1:7", "127.0.0.1"),  # For ranks of this host, whatever the master is.
        ("localhost:7", "localhost:7", "localhost"),
        ("10.0.0.1:7", "10.0.0.1:7", "10.0.0.1"),  # Another network than the master's.
        ("far:7", "far:7", "far"),
        ("debian:7", ":7", "debian"),  # Loopback here, and not on other hosts.
        ("unknown:7", "unknown:7", "unknown"),
    ],
)
def test_where_the_queue_listens_and_is_found(monkeypatch, master, queue, listens, host):
    names = {"localhost": "127.0.0.1", "debian": "127.0.1.1", "far": "10.0.0.1"}

    def address_of(name: str) -> str:
        if name not in names:
            raise socket.gaierror("no such name")
        return names[name]

    monkeypatch.setattr(socket, "gethostbyname", address_of)
    monkeypatch.setattr(run_trainer, "own_address", lambda: master)
    assert run_trainer._queue_place(queue) == (listens.replace("OWN", master), host.replace("OWN", master))


def test_trainer_0_says_why_it_ends_though_its_main_thread_waits_and_others_were_there_before():
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "from weightcast.rl.run_trainer import _end_on_sigterm\n"
        "class RolloutQueue:\n"
        "    def end(self, reason):\n"
        "        print(reason, flush=True)\n"
        "_end_on_sigterm(RolloutQueue())\n"
        "print('waits', flush=True)\n"
        "while True:\n"
        "    ctypes.CDLL(None).sleep(600)  # Ends early in the thread that the signal comes to.\n"
    )
    with Process(sys.executable, "-c", script) as process:
        process.hear("waits")
        done = process.stop(timeout=PATIENCE)
    assert "trainer 0 was told to stop (SIGTERM)" in done.stdout
    assert done.returncode == 128 + signal.SIGTERM
