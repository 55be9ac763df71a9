"""Names in folders that all users share, taken by another user before their owner comes."""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import NOBODY, ROOT, JobTest, main

REGISTRY = """
import importlib.util, pathlib, sys
package = pathlib.Path(sys.argv[1])
sys.modules["weightcast"] = type(sys)("weightcast")
sys.modules["weightcast"].__path__ = [str(package)]
from weightcast import _p2p_registry as registry
first, second = registry.Announcement(b"first"), registry.Announcement(b"second")
print(sorted(registry.announced()), registry._folder())
"""


@contextlib.contextmanager
def squatted(path: str):
    """A folder of another user in the place of `path`."""
    os.mkdir(path)
    try:
        os.chmod(path, 0o777)
        os.chown(path, NOBODY, NOBODY)
        yield
    finally:
        shutil.rmtree(path)


@unittest.skipUnless(os.geteuid() == 0, "needs root, to be several users")
class Squat(JobTest):
    def setUp(self) -> None:
        self.user = random.randrange(200000, 300000)
        self.home = tempfile.mkdtemp(prefix="wc-home-")
        os.chmod(self.home, 0o700)
        os.chown(self.home, self.user, self.user)
        self.addCleanup(shutil.rmtree, self.home)
        self.prefix = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        self.env = {"HOME": self.home, "XDG_RUNTIME_DIR": "", "XDG_CACHE_HOME": "", "WEIGHTCAST_TOKEN": ""}

    def test_a_job_runs_although_its_token_folder_is_taken(self) -> None:
        with self.job() as job, squatted(f"/tmp/weightcast-{self.user}"):
            start = job.start
            job.start = lambda *a, **options: start(*a, **{**options, "prefix": self.prefix, "env": self.env})
            for folder in (job.folder, job.checkpoints):
                os.chmod(folder, 0o777)
            job.start_all()
            job.publish()
            job.check_alive()
            self.assertEqual(os.listdir(f"/tmp/weightcast-{self.user}"), [])
            token = pathlib.Path(self.home, ".cache", "weightcast", "token")
            self.assertEqual(token.stat().st_mode & 0o777, 0o600)
            self.assertEqual(token.parent.stat().st_mode & 0o777, 0o700)
            self.assertIn("belongs to user", job.processes["controller"].errors())

    def test_endpoints_find_each_other_although_their_folder_is_taken(self) -> None:
        with squatted(f"/dev/shm/weightcast-p2p-{self.user}"):
            found = self._announced()
            self.assertEqual(os.listdir(f"/dev/shm/weightcast-p2p-{self.user}"), [])
        self.assertIn("[b'first', b'second']", found)
        self.assertIn(f"{self.home}/.cache/weightcast/p2p-", found)

    def test_a_folder_of_endpoints_that_others_may_write_is_refused(self) -> None:
        path = pathlib.Path(f"/dev/shm/weightcast-p2p-{self.user}")
        path.mkdir()
        self.addCleanup(shutil.rmtree, path)
        path.chmod(0o777)
        os.chown(path, self.user, self.user)
        with self.assertRaises(subprocess.CalledProcessError) as failed:
            self._announced()
        self.assertIn("chmod go-rwx", failed.exception.stderr)

    def _announced(self) -> str:
        command = [*self.prefix, sys.executable, "-c", REGISTRY, str(ROOT / "python" / "weightcast")]
        env = {**os.environ, **self.env}
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout


if __name__ == "__main__":
    main()
