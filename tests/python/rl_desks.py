"""A desk and its clients in this process, and an engine's work without a model."""

import contextlib
from collections.abc import Callable, Iterator

from weightcast.rl.desk import Desk
from weightcast.rl.desk_client import DeskClient
from weightcast.rl.desk_messages import Item, item_of
from weightcast.rl.sequence import Sequence
from weightcast.rl.timeline import Clock

LEASE = 0.5
PATIENCE = 20


@contextlib.contextmanager
def a_desk(news: Callable[..., None] = lambda *_: None) -> Iterator[Desk]:
    made = Desk("127.0.0.1:0", trainers=2, lease=LEASE, clock=Clock(), news=news)
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
