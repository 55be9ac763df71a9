"""A limit of processes at which threads cannot be made."""

import os
import random
import shutil
import tempfile
import unittest

from harness import JobTest, main


@unittest.skipUnless(os.geteuid() == 0, "needs root, to be a user who runs nothing else")
class NoThreads(JobTest):
    def setUp(self) -> None:
        user = random.randrange(300000, 400000)
        self.home = tempfile.mkdtemp(prefix="wc-home-")
        os.chown(self.home, user, user)
        self.addCleanup(shutil.rmtree, self.home)
        self.user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        os.environ["WEIGHTCAST_TOKEN"] = "a-secret-of-no-threads-test"
        self.addCleanup(os.environ.pop, "WEIGHTCAST_TOKEN")

    def test_every_command_says_in_one_line_why_it_cannot_begin(self) -> None:
        with self.job() as job:
            os.chmod(job.folder, 0o755)
            os.chmod(job.checkpoints, 0o755)
            job.start_all()
            other = ["controller", "--listen", "127.0.0.1:0"]
            trainer = ["trainer", "--controller", job.address, "--rank", 0, "--world-size", 1]
            trainer += ["--checkpoint", job.checkpoints, "--watch"]
            for limit in (1, 2, 5, 8, 12, 16):
                options = {"prefix": [*self.user, "prlimit", f"--nproc={limit}"], "env": {"HOME": self.home}}
                begin = {
                    "controller": lambda o=options: job.start("other", *other, **o),
                    "trainer": lambda o=options: job.start("other", *trainer, **o),
                    "engine": lambda o=options: job.start_engine("b", 0, 1, **o),
                }
                if limit > 8:
                    del begin["controller"]  # It needs no more.
                for name, start in begin.items():
                    with self.subTest(name=name, limit=limit):
                        done = start().end(20)
                        self.assertGreater(done.returncode, 0, f"ended by a signal: {done.stderr}")
                        self.assertIn("ulimit -u", done.stderr)
                        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            for name in ("other", "engine-b-0"):
                job.processes.pop(name)
            job.engines.pop("b")
            job.publish()
            job.check_alive()


if __name__ == "__main__":
    main()
