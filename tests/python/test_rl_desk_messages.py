"""What the desk and its clients have in common."""

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from weightcast.rl import desk_messages  # noqa: E402
from weightcast.rl.desk_messages import pack, token_key  # noqa: E402


def test_a_message_that_the_other_side_would_drop_is_not_sent(monkeypatch):
    monkeypatch.setattr(desk_messages, "MOST_BYTES", 100)
    assert pack({"type": "alive"})
    with pytest.raises(wc.InvalidArgument, match="type 'done' has 1.. bytes.*--samples_per_prompt"):
        pack({"type": "done", "sequences": b"0" * 100})


def test_the_token_may_be_in_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "a secret")
    from_environment = token_key()
    monkeypatch.delenv("WEIGHTCAST_TOKEN")
    (tmp_path / "token").write_text("a secret\n")
    monkeypatch.setenv("WEIGHTCAST_TOKEN_FILE", str(tmp_path / "token"))
    assert token_key() == from_environment
    monkeypatch.setenv("WEIGHTCAST_TOKEN_FILE", str(tmp_path / "gone"))
    with pytest.raises(wc.InvalidArgument, match="gone cannot be read"):
        token_key()
