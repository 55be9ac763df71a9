"""What the desk and its clients have in common."""

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from weightcast.rl.desk_messages import token_key  # noqa: E402


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
