"""A desk and its clients in this process, and an engine's work without a model."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from weightcast.rl.desk import Desk
from weightcast.rl.desk_client import DeskClient
from weightcast.rl.desk_handshake import Handshake, job_token, new_nonce, nonce_of
from weightcast.rl.desk_link import Link
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
def a_stranger(desk: Desk) -> Iterator[Link]:
    """A connection on which nothing has been said."""
    with socket.create_connection(("127.0.0.1", desk.port)) as connected:
        yield Link(connected)


def hear(link: Link, kind: str) -> dict[str, Any]:
    """The next message of this type; those before it are dropped."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert link.wait(deadline - time.monotonic()), f"no {kind} came"
        for message in map(unpack, link.receive()):
            if message["type"] == kind:
                return message


def come_in(link: Link, name: str, role: str = "inference") -> list[bytes]:
    """Does what a DeskClient does first; what it has sent."""
    nonce = new_nonce()
    hello = pack({"type": "hello", "name": name, "role": role, "nonce": nonce})
    link.send(hello)
    handshake = Handshake(name, role, nonce, nonce_of(hear(link, "challenge")))
    proof = pack({"type": "proof", "proof": handshake.proof(job_token().secret, "client")})
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
