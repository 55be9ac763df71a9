"""A trainer's loop."""

import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import weightcast as wc  # noqa: E402
from rl_desks import LEASE, a_desk, clients_of, item, outcome, work  # noqa: E402
from weightcast.rl.desk_client import EndOfRun  # noqa: E402
from weightcast.rl.timeline import Timeline  # noqa: E402
from weightcast.rl.trainer import FromClient, FromDesk  # noqa: E402


def test_a_trainer_waits_for_its_share_as_long_as_trainer_0_evaluates():
    """Which may take --timeout before rollouts are waited for, with a --timeout of their own."""
    with a_desk() as desk, clients_of(desk) as connect:
        trainer, engine = connect("1", "trainer"), connect()

        def evaluate_and_then_generate() -> None:
            work(engine)
            work(engine)

        desk.offer([item(0, trainer=1), item(1, trainer=1)])
        late = threading.Timer(3 * LEASE, evaluate_and_then_generate)
        late.start()
        found = FromClient(trainer, Timeline("trainer-1", trainer.clock)).take(1, LEASE, lambda: None)
        late.join()
    assert found == outcome(item(0)) + outcome(item(1))


def test_rollouts_that_do_not_come_end_every_trainer_by_the_word_of_trainer_0():
    with a_desk() as desk, clients_of(desk) as connect:
        trainer = connect("1", "trainer")
        desk.offer([item(0), item(1, trainer=1)])
        with pytest.raises(wc.TimedOut, match="iteration 1 are not here") as why:
            FromDesk(desk).take(1, LEASE, lambda: None)
        threading.Timer(LEASE, lambda: desk.end(str(why.value))).start()
        with pytest.raises(EndOfRun, match="iteration 1 are not here"):
            FromClient(trainer, Timeline("trainer-1", trainer.clock)).take(1, LEASE, lambda: None)
