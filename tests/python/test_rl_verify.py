"""What `--verify` makes of the digests that engines say, and of engines that say none."""

import logging
import threading
import time

import pytest

import weightcast as wc
from weightcast.rl.report import Report, read_timeline
from weightcast.rl.telemetry import Telemetry

OURS = {"w": "1f", "b": "2e"}
LONG = 60.0


@pytest.fixture
def telemetry():
    return Telemetry(Report())


def say(telemetry, engine, version=3, **changed):
    telemetry.on(engine, {"digests": {str(version): {**OURS, **changed}}})


def after(seconds, function, *arguments, **more):
    timer = threading.Timer(seconds, function, arguments, more)
    timer.start()
    return timer


def test_all_engines_are_waited_for_and_counted(telemetry):
    say(telemetry, "a")
    after(0.3, say, telemetry, "b")
    assert telemetry.compare(3, OURS, lambda: ["a", "b"], LONG) == 2


def test_another_tensor_is_named(telemetry):
    say(telemetry, "a")
    say(telemetry, "b", w="00")
    with pytest.raises(wc.Corrupt, match="version 3: w has SHA-256 00 at engine b and 1f at the trainers"):
        telemetry.compare(3, OURS, lambda: ["a", "b"], LONG)


def test_an_engine_that_goes_meanwhile_is_named_and_not_waited_for(telemetry, caplog):
    say(telemetry, "a")
    here = ["a", "b"]
    after(0.3, here.remove, "b")
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert telemetry.compare(3, OURS, lambda: list(here), LONG) == 1
    assert time.monotonic() - start < LONG / 2
    assert "version 3: engine b has left, so" in caplog.text


def test_an_engine_that_has_gone_before_is_named_once(telemetry, caplog):
    for version in (1, 2):
        say(telemetry, "a", version)
        say(telemetry, "b", version)
        assert telemetry.compare(version, OURS, lambda: ["a", "b"], LONG) == 2
    with caplog.at_level(logging.WARNING):
        for version in (3, 4):
            say(telemetry, "a", version)
            assert telemetry.compare(version, OURS, lambda: ["a"], LONG) == 1
    assert caplog.text.count("engine b has left, so") == 1


def test_one_that_has_spoken_and_gone_is_compared(telemetry):
    say(telemetry, "b", w="00")
    with pytest.raises(wc.Corrupt):
        telemetry.compare(3, OURS, list, LONG)


def test_one_that_comes_meanwhile_is_not_waited_for(telemetry):
    say(telemetry, "a")
    here = iter((["a"], ["a", "new"]))
    assert telemetry.compare(3, OURS, lambda: next(here), LONG) == 1


def test_one_that_stays_and_says_nothing_is_named(telemetry):
    say(telemetry, "a")
    with pytest.raises(wc.TimedOut, match="version 3: no digests from b within 0.3 s"):
        telemetry.compare(3, OURS, lambda: ["a", "b"], 0.3)


SPAN = {"process": "a", "kind": "generate", "start": 0.0, "end": 1.0, "version": 1, "iteration": 1}


@pytest.mark.parametrize(
    "malformed",
    [
        {"spans": 3},
        {"spans": [SPAN, None]},
        {"spans": [{**SPAN, "kind": "sleep"}]},
        {"spans": [{**SPAN, "start": "now"}]},
        {"spans": [{**SPAN, "start": 2.0}]},
        {"spans": [{**SPAN, "end": float("nan")}]},
        {"spans": [{**SPAN, "process": 3}]},
        {"spans": [{**SPAN, "iteration": 1.5}]},
        {"spans": [{}]},
        {"spans": [{"kind": "generate", "start": 1.0, "end": 2.0}]},
        {"digests": [1]},
        {"digests": {"w": {}}},
        {"digests": {"9" * 5000: {}}},
        {"digests": {"3": "1f"}},
    ],
)
def test_malformed_words_are_refused(telemetry, malformed):
    with pytest.raises(wc.ProtocolError, match="malformed"):
        telemetry.on("a", malformed)


def test_spans_are_handed_on_to_the_report(tmp_path):
    with Report(tmp_path) as report:
        Telemetry(report).on("a", {"spans": [SPAN]})
    assert read_timeline(tmp_path) == [SPAN]


def test_words_of_old_versions_are_forgotten(telemetry):
    say(telemetry, "a", version=2)
    say(telemetry, "a", w="00", version=4)
    say(telemetry, "a")
    assert telemetry.compare(3, OURS, lambda: ["a"], LONG) == 1
    with pytest.raises(wc.Corrupt):
        telemetry.compare(4, OURS, lambda: ["a"], LONG)
    assert telemetry.compare(2, OURS, list, LONG) == 0
