"""A queue and its clients in this process, and an engine's work without a model."""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from weightcast import Unavailable, job_token
from weightcast.rl.rollout_client import RolloutClient
from weightcast.rl.rollout_protocol import Handshake, Inbox, Item, item_of, new_nonce, nonce_of, pack
from weightcast.rl.rollout_queue import RolloutQueue
from weightcast.rl.sequence import Sequence
from weightcast.rl.timeline import Clock

LEASE = 0.5
PATIENCE = 20


@contextlib.contextmanager
def a_queue(telemetry: Callable[..., None] = lambda *_: None, *, port: int = 0) -> Iterator[RolloutQueue]:
    made = RolloutQueue(f"127.0.0.1:{port}", trainers=2, lease=LEASE, clock=Clock(), telemetry=telemetry)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def clients_of(queue: RolloutQueue) -> Iterator[Callable[..., RolloutClient]]:
    """A function that makes them; their own lease is long."""
    with contextlib.ExitStack() as made:

        def connect(name: str = "a", role: str = "inference") -> RolloutClient:
            address = f"127.0.0.1:{queue.port}"
            return made.enter_context(
                RolloutClient(address, name=name, role=role, lease=LEASE * 20, timeout=PATIENCE)
            )

        yield connect


# --- Without a RolloutClient


class Wire:
    """A connection on which a test says what it likes."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._in = connected, Inbox()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Unavailable(f"the connection has ended: {error.strerror}") from None

    def wait(self, timeout: float, *, to_send: bool = False) -> bool:
        """Whether something has come, or something more can be sent."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT if to_send else select.POLLIN)
        return bool(poller.poll(max(0.0, timeout) * 1000))

    def receive(self) -> list[dict[str, Any]]:
        """Once: the messages that are whole then."""
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise Unavailable(f"the connection has ended: {error.strerror}") from None
        if not data:
            raise Unavailable("the other side has closed the connection")
        self._in.add(data)
        return list(iter(self._in.next, None))

    def say_no_more(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def a_stranger(queue: RolloutQueue) -> Iterator[Wire]:
    """A connection on which nothing has been said."""
    with socket.create_connection(("127.0.0.1", queue.port)) as connected:
        yield Wire(connected)


def hear(link: Wire, kind: str) -> dict[str, Any]:
    """The next message of this type; those before it are dropped."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert link.wait(deadline - time.monotonic()), f"no {kind} came"
        for message in link.receive():
            if message["type"] == kind:
                return message


def come_in(link: Wire, name: str, role: str = "inference") -> list[bytes]:
    """Does what a RolloutClient does first; what it has sent."""
    nonce = new_nonce()
    hello = pack({"type": "hello", "name": name, "role": role, "nonce": nonce})
    link.send(hello)
    handshake = Handshake(name, role, nonce, nonce_of(hear(link, "challenge")))
    proof = pack({"type": "proof", "proof": handshake.proof(job_token()[0], "client")})
    link.send(proof)
    hear(link, "welcome")
    return [hello, proof]


# --- Work


def item(number, *, iteration=1, trainer=0, oldest=0, newest=0):
    return Item(iteration, number, trainer, [[1, 2], [3]], 2, 7, oldest, newest)


def outcome(of: Item) -> list[Sequence]:
    prompts = [prompt for prompt in of.prompts for _ in range(of.samples)]
    return [Sequence(prompt, [of.number, 9], [-0.5, -0.25], [0, 0]) for prompt in prompts]


def work(client, version=0):
    """Asks once and brings what it is given; the item."""
    client.ask(version, {})
    found = item_of(client.next(PATIENCE))
    client.bring(found, outcome(found), {})
    return found
