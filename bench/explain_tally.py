"""Counts what `weightcast explain` says of updates that were planted, and of those left alone."""

import collections
import sys

USUAL = 12  # Updates before the first that is planted.
BETWEEN = 3  # And between two.
ANY_TRAINER = "any trainer"  # What is planted is the whole job's.
Plant = tuple[str, str, int]  # Cause, who is planted on, milliseconds or another size.


def worker_named(name: str) -> str:
    """As a verdict names it."""
    return {"controller": ""}.get(name, f"{name} rank 0" if name.startswith("engine") else name)


class Tally:
    def __init__(self) -> None:
        self.matrix: collections.Counter[tuple[str, str]] = collections.Counter()
        self.runs = self.right = self.quiet = self.alarms = 0

    def planted(self, plants: list[Plant], update: dict) -> None:
        cause, who, size = max(plants, key=lambda plant: plant[2])
        verdict = update["verdict"]
        said = verdict["cause"] if verdict["slow"] else "not slow"
        named = verdict["victim"] if cause == "link" else verdict["worker"]
        expected = named.startswith("trainer ") if who == ANY_TRAINER else named == worker_named(who)
        right = said == cause and expected
        self.runs += 1
        self.right += right
        self.matrix[cause, said if right or said != cause else f"{said}, other victim"] += 1
        if not right:
            print(f"planted {plants}: {verdict['text']}", file=sys.stderr)

    def left_alone(self, update: dict) -> None:
        self.quiet += 1
        if update["verdict"]["slow"]:
            self.alarms += 1
            print(f"false alarm: {update['verdict']['text']}", file=sys.stderr)

    def text(self) -> str:
        rows = []
        if self.matrix:
            said = sorted({column for _, column in self.matrix})
            rows = [f"| planted | {' | '.join(said)} |", "|---" * (len(said) + 1) + "|"]
            for cause in sorted({row for row, _ in self.matrix}):
                counts = " | ".join(str(self.matrix[cause, column]) for column in said)
                rows.append(f"| {cause} | {counts} |")
        return "\n".join(
            [
                *rows,
                "",
                f"{self.right} of {self.runs} planted updates were named with cause and victim;"
                f" {self.alarms} of {self.quiet} updates that were left alone were called slow.",
            ]
        )
