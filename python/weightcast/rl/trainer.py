"""A trainer's loop: rollouts in, weights out."""

from __future__ import annotations

import collections
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import Error
from .engine import digest_of
from .generation import item_seed
from .learner import Learner
from .models import Tokenizer
from .options import Options
from .publisher import Changes, Publisher
from .report import Iteration, Report, Sample, Transfer
from .rollout_client import RolloutClient
from .rollout_protocol import Item
from .rollout_queue import RolloutQueue
from .sequence import Sequence
from .sharding import in_dtype, whole_tensors
from .tasks import Task
from .telemetry import Telemetry
from .timeline import Timeline

_log = logging.getLogger("weightcast.rl")
_ANY = 1 << 60  # No version is newer.


@dataclass
class TrainerLoop:
    """Runs `options.rl_iterations` iterations, from `first` on.

    queue, report, telemetry: trainer 0's, None elsewhere. client: the others'. save: called with (iteration,
    version) when a checkpoint is due.
    """

    options: Options
    rank: int
    learner: Learner
    publisher: Publisher
    task: Task
    tokenizer: Tokenizer
    timeline: Timeline
    changes: Changes | None = None  # Of the policy; None: weights go nowhere.
    queue: RolloutQueue | None = None
    client: RolloutClient | None = None
    report: Report | None = None
    telemetry: Telemetry | None = None
    save: Callable[[int, int], None] | None = None
    first: int = 1

    def __post_init__(self) -> None:
        self._version = -1
        self._transfers: list[Transfer] = []
        self._metrics: dict[str, float] = {}  # Of these transfers.
        self._seconds: dict[str, float] = collections.defaultdict(float)  # Of an iteration so far, by kind.
        self._evaluation: float | None = None
        self._offered = self.first - 1  # The last iteration whose work is handed out.

    def run(self) -> None:
        options = self.options
        self._publish(self._version_before(self.first))
        self._settle()
        if self.first == 1 and options.eval_every:
            self._evaluate(0)
        self._offer_until(self.first)
        # Engines work ahead as far as their rollouts may be behind.
        ahead = max(1, options.max_staleness) if options.mode == "async" else 0
        end = self.timeline.clock.now()
        for iteration in range(self.first, options.rl_iterations + 1):
            self._offer_until(iteration + ahead)
            row = self._iterate(iteration)
            self._offer_until(iteration + 1)
            now = self.timeline.clock.now()
            self._report(iteration, row, now - end)
            end = now
        if self.client is not None:
            self.client.tell({"spans": self.timeline.take()})

    @contextlib.contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._seconds[kind] += time.monotonic() - start

    def _version_before(self, iteration: int) -> int:
        """The newest version that is published when this iteration begins."""
        done = iteration - 1
        return 0 if self.options.sync == "none" else done - done % self.options.sync_every

    def _iterate(self, iteration: int) -> dict[str, Any]:
        options = self.options
        self._seconds.clear()
        with self._timed("generation"), self.timeline.span("wait", iteration=iteration):
            sequences = self._rollouts(iteration)
        with self._timed("training"), self.timeline.span("train", iteration=iteration, version=iteration):
            metrics = self._learn(iteration, sequences)
        behind = [iteration - 1 - version for one in sequences for version in one.versions]
        staleness = sum(behind) / len(behind)
        due = iteration % options.sync_every == 0 and options.sync != "none"
        if due:
            self._publish(iteration)
        last = iteration == options.rl_iterations
        evaluate = options.eval_every and (iteration % options.eval_every == 0 or last)
        save = self.save is not None and (
            last or (options.checkpoint_every and iteration % options.checkpoint_every == 0)
        )
        if options.mode == "sync" or evaluate or save or last:
            self._settle()
        self._evaluation = self._evaluate(iteration) if evaluate else None
        if save:
            self._save(iteration, last)
        return {**metrics, "staleness": staleness, "spans": max(len(one.spans()) for one in sequences)}

    def _save(self, iteration: int, last: bool) -> None:
        """A checkpoint that cannot be written ends the run if it is the last: then nothing is kept of it."""
        assert self.save is not None
        try:
            self.save(iteration, self._version)
        except Error as error:
            if last:
                raise
            if self.rank == 0:
                _log.warning("%s; the run continues and tries again with the next checkpoint", error)

    # --- Rollouts

    def _rollouts(self, iteration: int) -> list[Sequence]:
        """This trainer's share of an iteration's rollouts, in the order of the prompts."""
        if self.queue is not None:
            share = self.queue.take(iteration, 0, self.options.timeout, self.publisher.check)
        else:
            assert self.client is not None
            share = self.client.share(iteration, {"spans": self.timeline.take()})
        return [one for item in share for one in item]

    def _offer_until(self, last: int) -> None:
        for iteration in range(self._offered + 1, min(last, self.options.rl_iterations) + 1):
            self._offer(iteration)
            self._offered = iteration

    def _offer(self, iteration: int) -> None:
        """Trainer 0 hands out the work of an iteration, every trainer's share."""
        if self.queue is None:
            return
        options, newest = self.options, self._version_before(iteration)
        oldest = newest
        if options.mode == "async":
            oldest = max(0, newest - options.max_staleness * options.sync_every)
            newest = _ANY
        batches = (
            (rank, prompts)
            for rank in range(options.num_training)
            for prompts in self._encoded(self._prompts(iteration, rank), options.prompts_of_item)
        )
        items = [
            Item(
                iteration=iteration,
                number=number,
                trainer=rank,
                prompts=prompts,
                samples=options.samples,
                seed=item_seed(options.seed, "rollout", iteration, number),
                oldest=oldest,
                newest=newest,
            )
            for number, (rank, prompts) in enumerate(batches)
        ]
        self.queue.offer(items)

    def _encoded(self, texts: list[str], size: int) -> Iterator[list[list[int]]]:
        """So many together."""
        tokens = [self.tokenizer.encode(text) for text in texts]
        return (tokens[begin : begin + size] for begin in range(0, len(tokens), size))

    def _prompts(self, iteration: int, rank: int) -> list[str]:
        """A trainer's share."""
        options = self.options
        texts = self.task.prompts(iteration, options.prompts_of_iteration, options.seed)
        return texts[options.share_of(rank)]

    def _learn(self, iteration: int, sequences: list[Sequence]) -> dict[str, float]:
        # Not decoded: a tokenizer need not give back the very text.
        prompts = [text for text in self._prompts(iteration, self.rank) for _ in range(self.options.samples)]
        completions = [self.tokenizer.decode(one.tokens) for one in sequences]
        rewards = self.task.rewards(prompts, completions)
        if self.report is not None:
            self._keep_samples(iteration, prompts, completions, rewards)

        def before_change() -> None:
            with self._timed("transfer"):
                self.publisher.wait_sources(self.options.timeout)

        return self.learner.step(
            iteration, sequences, rewards, samples=self.options.samples, before_change=before_change
        )

    def _keep_samples(
        self, iteration: int, prompts: list[str], completions: list[str], rewards: list[float]
    ) -> None:
        """Of different prompts first."""
        count, samples = self.options.log_samples, self.options.samples
        rows = [start + one for one in range(samples) for start in range(0, len(prompts), samples)]
        assert self.report is not None
        self.report.samples(
            [
                Sample(iteration, self._version, prompts[row], completions[row], rewards[row])
                for row in rows[:count]
            ]
        )

    # --- Weights

    def _publish(self, version: int) -> None:
        self._settle()
        self._version = version
        self._ours = self._digests() if self.options.verify else {}
        with self._timed("transfer"), self.timeline.span("publish", version=version):
            self._start = self.timeline.clock.now()
            if self.changes is not None:
                self._changed = self.changes.count()
            self.publisher.publish(version)
            if self.queue is not None:
                self.queue.announce(version)

    def _settle(self) -> None:
        """Waits until the last published version is committed, and checks it if asked to."""
        with self._timed("transfer"):
            transfers = self.publisher.wait(self.options.timeout)
        if not transfers:
            return
        if self.rank == 0:
            end = self._start + sum(one.seconds for one in transfers)
            self.timeline.add("transfer", self._start, end, version=self._version)
        if (changes := self.changes) is not None:
            counts = {"tensors_changed": self._changed, "tensors": changes.tensors}
            transfers = [replace(one, **counts) for one in transfers]
        self._transfers = transfers
        if self.telemetry is not None and self.queue is not None and self.options.verify:
            engines = self.queue.engines
            compared = self.telemetry.compare(self._version, self._ours, engines, self.options.timeout)
            self._metrics["engines_verified"] = compared

    def _digests(self) -> dict[str, str]:
        """Of the gathered parameters, as they are before the publication."""
        found = whole_tensors(self.learner.policy)
        if self.rank != 0:
            return {}
        wire: torch.dtype = getattr(torch, self.options.engine_dtype)  # What engines hold.
        return {name: digest_of(in_dtype(one, wire)) for name, one in found.items()}

    # --- Evaluation and report

    def _evaluate(self, iteration: int) -> float | None:
        """The task's judgement of held-out prompts, greedy, by the engines; trainer 0's, None elsewhere."""
        queue, task = self.queue, self.task
        if queue is None:
            return None
        prompts = task.held_out(self.options.eval_prompts)
        size = -(-len(prompts) // self.options.num_inference)
        mark = -1 - iteration  # Evaluations are counted below the iterations.
        batches = enumerate(self._encoded(prompts, size))
        items = [
            Item(mark, number, 0, one, 1, 0, self._version, _ANY, greedy=True) for number, one in batches
        ]
        queue.offer(items, first=True)
        results = queue.take(mark, 0, self.options.timeout, self.publisher.check)
        found = [one for item in results for one in item]
        scores = task.judge(prompts, [self.tokenizer.decode(one.tokens) for one in found])
        mean = sum(scores) / len(scores)
        if self.report is not None and iteration == 0:
            said = f"{mean:.1%} of {len(scores)} held-out prompts right"
            if task.judged_by == "reward":
                said = f"mean reward {mean:.4f} of {len(scores)} held-out prompts"
            self.report.message(f"before training: {said}")
        return mean

    def _report(self, iteration: int, metrics: dict[str, Any], total: float) -> None:
        report, telemetry = self.report, self.telemetry
        if report is None or telemetry is None:
            return
        seconds = self._seconds
        generated = telemetry.generation_seconds(iteration)
        by_accuracy = self.task.judged_by == "accuracy"
        if self._evaluation is not None and not by_accuracy:
            metrics["eval_reward"] = self._evaluation
        named = {
            name: metrics.pop(name, None)
            for name in ("reward", "kl", "staleness", "train_rollout_logprob_abs_diff")
        }
        report.iteration(
            Iteration(
                iteration=iteration,
                version=self._version,
                training_s=seconds["training"],
                generation_s=generated if self.options.mode == "async" else seconds["generation"],
                transfer_s=seconds["transfer"],
                total_s=total,
                accuracy=self._evaluation if by_accuracy else None,
                transfers=tuple(self._transfers),
                metrics=metrics | self._metrics,
                **named,
            )
        )
        self._transfers, self._metrics = [], {}
