"""A desk and its clients in this process, and an engine's work without a model."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from weightcast.rl.desk import Desk
from weightcast.rl.desk_client import DeskClient
from weightcast.rl.desk_handshake import Handshake, job_token, new_nonce, nonce_of
from weightcast.rl.desk_messages import Item, item_of, pack, unpack
from weightcast.rl.sequence import Sequence
from weightcast.rl.timeline import Clock

LEASE = 0.5
PATIENCE = 20


@contextlib.contextmanager
def a_desk(news: Callable[..., None] = lambda *_: None, *, port: int = 0) -> Iterator[Desk]:
    made = Desk(f"127.0.0.1:{port}", trainers=2, lease=LEASE, clock=Clock(), news=news)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def clients_of(desk: Desk) -> Iterator[Callable[..., DeskClient]]:
    """A function that makes them; their own lease is long."""
    with contextlib.ExitStack() as made:

        def connect(name: str = "a", role: str = "inference") -> DeskClient:
            address = f"127.0.0.1:{desk.port}"
            return made.enter_context(
                DeskClient(address, name=name, role=role, lease=LEASE * 20, timeout=PATIENCE)
            )

        yield connect


# --- Without a DeskClient


@contextlib.contextmanager
def a_stranger(desk: Desk) -> Iterator[zmq.Socket]:
    """A connection on which nothing has been said."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as made:
        made.setsockopt(zmq.LINGER, 0)
        made.connect(f"tcp://127.0.0.1:{desk.port}")
        yield made


def hear(socket: zmq.Socket, kind: str) -> dict[str, Any]:
    """The next message of this type; those before it are dropped."""
    while True:
        assert socket.poll(PATIENCE * 1000), f"no {kind} came"
        if (message := unpack(socket.recv()))["type"] == kind:
            return message


def come_in(socket: zmq.Socket, name: str, role: str = "inference") -> list[bytes]:
    """Does what a DeskClient does first; what it has sent."""
    nonce = new_nonce()
    hello = pack({"type": "hello", "name": name, "role": role, "nonce": nonce})
    socket.send(hello)
    handshake = Handshake(name, role, nonce, nonce_of(hear(socket, "challenge")))
    proof = pack({"type": "proof", "proof": handshake.proof(job_token(), "client")})
    socket.send(proof)
    hear(socket, "welcome")
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
