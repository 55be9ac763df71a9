"""weightcast's frames, as a reader understands them that knows nothing but docs/."""

import json
import os
import subprocess
import unittest

import reader
from harness import JobTest, main, wait_until

os.environ["WEIGHTCAST_TOKEN"] = "the-token-of-this-test"
SAMPLES = os.environ["WC_WIRE_SAMPLES"]
BINARY = os.environ["WC_TEST_BINARY"]


def made(what: str) -> str:
    return subprocess.run([SAMPLES, what], capture_output=True, text=True, timeout=60, check=True).stdout


def in_json(value: object) -> object:
    """As the samples say it: bytes as text of code points up to 255."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {name: in_json(member) for name, member in value.items()}
    return [in_json(each) for each in value] if isinstance(value, list) else value


class Samples(unittest.TestCase):
    def test_the_page_is_what_the_messages_consist_of(self) -> None:
        page = (reader.DOCS / "messages.md").read_text()
        self.assertEqual(page, made("page"), "write it again: wire_samples page > docs/messages.md")

    def test_every_message_is_understood_member_by_member(self) -> None:
        senders = {name: sender for (sender, _), name in reader.DOCUMENTS.kinds.items()}
        seen = set()
        for line in made("samples").splitlines():
            sample = json.loads(line)
            name = sample["name"]
            # Heartbeat has a kind in each direction; the first byte tells which.
            stream = bytes.fromhex(sample["frames"])
            [(number, acknowledged, session, encoded)] = reader.messages(stream)
            self.assertEqual((acknowledged, session), (number + 1, 2**64 - 1 - number))
            sender = "worker" if name == "Heartbeat" and encoded[0] < 0x40 else senders[name]
            decoded, members = reader.decode(sender, encoded)
            self.assertEqual((decoded, number), (name, sample["number"]))
            self.assertEqual(in_json(members), sample["members"], name)
            if sample["brief"]:
                brief = sample["brief"].encode("latin-1").decode(errors="surrogateescape")
                self.assertEqual(reader.brief(name, members), brief, name)
            seen.add((sender, name))
        self.assertEqual(seen, {(sender, name) for (sender, _), name in reader.DOCUMENTS.kinds.items()})

    def test_bytes_that_are_not_allowed_are_noticed(self) -> None:
        cut = 0
        for line in made("samples").splitlines()[:-1]:  # The last one is large.
            stream = bytes.fromhex(json.loads(line)["frames"])
            [(_, _, _, encoded)] = reader.messages(stream)
            for sender in ("worker", "controller", "observer"):
                if (sender, encoded[0]) not in reader.DOCUMENTS.kinds:
                    continue
                for size in range(1, len(encoded)):
                    with self.assertRaises(reader.WireError):
                        reader.decode(sender, encoded[:size])
                    cut += 1
                with self.assertRaises(reader.WireError):
                    reader.decode(sender, encoded + b"\0")
        self.assertGreater(cut, 1000)


class Traces(JobTest):
    def traced(self, address: str, token: str, *more: str) -> subprocess.CompletedProcess:
        words = [BINARY, "info", "--controller", address, "--trace", *more]
        env = {**os.environ, "WEIGHTCAST_TOKEN": token}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=env)

    def role_token(self, role: str) -> str:
        words = [BINARY, "token", "--role", role]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    def test_an_observer_sees_an_update_and_nothing_that_opens_memory(self) -> None:
        with self.job() as job:
            job.start_all()
            observer = self.role_token("observer")
            told = lambda: self.traced(job.address, observer, "--json")  # noqa: E731
            wait_until(lambda: '"Done"' in told().stdout, "the end of the update")
            messages = [json.loads(line) for line in told().stdout.splitlines()]
            self.check_order(messages)
            known = {(sender, name) for (sender, _), name in reader.DOCUMENTS.kinds.items()}
            for message in messages:
                self.assertIn((message["from"], message["name"]), known)
                for random in ("incarnation", "origin", "shard:", "id:", "grant:", "WCRD"):
                    self.assertNotIn(random, message["fields"], message)
            text = self.traced(job.address, observer).stdout
            published = r"trainer 0  received  #\d+  [\d,]+ B  Published\{number: 1, run: {number: 1}"
            self.assertRegex(text, published)
            refused = self.traced(job.address, self.role_token("peer"))
            self.assertIn("has no key for 'observe'", refused.stderr)

    def check_order(self, messages: list[dict]) -> None:
        """Of the engine's rank, in the order of docs/protocol.md; each direction counts without a gap."""
        of_rank = [one for one in messages if one["worker"] == "engine a rank 0"]
        for sender in ("worker", "controller"):
            numbers = [one["number"] for one in of_rank if one["from"] == sender and one["number"]]
            self.assertEqual(numbers, list(range(1, len(numbers) + 1)), of_rank)
        names = [one["name"] for one in of_rank]
        joining = ["Hello", "Welcome", "Register", "LandingMap", "Plan", "Prepared"]
        update = ["GrantRequest", "Granted", "Ready", "Commit", "Committed", "Serve", "Serving"]
        places = [names.index(name) for name in joining + update]
        self.assertEqual(places, sorted(places), names)
        self.assertNotIn("Heartbeat", names)
        request = next(one for one in of_rank if one["name"] == "GrantRequest")
        self.assertRegex(request["fields"], r"^\{update: update 1.\d+ \(term \d+, epoch \d+\), version: 1}$")

    def test_what_follows_is_shown_with_watch(self) -> None:
        with self.job() as job:
            job.start_all()
            watch = job.start("watch", "info", "--controller", job.address, "--trace", "--watch", "--json")
            while json.loads(watch.line())["name"] != "Done":
                pass
            job.publish()
            while json.loads(watch.line())["name"] != "Done":
                pass


if __name__ == "__main__":
    main()
