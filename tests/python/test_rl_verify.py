"""What `--verify` makes of the digests that engines say, and of engines that say none."""

import logging
import threading
import time

import pytest

import weightcast as wc
from weightcast.rl.news import News
from weightcast.rl.report import Report

OURS = {"w": "1f", "b": "2e"}
LONG = 60.0


@pytest.fixture
def news():
    return News(Report())


def say(news, engine, version=3, **changed):
    news.on(engine, {"digests": {str(version): {**OURS, **changed}}})


def after(seconds, function, *arguments, **more):
    timer = threading.Timer(seconds, function, arguments, more)
    timer.start()
    return timer


def test_all_engines_are_waited_for_and_counted(news):
    say(news, "a")
    after(0.3, say, news, "b")
    assert news.compare(3, OURS, lambda: ["a", "b"], LONG) == 2


def test_another_tensor_is_named(news):
    say(news, "a")
    say(news, "b", w="00")
    with pytest.raises(wc.Corrupt, match="version 3: w has SHA-256 00 at engine b and 1f at the trainers"):
        news.compare(3, OURS, lambda: ["a", "b"], LONG)


def test_an_engine_that_goes_meanwhile_is_named_and_not_waited_for(news, caplog):
    say(news, "a")
    here = ["a", "b"]
    after(0.3, here.remove, "b")
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert news.compare(3, OURS, lambda: list(here), LONG) == 1
    assert time.monotonic() - start < LONG / 2
    assert "version 3: engine b has left without" in caplog.text


def test_an_engine_that_has_gone_before_is_named_once(news, caplog):
    for version in (1, 2):
        say(news, "a", version)
        say(news, "b", version)
        assert news.compare(version, OURS, lambda: ["a", "b"], LONG) == 2
    with caplog.at_level(logging.WARNING):
        for version in (3, 4):
            say(news, "a", version)
            assert news.compare(version, OURS, lambda: ["a"], LONG) == 1
    assert caplog.text.count("engine b has left without") == 1


def test_one_that_has_spoken_and_gone_is_compared(news):
    say(news, "b", w="00")
    with pytest.raises(wc.Corrupt):
        news.compare(3, OURS, list, LONG)


def test_one_that_comes_meanwhile_is_not_waited_for(news):
    say(news, "a")
    here = iter((["a"], ["a", "new"]))
    assert news.compare(3, OURS, lambda: next(here), LONG) == 1


def test_one_that_stays_and_says_nothing_is_named(news):
    say(news, "a")
    with pytest.raises(wc.TimedOut, match="version 3: no digests within 0.3 s of b"):
        news.compare(3, OURS, lambda: ["a", "b"], 0.3)


@pytest.mark.parametrize(
    "malformed",
    [
        {"spans": 3},
        {"spans": [{}]},
        {"spans": [{"kind": "generate", "start": 1.0, "end": 2.0}]},
        {"digests": [1]},
        {"digests": {"w": {}}},
        {"digests": {"9" * 5000: {}}},
        {"digests": {"3": "1f"}},
    ],
)
def test_malformed_words_are_refused(news, malformed):
    with pytest.raises(wc.ProtocolError, match="malformed"):
        news.on("a", malformed)


def test_words_of_old_versions_are_forgotten(news):
    say(news, "a", version=2)
    say(news, "a", w="00", version=4)
    say(news, "a")
    assert news.compare(3, OURS, lambda: ["a"], LONG) == 1
    with pytest.raises(wc.Corrupt):
        news.compare(4, OURS, lambda: ["a"], LONG)
    assert news.compare(2, OURS, list, LONG) == 0
