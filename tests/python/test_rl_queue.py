"""The queue: items go out once, results come back whole, and what is malformed hurts nobody else."""

import random
import threading
import time

import pytest

msgpack = pytest.importorskip("msgpack")

import weightcast as wc  # noqa: E402
from rl_queues import (  # noqa: E402
    LEASE,
    PATIENCE,
    a_queue,
    a_stranger,
    clients_of,
    come_in,
    hear,
    item,
    outcome,
    work,
)
from weightcast.rl.rollout_client import EndOfRun, RolloutClient  # noqa: E402
from weightcast.rl.rollout_protocol import item_of  # noqa: E402
from weightcast.rl.rollout_queue import RolloutQueue  # noqa: E402
from weightcast.rl.sequence import Sequence  # noqa: E402
from weightcast.rl.timeline import Clock  # noqa: E402


@pytest.fixture
def told():
    return []


@pytest.fixture
def queue(told):
    with a_queue(lambda who, what: told.append((who, what))) as made:
        yield made


@pytest.fixture
def client(queue):
    with clients_of(queue) as connect:
        yield connect


def test_results_come_back_in_the_order_of_their_numbers(queue, client):
    engines = [client("a"), client("b")]
    queue.offer([item(0), item(1), item(2)])
    for engine in (engines[1], engines[0], engines[1]):
        work(engine)
    found = queue.take(1, 0, PATIENCE)
    assert [one[0].tokens[0] for one in found] == [0, 1, 2]
    assert found[0] == outcome(item(0))


def test_a_trainer_gets_its_share_when_it_is_whole(queue, client):
    trainer, engine = client("1", "trainer"), client()
    queue.offer([item(0, trainer=1), item(1, trainer=1)])
    trainer.want(1, {})
    work(engine)
    assert trainer.next(0.1) is None
    work(engine)
    share = trainer.next(PATIENCE)
    assert (share["iteration"], len(share["items"])) == (1, 2)


def test_an_item_waits_for_an_engine_with_the_right_version(queue, client):
    engine = client()
    queue.offer([item(0, oldest=3, newest=4)])
    engine.ask(2, {})
    assert engine.next(0.1) is None
    queue.announce(3)
    assert engine.next(PATIENCE) == {"type": "update", "version": 3}
    engine.ask(5, {})
    assert engine.next(0.1) is None
    engine.ask(4, {})
    assert item_of(engine.next(PATIENCE)).number == 0


def test_the_work_of_a_silent_engine_goes_to_another_and_its_late_result_is_dropped(queue, client):
    slow, quick = client("slow"), client("quick")
    queue.offer([item(0)])
    slow.ask(0, {})
    held = item_of(slow.next(PATIENCE))
    assert work(quick).number == 0  # Not before the lease is over.
    assert queue.take(1, 0, PATIENCE)[0] == outcome(item(0))
    queue.offer([item(1)])
    slow.bring(held, [Sequence([1], [5], [-9.0], [0])] * 4, {})
    assert work(slow).number == 1  # It has lost nothing but its item.
    assert queue.take(1, 0, PATIENCE)[0] == outcome(item(1))


def test_what_a_slow_engine_brings_counts_if_nobody_else_has_brought_it(queue, client):
    slow, quick = client("slow"), client("quick")
    queue.offer([item(0)])
    slow.ask(0, {})
    held = item_of(slow.next(PATIENCE))
    time.sleep(2 * LEASE)  # It waits for an engine again.
    slow.bring(held, outcome(held), {})
    assert queue.take(1, 0, PATIENCE)[0] == outcome(held)
    queue.offer([item(1)])
    slow.ask(0, {})
    held = item_of(slow.next(PATIENCE))
    assert held.number == 1
    quick.ask(0, {})
    also_held = item_of(quick.next(PATIENCE))
    slow.bring(held, outcome(held), {})
    assert queue.take(1, 0, PATIENCE)[0] == outcome(held)
    queue.offer([item(2)])
    quick.bring(also_held, outcome(also_held), {})
    assert work(quick).number == 2
    assert queue.take(1, 0, PATIENCE)[0] == outcome(item(2))


def test_an_engine_that_was_started_again_gets_work(queue, client):
    first = client("a")
    queue.offer([item(0)])
    first.ask(0, {})
    assert first.next(PATIENCE)["type"] == "item"
    assert work(client("a")).number == 0


def test_an_urgent_item_goes_first(queue, client):
    queue.offer([item(0), item(1)])
    queue.offer([item(0, iteration=-1)], first=True)
    assert work(client()).iteration == -1


def test_telemetry_is_handed_on(queue, client, told):
    engine = client("a")
    engine.ask(0, {"spans": [1, 2]})
    deadline = time.monotonic() + PATIENCE
    while not told and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == [("a", {"spans": [1, 2]})]


def test_who_waits_too_long_learns_what_is_missing(queue, client):
    client("a")
    queue.offer([item(0)])
    with pytest.raises(wc.TimedOut, match="1 batches .* not done.*see the logs of a, which have taken none"):
        queue.take(1, 0, 0.1)


def test_who_waits_looks_why_engines_have_no_work(queue):
    def check():
        raise wc.Unavailable("they have no weights")

    queue.offer([item(0)])
    with pytest.raises(wc.TimedOut, match="no engine is connected; start engines"):
        queue.take(1, 0, 3 * LEASE, check)
    address = f"127.0.0.1:{queue.port}"
    with RolloutClient(address, name="a", role="inference", lease=LEASE, timeout=PATIENCE) as engine:
        engine.ask(-1, {})
        with pytest.raises(wc.Unavailable, match="no weights"):
            queue.take(1, 0, PATIENCE, check)
        engine.ask(0, {})
        assert engine.next(PATIENCE)["type"] == "item"
        with pytest.raises(wc.TimedOut, match="; see the logs of a, which work on the others"):
            queue.take(1, 0, 3 * LEASE, check)


def test_an_engine_that_is_gone_is_not_counted(queue, client):
    client("a").close()
    time.sleep(LEASE)
    queue.offer([item(0)])
    with pytest.raises(wc.TimedOut, match="1 of them wait for an engine; no engine is connected"):
        queue.take(1, 0, 0.1)


def test_a_port_that_is_in_use_is_said_at_once(queue):
    with pytest.raises(wc.Unavailable, match="--rollout_queue"):
        RolloutQueue(
            f"127.0.0.1:{queue.port}", trainers=1, lease=LEASE, clock=Clock(), telemetry=lambda *_: None
        )


def test_the_end_reaches_everyone_with_its_reason(queue, client):
    engine, trainer = client(), client("1", "trainer")
    engine.ask(0, {})
    trainer.want(1, {})
    queue.end("the disk is full")
    for one in (engine, trainer):
        with pytest.raises(EndOfRun, match="^the run has ended: the disk is full$") as end:
            one.next(PATIENCE)
        assert end.value.reason == "the disk is full" and isinstance(end.value, wc.Error)


def hostile_messages():
    source = random.Random(5)
    yield b"\x80"
    yield b"\x00"
    yield b"\xc1" * 10
    yield msgpack.packb({"type": 3})
    yield msgpack.packb({"type": "hello"})
    yield msgpack.packb({"type": "free", "version": "x"})
    yield msgpack.packb({"type": "done", "iteration": 1, "number": 0, "sequences": [{}]})
    yield msgpack.packb({"type": "done", "iteration": 1 << 60, "number": -1, "sequences": None})
    yield b"\xdf\xff\xff\xff\xff"  # A map of four billion entries.
    for _ in range(100):
        yield source.randbytes(source.randrange(1, 64))


def test_nonsense_is_refused_and_hurts_nobody(queue, client):
    engine = client()
    for known in (False, True):
        for message in hostile_messages():
            with a_stranger(queue) as stranger:
                if known:
                    come_in(stranger, "evil")
                stranger.send(message)
                if not known:
                    hear(stranger, "refused")
    with a_stranger(queue) as stranger, pytest.raises(wc.Unavailable, match="closed|reset"):
        stranger.send(bytes(4000))
        while stranger.wait(PATIENCE):
            stranger.receive()
    queue.offer([item(0)])
    assert work(engine).number == 0
    assert queue.take(1, 0, PATIENCE)


@pytest.mark.parametrize("broken", [lambda right: right[:1], lambda right: [*right[:-1], Sequence([1])]])
def test_a_result_that_is_malformed_costs_its_engine_the_item(queue, client, broken):
    evil, good = client("evil"), client("good")
    queue.offer([item(0)])
    evil.ask(0, {})
    held = item_of(evil.next(PATIENCE))
    evil.bring(held, broken(outcome(held)), {})
    with pytest.raises(wc.InvalidArgument, match="refuses"):
        evil.next(PATIENCE)
    assert work(good).number == 0


def test_a_result_that_nobody_asked_for_costs_no_item(queue, client):
    engine = client()
    queue.offer([item(0)])
    engine.ask(0, {})
    held = item_of(engine.next(PATIENCE))
    engine.bring(item(7), outcome(item(7)), {})
    engine.bring(held, outcome(held), {})
    assert queue.take(1, 0, PATIENCE)[0] == outcome(held)


def test_many_items_engines_and_trainers(queue, client):
    trainer, engines = client("1", "trainer"), [client(f"engine-{i}") for i in range(4)]
    queue.offer([item(i, trainer=i % 2) for i in range(40)])

    def serve(engine):
        while True:
            engine.ask(0, {})
            if (order := engine.next(1)) is None:
                return
            engine.bring(item_of(order), outcome(item_of(order)), {})

    threads = [threading.Thread(target=serve, args=(engine,)) for engine in engines]
    for thread in threads:
        thread.start()
    trainer.want(1, {})
    assert len(trainer.next(PATIENCE)["items"]) == 20
    assert [one[0].tokens[0] for one in queue.take(1, 0, PATIENCE)] == list(range(0, 40, 2))
    for thread in threads:
        thread.join()
