"""GPT-2 on several hosts: DistributedDataParallel over gloo, a loss table, and what the network carries.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python train.py   # on the host 10.0.0.1
RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python train.py   # on the other host

README.md has the steps, and how to read the table.
"""

import argparse
import hashlib
import os
import pathlib
import sys
import time
from typing import Any, NoReturn

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # Errors come as one line, not with a C++ stack trace.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from checkpoint import Checkpoints, newest_common  # noqa: E402
from failure import Failure, lost_ranks  # noqa: E402
from job import check_equal, gather, join, together
from model import GPT2, MODELS, parameter_count  # noqa: E402
from place import Place  # noqa: E402
from table import Table  # noqa: E402
from text import Batches, digest, read  # noqa: E402
from traffic import Interface  # noqa: E402

SHIPPED = pathlib.Path(__file__).parent / "alice.txt"


class Run:
    """One rank: its replica, its share of each batch, its checkpoints."""

    def __init__(self, options: argparse.Namespace, place: Place, interface: Interface) -> None:
        self.options, self.place = options, place
        data = together(lambda: read(options.dataset))
        shape = MODELS[options.model]
        self.settings: dict[str, Any] = {
            "--model": options.model,
            "--dataset": f"of SHA-256 {digest(data)[:16]}",
            "--batch": options.batch,
            "--sequence": options.sequence,
            "--learning-rate": options.learning_rate,
            "--seed": options.seed,
            "WORLD_SIZE": place.world_size,
        }
        check_equal({**self.settings, "--steps": options.steps, "--save-every": options.save_every})
        split = {"rank": place.rank, "world_size": place.world_size, "seed": options.seed}
        self.batches = together(
            lambda: Batches(data, sequence=options.sequence, batch=options.batch, **split)
        )
        self.checkpoints = Checkpoints(options.checkpoint, place.rank)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(options.seed)
        self.model = GPT2(shape)
        self.replica = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.learning_rate)
        self.table = Table(interface, place, sum(one.nbytes for one in self.model.parameters()))
        self.step = self.saved = 0

    def train(self) -> None:
        self._warm_up()
        self._resume()
        self._say(self._headline())
        self.table.head()
        while self.step < self.options.steps:
            goes_on = f"; the run goes on after step {self.saved}" if self.saved else ""
            with lost_ranks(f"in step {self.step + 1}", goes_on):
                self._one_step()
            if self.step % self.options.save_every == 0 or self.step == self.options.steps:
                # They may have saved it, or not.
                with lost_ranks(f"while step {self.step} was saved", "; the run goes on from a checkpoint"):
                    together(self._save)
        self.table.summary()
        self._compare_replicas()

    def _one_step(self) -> None:
        inputs, targets = self.batches.next()
        began, before = time.monotonic(), self.table.counters()
        loss = self.replica(inputs, targets)
        loss.backward()
        mean = loss.detach()
        # Its end says, besides, that every rank has all gradients of this step.
        dist.all_reduce(mean)
        carried = self.table.counters() - before
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.table.row(self.step, mean.item() / self.place.world_size, time.monotonic() - began, carried)

    def _warm_up(self) -> None:
        """Its gradients are thrown away.

        DDP puts gradients into buckets in the order in which the first backward pass makes them. With more
        than two ranks the order of additions depends on it, and it has to be the same after a resumption.
        """
        inputs, targets = self.batches.next()
        self.replica(inputs, targets).backward()
        self.optimizer.zero_grad()
        self.batches.go_to({"epoch": 0, "window": 0})
        torch.manual_seed(self.options.seed + 1 + self.place.rank)  # Dropout differs from rank to rank.

    def _resume(self) -> None:
        have = gather(self.checkpoints.steps())
        step = newest_common(have, self.checkpoints.folder)
        if step == 0:
            return
        state = together(lambda: self.checkpoints.load(step, self.settings))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.batches.go_to(state["position"])
        torch.set_rng_state(state["random"])
        self.step = self.saved = step
        if step >= self.options.steps:
            raise Failure(f"the run has made its {step} steps: give more --steps, or another --checkpoint")

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": self.batches.position(),
            "random": torch.get_rng_state(),
        }
        self.checkpoints.save(self.step, self.settings, state)
        self.saved = self.step

    def _compare_replicas(self) -> None:
        hashed = hashlib.sha256()
        for one in self.model.parameters():
            hashed.update(one.detach().numpy())
        digests = gather(hashed.hexdigest())
        if len(set(digests)) > 1:
            raise Failure(f"the replicas have diverged ({digests}): compare torch's version on the hosts")
        self._say(f"weights: sha256 {digests[0][:16]}, equal on {self.place.world_size} ranks")

    def _headline(self) -> str:
        where = f"resumed after step {self.step}" if self.step else "new run"
        return (
            f"{self.options.model}: {parameter_count(self.model):,} parameters, {self.place.world_size}"
            f" ranks over {self.table.interface.name}, {torch.get_num_threads()} threads, {where}"
        )

    def _say(self, line: str) -> None:
        if self.place.local_rank == 0:
            print(line, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", choices=MODELS, default="gpt2", help="simple: 0.5 M parameters, for a check"
    )
    parser.add_argument("--dataset", type=pathlib.Path, default=SHIPPED, metavar="FILE", help="any text")
    parser.add_argument("--steps", type=_positive, default=100, help="of the whole run (default 100)")
    parser.add_argument(
        "--batch", type=_positive, default=4, help="sequences of each rank in a step (default 4)"
    )
    parser.add_argument("--sequence", type=_positive, default=128, help="bytes of a sequence (default 128)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=pathlib.Path, metavar="FOLDER", help="default: checkpoint-MODEL")
    parser.add_argument("--save-every", type=_positive, default=20, metavar="STEPS", help="default 20")
    parser.add_argument(
        "--timeout", type=_positive, default=300, help="seconds to wait for other ranks (default 300)"
    )
    options = parser.parse_args()
    if options.sequence > MODELS[options.model].context:
        parser.error(
            f"--sequence must be at most {MODELS[options.model].context} with --model {options.model}"
        )
    if options.checkpoint is None:
        options.checkpoint = pathlib.Path(f"checkpoint-{options.model}")
    return options


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def main() -> None:
    options = parse()
    rank = os.environ.get("RANK", "?")
    try:
        place = Place.from_environment(os.environ)
        interface = Interface(place.master, os.environ.get("GLOO_SOCKET_IFNAME"))
        join(place, interface, options.timeout)
        with lost_ranks("before the first step or after the last"):
            Run(options, place, interface).train()
        _end("", 0)
    except Failure as failure:
        _end(f"rank {rank}: {failure}", 1)
    except KeyboardInterrupt:
        _end(f"rank {rank}: interrupted; started again, all ranks go on from their last checkpoint", 130)


def _end(line: str, code: int) -> NoReturn:
    """Without torch's destructors: they wait for ranks that are gone, and abort where a thread still runs."""
    sys.stdout.flush()
    if line:
        print(line, file=sys.stderr, flush=True)
    os._exit(code)


if __name__ == "__main__":
    main()
