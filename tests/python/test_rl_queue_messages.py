"""What the queue and its clients have in common."""

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from weightcast.rl import rollout_protocol  # noqa: E402
from weightcast.rl.rollout_protocol import pack  # noqa: E402


def test_a_message_that_the_other_side_would_drop_is_not_sent(monkeypatch):
    monkeypatch.setattr(rollout_protocol, "MOST_BYTES", 100)
    assert pack({"type": "alive"})
    with pytest.raises(wc.InvalidArgument, match="type 'done' has 1.. bytes.*--samples_per_prompt"):
        pack({"type": "done", "sequences": b"0" * 100})
