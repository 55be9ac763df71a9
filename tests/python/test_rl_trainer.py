"""A trainer's loop."""

import json
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import weightcast as wc  # noqa: E402
from rl_queues import LEASE, a_queue, clients_of, item, outcome, work  # noqa: E402
from weightcast.rl import tasks  # noqa: E402
from weightcast.rl.models import ByteTokenizer  # noqa: E402
from weightcast.rl.options import Options  # noqa: E402
from weightcast.rl.report import Report, read_iterations  # noqa: E402
from weightcast.rl.rollout_client import EndOfRun  # noqa: E402
from weightcast.rl.sequence import Sequence  # noqa: E402
from weightcast.rl.trainer import TrainerLoop  # noqa: E402


def test_a_trainer_waits_for_its_share_as_long_as_trainer_0_evaluates():
    """Which may take --timeout before rollouts are waited for, with a --timeout of their own."""
    with a_queue() as queue, clients_of(queue) as connect:
        trainer, engine = connect("1", "trainer"), connect()

        def evaluate_and_then_generate() -> None:
            work(engine)
            work(engine)

        queue.offer([item(0, trainer=1), item(1, trainer=1)])
        late = threading.Timer(3 * LEASE, evaluate_and_then_generate)
        late.start()
        found = trainer.share(1, {})
        late.join()
    assert found == [outcome(item(0)), outcome(item(1))]


def test_rollouts_that_do_not_come_end_every_trainer_by_the_word_of_trainer_0():
    with a_queue() as queue, clients_of(queue) as connect:
        trainer = connect("1", "trainer")
        queue.offer([item(0), item(1, trainer=1)])
        with pytest.raises(wc.TimedOut, match="iteration 1 are not here") as why:
            queue.take(1, 0, LEASE)
        threading.Timer(LEASE, lambda: queue.end(str(why.value))).start()
        with pytest.raises(EndOfRun, match="iteration 1 are not here"):
            trainer.share(1, {})


class Engines:
    """A queue whose engines complete each item at once, with "12" and the end."""

    def __init__(self) -> None:
        self.items: list = []
        self.seen: list[int] = []  # The last iteration handed out when each was taken.

    def offer(self, items, first=False) -> None:
        self.items += items

    def announce(self, version: int) -> None:
        pass

    def take(self, iteration: int, trainer: int, timeout: float, check) -> list[list[Sequence]]:
        self.seen.append(max(one.iteration for one in self.items))
        tokens = [*b"12", ByteTokenizer.eos]
        return [
            [
                Sequence(prompt, tokens, [0.0] * 3, [0] * 3)
                for prompt in one.prompts
                for _ in range(one.samples)
            ]
            for one in self.items
            if (one.iteration, one.trainer) == (iteration, trainer)
        ]


def a_run(folder, reward: str | None = None, **options) -> Engines:
    """Of a loop whose weights go nowhere and never change."""
    engines = Engines()
    chosen = Options(num_training=1, num_inference=1, rollouts_per_gpu=3, **options)
    nothing = SimpleNamespace(
        publish=lambda version: None, wait=lambda timeout: [], wait_sources=lambda timeout: None, check=None
    )
    learner = SimpleNamespace(step=lambda iteration, sequences, rewards, **_: {"reward": sum(rewards)})
    with Report(folder) as report:
        TrainerLoop(
            options=chosen,
            rank=0,
            learner=learner,
            publisher=nothing,
            task=tasks.make("sort", digits=2, reward=reward),
            tokenizer=ByteTokenizer(),
            timeline=report.timeline,
            queue=engines,
            report=report,
            telemetry=SimpleNamespace(generation_seconds=lambda iteration: 0.0),
        ).run()
    return engines


@pytest.mark.parametrize(("staleness", "ahead"), [(0, 1), (1, 1), (3, 3)])
def test_engines_work_ahead_as_far_as_rollouts_may_be_stale(tmp_path, staleness, ahead):
    engines = a_run(tmp_path, mode="async", rl_iterations=6, max_staleness=staleness)
    assert engines.seen == [min(one + ahead, 6) for one in range(1, 7)]
    assert {(one.iteration, one.oldest) for one in engines.items} == {
        (one, max(0, one - 1 - staleness)) for one in range(1, 7)
    }


def test_in_sync_mode_nothing_is_generated_ahead(tmp_path):
    assert a_run(tmp_path, rl_iterations=4).seen == [1, 2, 3, 4]


def of_length(prompts, completions):
    return [float(len(one)) for one in completions]


@pytest.mark.parametrize(("reward", "metric"), [(None, None), (f"{__name__}:of_length", 2.0)])
def test_an_evaluation_is_by_the_task_or_by_the_user_s_reward(tmp_path, capsys, reward, metric):
    a_run(tmp_path, reward, rl_iterations=2, eval_every=2)
    first, last = read_iterations(tmp_path)
    assert first.evaluation is None and "eval_reward" not in first.metrics
    assert last.metrics.get("eval_reward") == metric
    assert (last.accuracy is None) == (metric is not None)
    printed = capsys.readouterr().out
    assert "before training: " in printed and " held-out prompts" in printed
    assert ("mean reward 2.0000 of" in printed) == (metric is not None)


def test_samples_are_kept_of_each_iteration(tmp_path, capsys):
    a_run(tmp_path, rl_iterations=2, samples_per_prompt=2, log_samples=4)
    rows = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1] * 4 + [2] * 4
    assert len({row["prompt"] for row in rows[:3]}) == 3 and rows[3]["prompt"] == rows[0]["prompt"]
    assert {row["completion"] for row in rows} == {"12"}
    assert all(0 <= row["reward"] <= 1 for row in rows)
    assert f"a sample of iteration 1: {rows[0]['prompt']!r} -> '12'" in capsys.readouterr().out
    a_run(tmp_path / "without", rl_iterations=1, log_samples=0)
    assert (tmp_path / "without" / "samples.jsonl").read_text() == ""
