"""A checkpoint that is changed in place, although it should be replaced by rename."""

import contextlib
import os
import pathlib
import threading

from harness import Job, JobTest, main, wait_until

LARGE = {f"layer.{i}.weight": ("BF16", [2048, 2048]) for i in range(2)}


class CheckpointChanged(JobTest):
    def file_of(self, job: Job, version: int) -> str:
        return str(job.checkpoints / f"step-{version}" / "model.safetensors")

    def log_of_trainer(self, job: Job) -> str:
        return job.processes["trainer-0"].errors()

    def wait_open(self, job: Job, version: int) -> None:
        """Until the trainer has opened the file."""
        descriptors = pathlib.Path(f"/proc/{job.processes['trainer-0'].process.pid}/fd")
        path = self.file_of(job, version)

        def opened() -> bool:
            with contextlib.suppress(FileNotFoundError):
                return any(os.readlink(one) == path for one in descriptors.iterdir())
            return False

        wait_until(opened, "the trainer opens the file")

    def check_said(self, job: Job, version: int) -> None:
        """The trainer names the file and what to do, and goes on."""
        path = self.file_of(job, version)
        wait_until(lambda: path in self.log_of_trainer(job), "the trainer names the file")
        wait_until(lambda: "withdrawn" in self.log_of_trainer(job), "the version is withdrawn")
        self.assertIn("rename it into place", self.log_of_trainer(job))

    def check_outputs(self, job: Job) -> None:
        """Whatever was written of one version is the same everywhere."""
        for version in range(1, job.version + 1):
            found = [
                path.read_bytes()
                for name in (str(version), f"*:{version}")
                for path in job.output.glob(f"*/{name}/model.safetensors")
            ]
            self.assertLessEqual(len(set(found)), 1, f"version {version} differs between engines")

    def test_cut_short_between_updates(self) -> None:
        """An engine that joins gets the version from another engine, or nothing; the trainer goes on."""
        with self.job() as job:
            job.start_all()
            os.truncate(self.file_of(job, 1), 1000)
            job.start_engine("late")
            self.check_said(job, 1)
            job.publish()
            job.check_alive()
            self.check_outputs(job)

    def test_cut_short_before_the_only_engine_comes(self) -> None:
        """Nobody else has the bytes: the trainer itself is asked for them."""
        with self.job() as job:
            job.start_controller()
            job.start_trainer()
            job.write()
            self.wait_open(job, 1)
            os.truncate(self.file_of(job, 1), 1000)
            job.start_engine()
            job.write()
            job.wait_served(2)
            job.check_alive()

    def test_cut_short_during_updates(self) -> None:
        """At random moments of many updates; each next version arrives whole."""
        with self.job(weights=LARGE) as job:
            job.start_all(engines=2)
            for round_ in range(4):
                version = job.write()
                path = self.file_of(job, version)
                cut = threading.Timer(0.03 * round_, lambda p=path: os.truncate(p, 10_000_000))
                cut.start()
                cut.join()
                wait_until(
                    lambda v=version, p=path: p in self.log_of_trainer(job)
                    or all(job._written(e, v) for e in job.engines),
                    "the update ends or fails",
                )
                job.publish()
                job.check_alive()
            self.check_outputs(job)

    def test_one_byte_rewritten_before_a_late_joiner(self) -> None:
        """All engines hold the same bytes of a version, or do not hold it."""
        with self.job() as job:
            job.start_all()
            wrong = self.file_of(job, 1)
            published = (job.output / "a" / "1" / "model.safetensors").read_bytes()
            with open(wrong, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(bytes([published[-1] ^ 0xFF]))
            # Nobody but the trainer has the version when the next engine comes.
            job.processes.pop("engine-a-0").kill()
            job.engines.clear()
            job.start_engine("late")
            self.check_said(job, 1)
            job.publish()
            job.check_alive()
            for path in job.output.glob("*/*/model.safetensors"):
                if path.parent.name.split(":")[-1] == "1":
                    self.assertEqual(path.read_bytes(), published, path)

    def test_a_private_copy_does_not_mind(self) -> None:
        with self.job() as job:
            job.start_controller()
            job.start_trainer(0, "--private-copy")
            job.start_engine("a")
            job.publish()
            published = (job.output / "a" / "1" / "model.safetensors").read_bytes()
            os.truncate(self.file_of(job, 1), 1000)
            job.processes.pop("engine-a-0").kill()
            job.engines.clear()
            job.start_engine("late")
            wait_until(lambda: job._written("late", 1), "the late engine gets version 1 from the copy")
            self.assertEqual(job._written("late", 1).read_bytes(), published)
            job.check_alive()


if __name__ == "__main__":
    main()
