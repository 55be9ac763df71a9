"""Tasks: prompts, and what a completion is worth.

A prompt is for training or for evaluation, never for both: a hash of its text decides.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import itertools
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import InvalidArgument

HELD_OUT = 500
RewardFunction = Callable[..., Sequence[float]]


class Task(ABC):
    """Texts are without special tokens; a completion reaches to its end of sequence or to its last token.

    users_reward: takes the place of `reward`, and judges evaluations.
    """

    held_out_share = 0.1
    users_reward: UsersReward | None = None

    @property
    def judged_by(self) -> str:
        """What `judge` gives."""
        return "accuracy" if self.users_reward is None else "reward"

    @abstractmethod
    def prompts(self, iteration: int, count: int, seed: int) -> list[str]:
        """The training prompts of an iteration, from 1; the same for the same arguments."""

    @abstractmethod
    def held_out(self, count: int = HELD_OUT) -> list[str]:
        """Distinct prompts that `prompts` never returns, always the same."""

    def rewards(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """The reward of each pair."""
        if self.users_reward is not None:
            return self.users_reward(prompts, completions, self.columns(prompts))
        return [self.reward(*pair) for pair in zip(prompts, completions, strict=True)]

    def judge(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        """What an evaluation is the mean of: 1 for each pair that solves the task, else 0; or the user's."""
        if self.users_reward is not None:
            return self.rewards(prompts, completions)
        return [float(self.correct(*pair)) for pair in zip(prompts, completions, strict=True)]

    def columns(self, prompts: Sequence[str]) -> dict[str, list[Any]]:
        """What else is known of each prompt, by name."""
        return {}

    @abstractmethod
    def reward(self, prompt: str, completion: str) -> float:
        """What the learner maximises, without a reward of the user's."""

    @abstractmethod
    def correct(self, prompt: str, completion: str) -> bool:
        """Whether the completion solves the task."""

    @abstractmethod
    def longest(self, length: Callable[[str], int]) -> int:
        """Tokens that a prompt has at most. length: those of a text."""

    def _is_held_out(self, prompt: str) -> bool:
        digest = hashlib.blake2b(prompt.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.held_out_share * 2**64


class Drawn(Task):
    """A task that makes its prompts up."""

    def prompts(self, iteration: int, count: int, seed: int) -> list[str]:
        draws = self._draws(random.Random(f"{seed}/prompts/{iteration}"))
        return list(itertools.islice((one for one in draws if not self._is_held_out(one)), count))

    def held_out(self, count: int = HELD_OUT) -> list[str]:
        draws = self._draws(random.Random("held out"))
        distinct = dict.fromkeys(
            one for one in itertools.islice(draws, 100 * count) if self._is_held_out(one)
        )
        return list(distinct)[:count]

    @abstractmethod
    def _draw(self, source: random.Random) -> str:
        """A prompt at random."""

    def _draws(self, source: random.Random) -> Iterator[str]:
        while True:
            yield self._draw(source)


class Sort(Drawn):
    """Sort digits: "3142=" wants "1234" and then the end of sequence.

    A right answer is worth 1, any other half the share of its characters that are in their place.
    """

    held_out_share = 0.2

    def __init__(self, digits: int = 4) -> None:
        self._digits = digits

    def reward(self, prompt: str, completion: str) -> float:
        answer = self._answer(prompt)
        if completion == answer:
            return 1.0
        right = sum(wanted == got for wanted, got in zip(answer, completion, strict=False))
        return 0.5 * right / max(len(answer), len(completion))

    def correct(self, prompt: str, completion: str) -> bool:
        return completion == self._answer(prompt)

    def longest(self, length: Callable[[str], int]) -> int:
        return self._digits + 1  # No token is less than a character.

    def _draw(self, source: random.Random) -> str:
        return "".join(source.sample("0123456789", self._digits)) + "="

    @staticmethod
    def _answer(prompt: str) -> str:
        return "".join(sorted(prompt.removesuffix("=")))


class Text(Drawn):
    """Write about something: worth the number of words, 16 at most, times the share that is distinct."""

    held_out_share = 0.25
    _WORDS = 16
    _MANNERS = ("short", "long", "true", "sad", "funny", "quiet", "strange", "simple", "old", "new", "plain")
    _FORMS = (
        *("story", "letter", "poem", "report", "speech", "song", "note", "joke", "diary", "sermon"),
        "review",
    )
    _SUBJECTS = (
        *("winter", "rivers", "bread", "music", "trains", "gardens", "ships", "clouds", "friends", "maps"),
        *("machines", "birds", "stones", "markets", "schools", "lanterns", "mountains", "clocks", "bridges"),
        *("harbours", "forests", "letters", "windows", "holidays", "doctors", "kitchens", "islands", "roads"),
    )
    _PROMPT, _WORDINGS = "A {} {} about {}:", (_MANNERS, _FORMS, _SUBJECTS)

    def reward(self, prompt: str, completion: str) -> float:
        words = [word for word in completion.lower().split() if word.isalpha()]
        if not words:
            return 0.0
        return min(len(words), self._WORDS) / self._WORDS * len(set(words)) / len(words)

    def correct(self, prompt: str, completion: str) -> bool:
        return self.reward(prompt, completion) >= 0.8

    def longest(self, length: Callable[[str], int]) -> int:
        return max(length(self._PROMPT.format(*one)) for one in itertools.product(*self._WORDINGS))

    def _draw(self, source: random.Random) -> str:
        return self._PROMPT.format(*map(source.choice, self._WORDINGS))


class FromFile(Task):
    """Prompts of a file of JSON lines, {"prompt": text, "answer": text, …}; the answer may be missing.

    Each epoch has every training prompt once, in an order of its own. Without a reward function a completion
    is worth 1 if it is the answer, else 0.
    """

    def __init__(self, path: str | Path) -> None:
        self._rows = _read(Path(path))
        self._training = [prompt for prompt in self._rows if not self._is_held_out(prompt)]
        if not 0 < len(self._training) < len(self._rows):
            found = f"{path} has {len(self._rows)} distinct prompts, too few to hold some out for evaluation"
            raise InvalidArgument(f"{found}; give some dozens or more")
        self._order = functools.lru_cache(maxsize=2)(self._shuffled)

    def prompts(self, iteration: int, count: int, seed: int) -> list[str]:
        first = (iteration - 1) * count
        places = (divmod(number, len(self._training)) for number in range(first, first + count))
        return [self._order(epoch, seed)[place] for epoch, place in places]

    def _shuffled(self, epoch: int, seed: int) -> list[str]:
        """An epoch's prompts."""
        order = list(self._training)
        random.Random(f"{seed}/epoch/{epoch}").shuffle(order)
        return order

    def held_out(self, count: int = HELD_OUT) -> list[str]:
        return [prompt for prompt in self._rows if self._is_held_out(prompt)][:count]

    def columns(self, prompts: Sequence[str]) -> dict[str, list[Any]]:
        """None where a line lacks one."""
        names = dict.fromkeys(name for row in self._rows.values() for name in row)
        return {name: [self._rows[prompt].get(name) for prompt in prompts] for name in names}

    def reward(self, prompt: str, completion: str) -> float:
        return float(self.correct(prompt, completion))

    def correct(self, prompt: str, completion: str) -> bool:
        answer = self._rows[prompt].get("answer")
        return answer is not None and completion.strip() == answer.strip()

    @property
    def unanswered(self) -> list[str]:
        """The prompts without an answer."""
        return [prompt for prompt, row in self._rows.items() if row.get("answer") is None]

    def longest(self, length: Callable[[str], int]) -> int:
        return max(map(length, self._rows))


class UsersReward:
    """A reward function of the user's.

    It is called with lists of prompts and completions, and by name with those columns of the prompts' lines
    that it has parameters for; with all of them if it takes any keyword.
    """

    def __init__(self, function: RewardFunction, name: str, columns: Iterable[str]) -> None:
        self._function, self._name = function, name
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []  # Of C: nothing is known of it.
        more = [one for one in parameters[2:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._wanted = set(columns) if takes_all else {one.name for one in more}
        missing = sorted({one.name for one in more if one.default is one.empty} - set(columns))
        if missing:
            raise InvalidArgument(
                f"the reward {name} has a parameter '{missing[0]}', which no line of --prompts has; "
                "give that parameter a default, or add this key to the lines"
            )

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, list[Any]]
    ) -> list[float]:
        wanted = {name: column for name, column in columns.items() if name in self._wanted}
        try:
            found = [float(one) for one in self._function(list(prompts), list(completions), **wanted)]
        except Exception as error:  # The user's code: anything may come.
            raise InvalidArgument(
                f"the reward {self._name} failed: {type(error).__name__}: {error}; correct it"
            ) from error
        if len(found) != len(prompts):
            raise InvalidArgument(
                f"the reward {self._name} returned {len(found)} numbers for {len(prompts)} completions; "
                "return one for each"
            )
        if bad := [place for place, one in enumerate(found) if not math.isfinite(one)]:
            raise InvalidArgument(
                f"the reward {self._name} gave completion {bad[0]} {found[bad[0]]}; return finite numbers"
            )
        return found


def make(
    name: str = "sort", *, digits: int = 4, prompts: str | None = None, reward: str | None = None
) -> Task:
    """The task of the options.

    name: "sort" or "text". prompts: a file of JSON lines that stands for the task's own prompts.
    reward: "module:function"; see `UsersReward`.
    """
    task: Task
    if prompts is not None:
        task = FromFile(prompts)
        if reward is None and (without := task.unanswered):
            raise InvalidArgument(
                f"{prompts}: {without[0][:40]!r} has no answer; add answers, or give --reward module:function"
            )
    else:
        task = Sort(digits) if name == "sort" else Text()
    if reward is not None:
        task.users_reward = UsersReward(_imported(reward), reward, task.columns([]))
    return task


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Prompt to the other columns of its line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--prompts {path} cannot be read: {error}; name a UTF-8 text file") from error
    rows: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            row = _row_of(line, f"{path}:{number}")
            rows[row.pop("prompt")] = row
    return rows


def _row_of(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where} is not JSON: {error}; correct that line") from error
    if not isinstance(found, dict) or not isinstance(found.get("prompt"), str) or not found["prompt"]:
        raise InvalidArgument(f'{where} has no text "prompt"; write {{"prompt": text, "answer": text}} there')
    if not isinstance(found.get("answer"), str | None):
        raise InvalidArgument(f"{where} has an answer that is not a text; correct that line")
    return found


def _imported(reward: str) -> RewardFunction:
    module, _, function = reward.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # Importing runs the user's code.
        raise InvalidArgument(
            f"--reward {reward} cannot be loaded ({type(error).__name__}: {error}); give "
            "module:function of a module on PYTHONPATH, and correct what it raises"
        ) from error
    if not callable(found):
        raise InvalidArgument(f"--reward {reward} is not a function; give module:function")
    return found
