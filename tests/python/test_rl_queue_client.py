"""A client of the queue: what it says when there is no queue, or none any more."""

import time

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from rl_queues import LEASE, PATIENCE, a_queue  # noqa: E402
from weightcast.rl.rollout_client import RolloutClient  # noqa: E402


@pytest.fixture
def queue():
    with a_queue() as made:
        yield made


def test_a_queue_that_falls_silent_is_noticed_within_the_lease(queue):
    engine = RolloutClient(
        f"127.0.0.1:{queue.port}", name="a", role="inference", lease=LEASE, timeout=PATIENCE
    )
    queue._beat = lambda: None
    begin = time.monotonic()
    with pytest.raises(wc.PeerDead, match="trainer 0"):
        engine.next(PATIENCE)
    assert time.monotonic() - begin < 2 * LEASE + 1
    engine.close()


def test_nobody_at_the_address_is_said():
    with pytest.raises(wc.TimedOut, match=r"127\.0\.0\.1:9"):
        RolloutClient("127.0.0.1:9", name="a", role="inference", lease=LEASE, timeout=0.3)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(wc.InvalidArgument, match="host:port"):
        RolloutClient("nowhere", name="a", role="inference", lease=LEASE, timeout=PATIENCE)
