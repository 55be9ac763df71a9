"""A trainer's process."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("zmq")

PATIENCE = 60


def test_trainer_0_says_why_it_ends_though_its_main_thread_waits_and_others_were_there_before():
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "from weightcast.rl.run_trainer import _end_on_sigterm\n"
        "class Desk:\n"
        "    def end(self, reason):\n"
        "        print(reason, flush=True)\n"
        "_end_on_sigterm(Desk())\n"
        "print('waits', flush=True)\n"
        "while True:\n"
        "    ctypes.CDLL(None).sleep(600)  # Ends early in the thread that the signal comes to.\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert "trainer 0 was told to stop (SIGTERM)" in said
    assert process.returncode == 128 + signal.SIGTERM
