"""What the queue and its clients have in common."""

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from weightcast.rl import rollout_protocol  # noqa: E402
from weightcast.rl.rollout_protocol import Inbox, pack  # noqa: E402


def test_a_message_that_the_other_side_would_drop_is_not_sent(monkeypatch):
    monkeypatch.setattr(rollout_protocol, "MOST_BYTES", 100)
    assert pack({"type": "alive"})
    with pytest.raises(wc.InvalidArgument, match="message 'done' has 1.. bytes.*--samples_per_prompt"):
        pack({"type": "done", "sequences": b"0" * 100})


def test_messages_come_whole_however_they_are_cut():
    said = [{"type": "alive", "number": number, "data": bytes(number)} for number in range(300)]
    data = b"".join(map(pack, said))
    for size in (1, 7, 1000, len(data)):
        inbox, heard = Inbox(), []
        for begin in range(0, len(data), size):
            inbox.add(data[begin : begin + size])
            heard += iter(inbox.next, None)
        assert heard == said


def test_the_longest_message_is_heard_with_what_follows_in_the_same_read():
    longest = pack({"type": "done", "data": bytes(rollout_protocol.MOST_BYTES - 21)})
    assert len(longest) == rollout_protocol.MOST_BYTES
    inbox = Inbox()
    inbox.add(longest[:-1])
    assert inbox.next() is None
    inbox.add(longest[-1:] + bytes(rollout_protocol.MOST_AT_ONCE - 1))
    assert inbox.next()["type"] == "done"


def test_a_message_longer_than_allowed_is_not_kept():
    inbox = Inbox(2048)
    inbox.add(b"\xdb\x7f\xff\xff\xff")  # A text of two billion bytes.
    with pytest.raises(wc.ProtocolError, match="more bytes than are allowed, 2048; use one release"):
        for _ in range(100):
            assert inbox.next() is None
            inbox.add(bytes(rollout_protocol.MOST_AT_ONCE))


def test_a_list_that_claims_more_than_it_can_have_gets_no_memory():
    for most in (2048, rollout_protocol.MOST_BYTES):
        inbox = Inbox(most)
        inbox.add(b"\xdd\xff\xff\xff\xff" * 400)
        with pytest.raises(wc.ProtocolError, match="another program or release .*max_array_len"):
            inbox.next()
    nested = Inbox(2048)
    nested.add(b"\xdc\x00\x40" * 500)
    assert nested.next() is None


@pytest.mark.parametrize("old", [b"\x00\x00\x00\x0c" + pack({"type": "alive"}), b"\x00\x00\x00\x01"])
def test_another_release_is_told_so(old):
    """One that sends a message's length before it."""
    inbox = Inbox()
    inbox.add(old)
    with pytest.raises(wc.ProtocolError, match="another program or release; use one release of weightcast"):
        inbox.next()
