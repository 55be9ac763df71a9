"""A job whose processes have role tokens, and what each token does not open."""

import os
import subprocess

from harness import JobTest, main

os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"
BINARY = os.environ["WC_TEST_BINARY"]


def command(*arguments: object, token: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "WEIGHTCAST_TOKEN": token}
    words = [BINARY, *map(str, arguments)]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)


def role_token(*arguments: str) -> str:
    made = command("token", "--role", *arguments, token=os.environ["WEIGHTCAST_TOKEN"])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


class RoleTokens(JobTest):
    def test_a_job_runs_with_the_token_of_each_role(self) -> None:
        with self.job() as job:
            job.start_controller()
            job.start_trainer(env={"WEIGHTCAST_TOKEN": role_token("trainer")})
            job.start_engine(env={"WEIGHTCAST_TOKEN": role_token("inference", "--engine", "a")})
            job.start_engine("b", env={"WEIGHTCAST_TOKEN": role_token("inference")})
            job.start_engine("c")  # With the master token, beside the others.
            job.publish()
            shown = command("info", "--controller", job.address, token=role_token("observer"))
            self.assertIn("default", shown.stdout, shown.stderr)

    def test_what_a_token_does_not_open(self) -> None:
        with self.job() as job:
            job.start_controller()
            of_a = {"WEIGHTCAST_TOKEN": role_token("inference", "--engine", "a")}
            for refused in (job.start_engine("b", env=of_a), job.start_trainer(env=of_a)):
                self.assertNotEqual(refused.process.wait(20), 0)
                self.assertIn("the token in WEIGHTCAST_TOKEN is for inference/a", refused.errors())
            watch = command("info", "--controller", job.address, token=role_token("peer"))
            self.assertIn("has no key for 'observe'", watch.stderr)
            other = command("controller", "--listen", "127.0.0.1:0", token=role_token("trainer"))
            self.assertIn("needs the job's master token", other.stderr)
            for weak in ("short", "0123456789abcdef0123456789abcde", "a" * 64):
                self.assertIn("too weak", command("token", "--role", "peer", token=weak).stderr)


if __name__ == "__main__":
    main()
