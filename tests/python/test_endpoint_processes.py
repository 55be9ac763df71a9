"""weightcast.Endpoint between processes: both transports, death, the token, signals, fork."""

import asyncio
import os
import signal
import socket

import numpy as np
import pytest

import cli
import weightcast as wc
from endpoints import PATIENCE, SETTINGS, pattern

SIZE = 1 << 20
LONG = 64 << 20  # A hundred times this is under way for seconds.
TRANSPORTS = ["shm", "tcp"]


def over(transport: str) -> dict[str, object]:
    return {**SETTINGS, "transport": transport}


# --- Write, read, notify ---------------------------------------------------------------------------


def write_and_read(addresses: list[str], transport: str) -> bytes:
    with wc.Endpoint(role="writer", rank=3, settings=over(transport)) as endpoint:
        owner = endpoint.connect(addresses, role="owner", timeout=PATIENCE)
        assert owner.transport == transport
        remote = owner.import_region(owner.take_notice(PATIENCE))
        mine = endpoint.allocate(SIZE)
        mine.array[:] = pattern(SIZE, 1)
        owner.write(mine[0:4096], remote[8192:12288]).wait(PATIENCE)
        owner.notify(b"a part")
        assert owner.take_notice(PATIENCE) == b"seen"
        owner.write([(mine[1:], remote[1:]), (mine[:1], remote[:1])]).wait(PATIENCE)
        owner.notify(b"all")
        assert owner.take_notice(PATIENCE) == b"changed"
        back = endpoint.register(bytearray(SIZE))
        owner.read(back, remote).wait(PATIENCE)
        return bytes(back.array)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("allocated", [True, False], ids=["allocated", "any"])
def test_two_processes_write_read_and_notify(spawn, transport, allocated):
    memory = wc.allocate(SIZE) if allocated else np.zeros(SIZE, np.uint8)
    expected = pattern(SIZE, 1)
    with wc.Endpoint(role="owner", settings=over(transport)) as endpoint:
        child = spawn(write_and_read, endpoint.addresses, transport)
        region = endpoint.register(memory)
        writer = endpoint.accept(PATIENCE)
        assert str(writer.peer) == "writer 3"
        writer.notify(region.descriptor)
        assert writer.take_notice(PATIENCE) == b"a part"
        assert np.array_equal(memory[8192:12288], expected[:4096]), "a notice comes after the data"
        assert not memory[:8192].any() and not memory[12288:].any()
        writer.notify(b"seen")
        assert writer.take_notice(PATIENCE) == b"all"
        assert np.array_equal(memory, expected)
        memory[:] = pattern(SIZE, 2)
        writer.notify(b"changed")
        assert child.value(PATIENCE) == pattern(SIZE, 2).tobytes()


# --- Death and strangers ---------------------------------------------------------------------------


def lend(addresses: list[str], transport: str) -> None:
    with wc.Endpoint(role="lender", rank=4, settings=over(transport)) as endpoint:
        owner = endpoint.connect(addresses, timeout=PATIENCE)
        region = endpoint.allocate(LONG)
        owner.notify(region.descriptor)
        owner.take_notice()


@pytest.mark.parametrize(
    ("transport", "end"),
    [("shm", signal.SIGKILL), ("tcp", signal.SIGKILL), ("tcp", signal.SIGSTOP)],
    ids=["shm-killed", "tcp-killed", "tcp-stopped"],
)
def test_a_peer_that_dies_in_mid_transfer_is_named_within_the_lease(spawn, transport, end):
    with wc.Endpoint(role="owner", settings=over(transport)) as endpoint:
        child = spawn(lend, endpoint.addresses, transport)
        lender = endpoint.accept(PATIENCE)
        remote = lender.import_region(lender.take_notice(PATIENCE))
        mine, other = endpoint.allocate(LONG), endpoint.allocate(LONG)
        transfers = [lender.write([(mine, remote)] * 100), lender.read([(other, remote)] * 100)]
        with pytest.raises(wc.TimedOut, match="has not ended within the timeout of this call and continues"):
            transfers[0].wait(0.05)
        os.kill(child.process.pid, end)

        async def outcomes() -> list[object]:
            return await asyncio.gather(*transfers, return_exceptions=True)

        errors = asyncio.run(asyncio.wait_for(outcomes(), 2 * SETTINGS["lease"]))
        for error in errors:
            assert isinstance(error, wc.PeerDead), error
            assert "lender 4 (127.0.0.1:" in str(error)
        with pytest.raises(wc.PeerDead, match="lender 4"):
            lender.take_notice(PATIENCE)


RIGHT = "the-right-token-of-this-test"


def call_with(token: str | None, addresses: list[str], **settings: str) -> None:
    with wc.Endpoint(token=token, settings={**SETTINGS, **settings}) as endpoint:
        endpoint.connect(addresses, timeout=PATIENCE)


def call_with_environment(name: str, value: str, addresses: list[str]) -> None:
    os.environ[name] = value
    call_with(None, addresses)


def test_a_wrong_token_is_refused_and_a_right_one_is_not(spawn):
    with wc.Endpoint(token=RIGHT, settings=SETTINGS) as endpoint:
        kind, text = spawn(call_with, "the-wrong-token-of-this-test", endpoint.addresses).outcome()
        assert kind == "Permission" and "token" in text
        with pytest.raises(wc.TimedOut):
            endpoint.accept(0)
        spawn(call_with, RIGHT, endpoint.addresses).value()
        assert endpoint.accept(PATIENCE).peer.role == "peer"


def test_a_token_given_by_hand_meets_it_in_the_environment_in_a_file_and_in_a_role(spawn, tmp_path):
    path = tmp_path / "job.token"
    path.touch(0o600)
    path.write_text(RIGHT + "\n")
    role = cli.run("token", "--role", "peer", env={**os.environ, "WEIGHTCAST_TOKEN": RIGHT}).stdout.strip()
    assert role.startswith("wct1:peer:")
    with wc.Endpoint(token=RIGHT, settings=SETTINGS) as endpoint:
        spawn(call_with_environment, "WEIGHTCAST_TOKEN", RIGHT, endpoint.addresses).value()
        spawn(call_with_environment, "WEIGHTCAST_TOKEN_FILE", str(path), endpoint.addresses).value()
        spawn(call_with_environment, "WEIGHTCAST_TOKEN", role, endpoint.addresses).value()
        spawn(call_with, role, endpoint.addresses).value()
    with pytest.raises(wc.InvalidArgument, match="too weak"):
        wc.Endpoint(token="short", settings=SETTINGS)
    observer = cli.run("token", "--role", "observer", env={**os.environ, "WEIGHTCAST_TOKEN": RIGHT}).stdout
    with pytest.raises(wc.Permission, match="has no key for 'peers'"):
        wc.Endpoint(token=observer.strip(), settings=SETTINGS)


# --- Signals and fork ------------------------------------------------------------------------------


def wait_for_ever(what: str, addresses: list[str], silent: str) -> None:
    with wc.Endpoint(settings=SETTINGS) as endpoint:
        owner = endpoint.connect(addresses, timeout=PATIENCE)
        remote = owner.import_region(owner.take_notice(PATIENCE))
        mine = endpoint.allocate(len(remote))
        calls = {
            "accept": endpoint.accept,
            "connect": lambda: endpoint.connect(silent, timeout=1000),
            "take_notice": owner.take_notice,
            "transfer": lambda: owner.write([(mine, remote)] * 1000).wait(),
            "await": lambda: asyncio.run(owner.take_notice_async()),
        }
        owner.notify(b"waiting")
        calls[what]()


@pytest.mark.parametrize("what", ["accept", "connect", "take_notice", "transfer", "await"])
def test_ctrl_c_ends_every_call_that_waits(spawn, what):
    with socket.socket() as silent, wc.Endpoint(settings=SETTINGS) as endpoint:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        region = endpoint.allocate(LONG)
        child = spawn(wait_for_ever, what, endpoint.addresses, f"127.0.0.1:{silent.getsockname()[1]}")
        peer = endpoint.accept(PATIENCE)
        peer.notify(region.descriptor)
        assert peer.take_notice(PATIENCE) == b"waiting"
        os.kill(child.process.pid, signal.SIGINT)
        assert child.outcome(PATIENCE)[0] == "KeyboardInterrupt"


def fork_and_use() -> list[str]:
    """What each call says in a forked child."""
    with wc.Endpoint(settings=SETTINGS) as endpoint, wc.Endpoint(settings=SETTINGS) as other:
        connection = endpoint.connect(other.addresses, timeout=PATIENCE)
        back = other.accept(PATIENCE)
        target = other.allocate(LONG)  # Open to the peer as long as somebody holds it.
        remote = connection.import_region(target.descriptor)
        region = endpoint.allocate(LONG)
        transfer = connection.write([(region, remote)] * 100)
        calls = [
            lambda: endpoint.register(np.zeros(4)),
            lambda: endpoint.addresses,
            lambda: endpoint.accept(1),
            lambda: endpoint.connect(other.addresses),
            lambda: connection.write(region, remote),
            lambda: connection.notify(b"x"),
            lambda: back.take_notice(1),
            lambda: connection.import_region(b"x"),
            lambda: transfer.wait(1),
            lambda: region.close(),
            lambda: endpoint.close(),
        ]
        readable, writable = os.pipe()
        if os.fork() == 0:
            said = []
            for call in calls:
                try:
                    call()
                    said.append("nothing")
                except wc.Error as error:
                    said.append(f"{error.code}: {error}")
            del calls, transfer, region, target, remote, connection, back
            os.write(writable, "\n".join(said).encode())
            os._exit(0)
        os.wait()
        os.close(writable)
        with os.fdopen(readable) as pipe:
            said = pipe.read().splitlines()
        transfer.cancel()
        connection.notify(b"the parent goes on")
        assert back.take_notice(PATIENCE) == b"the parent goes on"
        return said


def test_calls_in_a_forked_child_fail_and_the_parent_goes_on(spawn):
    said = spawn(fork_and_use).value()
    assert len(said) == 11
    for line in said:
        assert line.startswith("internal: ") and "forked child" in line
