"""Who is admitted to the queue, and to which queue a client speaks."""

import contextlib
import dataclasses
import socket
import threading
import time

import pytest

pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from rl_queues import (  # noqa: E402
    LEASE,
    PATIENCE,
    Wire,
    a_queue,
    a_stranger,
    clients_of,
    come_in,
    hear,
    item,
    work,
)
from weightcast import job_token  # noqa: E402
from weightcast.rl import rollout_queue as queue_module  # noqa: E402
from weightcast.rl.rollout_client import RolloutClient  # noqa: E402
from weightcast.rl.rollout_protocol import (  # noqa: E402
    Handshake,
    new_nonce,
    pack,  # noqa: E402
)
from weightcast.rl.rollout_queue import RolloutQueue  # noqa: E402
from weightcast.rl.timeline import Clock  # noqa: E402


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "a-secret-of-these-tests")


@pytest.fixture
def queue():
    with a_queue() as made:
        yield made


@pytest.fixture
def client(queue):
    with clients_of(queue) as connect:
        yield connect


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_token_may_be_in_a_file(monkeypatch, tmp_path):
    from_environment = job_token()
    monkeypatch.delenv("WEIGHTCAST_TOKEN")
    (tmp_path / "token").write_text("a-secret-of-these-tests\n")
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("WEIGHTCAST_TOKEN_FILE", str(tmp_path / "token"))
    assert job_token() == from_environment
    monkeypatch.setenv("WEIGHTCAST_TOKEN_FILE", str(tmp_path / "gone"))
    with pytest.raises(wc.InvalidArgument, match="cannot read the job token in .*gone"):
        job_token()


def test_a_proof_is_of_one_side_of_one_connection_under_one_token():
    one = Handshake("a", "inference", new_nonce(), new_nonce())
    others = [
        dataclasses.replace(one, name="b"),
        dataclasses.replace(one, role="trainer"),
        dataclasses.replace(one, client_nonce=new_nonce()),
        dataclasses.replace(one, server_nonce=new_nonce()),
        dataclasses.replace(one, client_nonce=one.server_nonce, server_nonce=one.client_nonce),
    ]
    proofs = {
        one.proof(b"t", "client"),
        one.proof(b"t", "server"),
        one.proof(b"u", "client"),
        one.proof(b"", "client"),
    }
    proofs |= {other.proof(b"t", "client") for other in others}
    assert len(proofs) == 9 and {len(proof) for proof in proofs} == {32}
    one.check(b"t", "client", {"proof": one.proof(b"t", "client")})
    for wrong in (None, "", b"", one.proof(b"t", "server"), one.proof(b"t", "client")[:31]):
        with pytest.raises(wc.ProtocolError, match="WEIGHTCAST_TOKEN"):
            one.check(b"t", "client", {"proof": wrong})


def test_another_token_is_refused(client, monkeypatch):
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "another-secret-of-these-tests")
    with pytest.raises(
        wc.InvalidArgument, match="another job token; give all processes one WEIGHTCAST_TOKEN$"
    ):
        client()


def test_without_a_token_the_queue_listens_on_loopback_only(monkeypatch, tmp_path):
    monkeypatch.delenv("WEIGHTCAST_TOKEN")
    monkeypatch.delenv("WEIGHTCAST_TOKEN_FILE", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for everywhere in (":0", "0.0.0.0:0"):
        with pytest.raises(
            wc.Permission, match=r"loopback only, not on 0\.0\.0\.0; give all .*WEIGHTCAST_TOKEN"
        ):
            RolloutQueue(everywhere, trainers=1, lease=LEASE, clock=Clock(), telemetry=lambda *_: None)
    with a_queue() as queue:
        with clients_of(queue) as connect:
            connect()
        monkeypatch.setenv("WEIGHTCAST_TOKEN", "anothers-secret-of-these-tests")  # As another user's own is.
        with clients_of(queue) as connect, pytest.raises(wc.InvalidArgument, match="another job token"):
            connect()


def test_with_a_token_the_queue_listens_where_it_is_told():
    queue = RolloutQueue(":0", trainers=1, lease=LEASE, clock=Clock(), telemetry=lambda *_: None)
    queue.end()


def test_what_was_heard_on_the_wire_admits_nobody_and_takes_nobodys_place(queue, client):
    with a_stranger(queue) as genuine, a_stranger(queue) as listener:
        hello, proof = come_in(genuine, "a")
        listener.send(hello)
        listener.send(proof)
        assert "another job token" in hear(listener, "refused")["reason"]
        genuine.send(proof)
        assert "type 'proof'" in hear(genuine, "refused")["reason"]
    with a_stranger(queue) as listener:
        listener.send(proof)
        assert "has not proven" in hear(listener, "refused")["reason"]
    engine = client("b")
    with a_stranger(queue) as listener:
        listener.send(pack({"type": "hello", "name": "b", "role": "inference", "nonce": new_nonce()}))
        hear(listener, "challenge")
        listener.send(pack({"type": "proof", "proof": bytes(32)}))
        hear(listener, "refused")
    queue.offer([item(0)])
    assert work(engine).number == 0


def test_nobody_is_heard_before_the_proof(queue):
    for early in ({"type": "free", "version": 0}, {"type": "alive", "telemetry": {"spans": []}}):
        with a_stranger(queue) as stranger:
            stranger.send(pack({"type": "hello", "name": "a", "role": "inference", "nonce": new_nonce()}))
            stranger.send(pack(early))
            assert "job token" in hear(stranger, "refused")["reason"]
    with a_stranger(queue) as stranger:
        stranger.send(pack({"type": "hello", "name": "a", "role": "inference", "nonce": bytes(2000)}))
        hear(stranger, "refused")
    assert queue.engines() == []


def test_those_who_say_hello_and_no_more_keep_nobody_out(queue, client, monkeypatch):
    monkeypatch.setattr(queue._listener, "_most", 3)
    with contextlib.ExitStack() as stack:
        for number in range(8):
            stranger = stack.enter_context(a_stranger(queue))
            stranger.send(
                pack({"type": "hello", "name": str(number), "role": "inference", "nonce": new_nonce()})
            )
            hear(stranger, "challenge")
        assert len(queue._listener.strangers) == 3
        client("a")
        assert queue.engines() == ["a"]


def test_who_proves_nothing_is_dropped_after_some_seconds(queue):
    with a_stranger(queue) as stranger:
        stranger.send(pack({"type": "hello", "name": "a", "role": "inference", "nonce": new_nonce()}))
        hear(stranger, "challenge")
        with pytest.raises(wc.Unavailable, match="closed|reset"):
            while stranger.wait(PATIENCE):
                stranger.receive()
    assert not queue._listener.strangers


def test_one_that_comes_while_the_run_ends_hears_so(queue):
    with a_stranger(queue) as stranger:
        stranger.send(pack({"type": "hello", "name": "a", "role": "inference", "nonce": new_nonce()}))
        hear(stranger, "challenge")
        queue.end()
        assert hear(stranger, "refused")["reason"] == "the run has ended; start this process with the next"


# --- The client's side


@contextlib.contextmanager
def a_false_queue(*answers):
    """Answers one message after another with these, and then no more; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connected, _ = listener.accept()
            with connected:
                link = Wire(connected)
                for answer in answers:
                    while link.wait(PATIENCE) and not link.receive():
                        pass
                    link.send(answer)
                over.wait(PATIENCE)

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join()


CHALLENGE = pack({"type": "challenge", "nonce": bytes(32)})
CLOCK = {"start": 0.0, "reading": 0.0, "host": "h"}


@pytest.mark.parametrize("answers", [[], [CHALLENGE]])
def test_a_queue_that_does_not_go_on_is_not_waited_for(answers):
    with (
        a_false_queue(*answers) as port,
        pytest.raises(wc.TimedOut, match="no answer from the rollout queue"),
    ):
        RolloutClient(f"127.0.0.1:{port}", name="a", role="inference", lease=LEASE, timeout=0.5)


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ([pack({"type": "welcome", **CLOCK})], wc.ProtocolError, "sent type 'welcome', not 'challenge'"),
        ([pack({"type": "challenge", "nonce": b"short"})], wc.ProtocolError, "no nonce"),
        ([b"nonsense"], wc.ProtocolError, "message"),
        ([CHALLENGE, pack({"type": "welcome", **CLOCK})], wc.InvalidArgument, "not this run's rollout queue"),
        ([CHALLENGE, pack({"type": "welcome", "proof": bytes(32), **CLOCK})], wc.InvalidArgument, "not this"),
        ([pack({"type": "refused", "reason": "a\n\x1b[31mb"})], wc.InvalidArgument, r"process: a\?\?\[31mb$"),
    ],
)
def test_a_false_queue_is_not_followed(answers, error, words):
    with a_false_queue(*answers) as port, pytest.raises(error, match=words):
        RolloutClient(f"127.0.0.1:{port}", name="a", role="inference", lease=LEASE, timeout=PATIENCE)


def test_a_client_that_waits_for_the_queue_has_its_clock_nevertheless(monkeypatch):
    monkeypatch.setattr(queue_module, "host_identity", lambda: "another host")
    port, made = free_port(), []

    def wait() -> None:
        made.append(
            RolloutClient(f"127.0.0.1:{port}", name="a", role="inference", lease=LEASE, timeout=PATIENCE)
        )

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(1)
    with a_queue(port=port):
        waiting.join()
    with made[0] as client:
        assert abs(client.clock.offset) < 0.25
