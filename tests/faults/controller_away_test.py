"""A controller that goes away, for longer than every time limit, and comes back."""

import os
import random
import resource
import socket
import time

from harness import JobTest, main, wait_until

LIMIT = 1.0
SETTINGS = ["--lease=0.5", f"--controller-timeout={LIMIT}", f"--join-timeout={LIMIT}", "--connect-timeout=5"]
SETTINGS += ["--timeout=20", "--commit-timeout=10"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Silence:
    """Something that listens at a port and never says a word of this protocol."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._listener = socket.create_server((host, int(port)))

    def __enter__(self) -> "Silence":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def limit_descriptors(pid: int, free: int | None) -> None:
    """So many can be opened, about; None: as many as the hard limit allows."""
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    soft = hard if free is None else max(3, len(os.listdir(f"/proc/{pid}/fd")) + free)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


class ControllerAway(JobTest):
    def outlast(self, job, seconds: float = 3 * LIMIT) -> None:
        """Longer than any limit: all that is left must live on, and say little."""
        job.processes.pop("controller", None)
        before = job.lines()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            job.check_alive()
            time.sleep(0.05)
        # That it is away, and little else.
        self.assertLessEqual(job.lines() - before, 3 * len(job.processes), job.logs())

    def check_all_follow(self, landing: str) -> None:
        with self.job(settings=SETTINGS) as job:
            job.start_all(engines=2, landing=landing)
            job.processes["controller"].kill()
            self.outlast(job)
            written_meanwhile = job.write()
            job.start_controller("--min-engines", 2)
            job.wait_served(written_meanwhile)
            job.publish()
            job.check_alive()

    def test_engines_that_land_in_place_follow_the_next_one(self) -> None:
        self.check_all_follow("in_place")

    def test_engines_with_a_spare_buffer_follow_the_next_one(self) -> None:
        self.check_all_follow("shadow")

    def test_with_hardly_a_free_descriptor(self) -> None:
        """Each attempt to connect needs some, in several places."""
        chance = random.Random(3)
        with self.job(settings=SETTINGS) as job:
            job.start_all(engines=2)
            for _ in range(3):
                job.processes.pop("controller").kill()
                pids = [one.process.pid for one in job.processes.values()]
                end = time.monotonic() + 4
                while time.monotonic() < end:
                    for pid in pids:
                        limit_descriptors(pid, chance.choice([-1000, -2, -1, 0, 1, 2, None]))
                    job.check_alive()
                    time.sleep(chance.uniform(0, 0.05))
                for pid in pids:
                    limit_descriptors(pid, None)
                job.start_controller("--min-engines", 2)
                job.publish()
                job.check_alive()

    def test_killed_in_the_middle_of_updates(self) -> None:
        chance = random.Random(17)
        for landing in ("in_place", "shadow"):
            with self.job(settings=SETTINGS) as job:
                job.start_all(engines=2, landing=landing)
                for _ in range(3):
                    job.write()
                    time.sleep(chance.uniform(0, 0.4))  # A moment of the update.
                    job.processes["controller"].kill()
                    self.outlast(job, 1.5 * LIMIT)
                    job.start_controller("--min-engines", 2)
                    job.publish()
                    job.check_alive()

    def test_workers_may_be_started_long_before_it(self) -> None:
        with self.job(settings=SETTINGS) as job:
            job.address = f"127.0.0.1:{free_port()}"
            job.start_trainer()
            job.start_engine()
            for name, one in job.processes.items():
                wait_until(
                    lambda one=one: "no connection to the controller" in one.errors(), f"a word of {name}"
                )
            self.outlast(job)
            job.start_controller()
            job.publish()

    def test_something_else_has_its_port_for_a_while(self) -> None:
        with self.job(settings=SETTINGS) as job:
            job.start_all()
            job.processes["controller"].kill()
            with Silence(job.address):
                self.outlast(job)
            job.start_controller()
            job.publish()

    def test_they_end_at_once_when_asked_to(self) -> None:
        with self.job(settings=SETTINGS) as job:
            job.start_all()
            job.processes["controller"].kill()
            self.outlast(job)
            early = job.start_engine("early")
            wait_until(
                lambda: "no connection to the controller" in early.errors(), "a word of the early engine"
            )
            for name, one in job.processes.items():
                begin = time.monotonic()
                ended = one.stop()
                self.assertEqual(ended.returncode, 0, f"{name}: {ended.stderr}")
                self.assertLess(time.monotonic() - begin, 2, name)


if __name__ == "__main__":
    main()
