"""A client of the desk: what it says when there is no desk, or none any more."""

import time

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from rl_desks import LEASE, PATIENCE, a_desk  # noqa: E402
from weightcast.rl.desk_client import DeskClient  # noqa: E402


@pytest.fixture
def desk():
    with a_desk() as made:
        yield made


def test_a_desk_that_falls_silent_is_noticed_within_the_lease(desk):
    engine = DeskClient(f"127.0.0.1:{desk.port}", name="a", role="inference", lease=LEASE, timeout=PATIENCE)
    desk._send = lambda *_: None
    begin = time.monotonic()
    with pytest.raises(wc.PeerDead, match="trainer 0"):
        engine.next(PATIENCE)
    assert time.monotonic() - begin < 2 * LEASE + 1
    engine.close()


def test_nobody_at_the_address_is_said():
    with pytest.raises(wc.TimedOut, match=r"127\.0\.0\.1:9"):
        DeskClient("127.0.0.1:9", name="a", role="inference", lease=LEASE, timeout=0.3)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(wc.InvalidArgument, match="host:port"):
        DeskClient("nowhere", name="a", role="inference", lease=LEASE, timeout=PATIENCE)
