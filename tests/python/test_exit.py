"""The interpreter ends, as always, while daemon threads are inside calls that wait."""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import asyncio, contextlib, os, signal, sys, threading, time
import numpy as np
import weightcast as wc
controller = sys.argv[1]
FAST = {"lease": 1, "timeout": 60}
weights = {"w": np.zeros((64, 8), np.float32)}


def engine(name="e"):
    worker = wc.Inference(controller, engine=name, settings=FAST)
    worker.register(weights)
    return worker


def trainer():
    source = wc.Trainer(controller, settings=FAST)
    source.register(weights)
    return source


def inside(call, *arguments, **options):
    "A daemon thread in the call, for as long as that takes."
    began = threading.Event()

    def run():
        began.set()
        with contextlib.suppress(wc.Error):
            while True:
                with contextlib.suppress(wc.TimedOut):
                    call(*arguments, **options)

    threading.Thread(target=run, daemon=True).start()
    began.wait()
    time.sleep(0.05)


def linked():
    a, b = (wc.Endpoint(rank=rank, settings={"bind": "127.0.0.1"}) for rank in (0, 1))
    to_b = a.connect(b.addresses)
    return a, b, to_b, b.accept(10)
"""

WAITS = {
    "wait": "inside(engine().wait)",
    "wait in short": "inside(engine().wait, timeout=0.001)",
    "receive": "e = engine(); e.begin(); inside(e.receive)",
    "publish": "t = trainer(); u = t.publish(1); inside(u.wait)",
    "sources": "t = trainer(); u = t.publish(1); inside(u.wait_sources)",
    "engines": "t = trainer(); inside(t.engines); inside(t.engines)",
    "constructor": "inside(wc.Trainer, '127.0.0.1:1')",
    "accept": "a = wc.Endpoint(settings={'bind': '127.0.0.1'}); inside(a.accept); inside(a.accept, 0.001)",
    "notice": "a, b, x, y = linked(); inside(x.take_notice); inside(y.take_notice, 0.001)",
    "transfers": """
        a, b, x, y = linked()
        here, there = a.register(np.zeros(1 << 16, np.uint8)), b.register(np.zeros(1 << 16, np.uint8))
        y.notify(there.descriptor)
        remote = x.import_region(x.take_notice(10))
        inside(lambda: x.write(here, remote).wait())
        inside(lambda: x.write(pair for pair in [(here, remote)]).wait())
    """,
    "p2p": """
        from weightcast import p2p
        one = p2p.Endpoint(0)
        inside(one.accept)
    """,
    "control": """
        steps = []
        control = wc.EngineControl(controller, engine="e", settings=FAST, drain=lambda why: steps.append(why))
        e = engine()
        while not steps:
            time.sleep(0.01)
    """,
    "control that hangs": """
        called = threading.Event()
        def drain(why):
            called.set()
            time.sleep(60)
        control = wc.EngineControl(controller, engine="e", settings=FAST, drain=drain)
        e = engine()
        called.wait(10)
    """,
    "asyncio": """
        e = engine()
        loop = asyncio.new_event_loop()
        task = loop.create_task(e.wait_async())
        loop.run_until_complete(asyncio.sleep(0.1))
    """,
    "another loop": """
        e = engine()
        inside(asyncio.run, e.wait_async())
    """,
    "atexit": """
        import atexit
        e = engine()
        inside(e.wait)
        atexit.register(e.close)
    """,
}

ENDS = {
    "falls off": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "exception": ("raise ValueError('on purpose')", 1),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -2),
    "Ctrl-C in a wait": (
        "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start(); engine('f').wait()",
        -2,
    ),
}


def check(controller: str, body: str, end: str, code: int, *flags: str, timeout: float = 60) -> None:
    script = HEAD + textwrap.dedent(body) + "\n" + end + "\n"
    command = [sys.executable, *flags, "-c", script, controller]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == code, result.stderr
    for word in ("terminate called", "Fatal Python error", "leaked", "Aborted", "Exception in thread"):
        assert word not in result.stderr, result.stderr


@pytest.mark.parametrize("wait", WAITS)
def test_a_thread_inside_a_call_when_the_interpreter_ends(controller, wait):
    check(controller, WAITS[wait], "", 0)


@pytest.mark.parametrize("flags", [[], ["-X", "dev"]], ids=["plain", "dev"])
@pytest.mark.parametrize("end", ENDS)
def test_however_it_ends(controller, end, flags):
    body = "inside(engine().wait)\ninside(engine('g').wait, timeout=0.001)"
    check(controller, body, *ENDS[end], *flags)


def test_many_threads_that_come_and_go(controller):
    """The end meets each moment of a call."""
    body = """
        a = wc.Endpoint(settings={'bind': '127.0.0.1'})
        e = engine()
        for number in range(8):
            inside(a.accept, number * 0.0003)
        inside(e.wait, timeout=0.0005)
    """
    for _ in range(5):
        check(controller, body, "", 0)


def test_a_forked_child_ends_too(controller):
    body = """
        e = engine()
        inside(e.wait)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """
    check(controller, body, "", 0)


def test_nothing_is_leaked_where_everything_was_closed(controller, monkeypatch):
    monkeypatch.setenv("WC_LEAK_WARNINGS", "1")
    body = """
        a, b, x, y = linked()
        for one in (a, b):
            one.close()
        with trainer() as t, engine() as e:
            inside = t.publish(1)
            e.wait()
            inside.wait()
        asyncio.run(asyncio.sleep(0))
    """
    check(controller, body, "", 0)
