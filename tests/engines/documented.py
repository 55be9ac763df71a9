"""The lines of docs/adapters.md, which tests run as they are written."""

from __future__ import annotations

import pathlib
import re
import shlex

_PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "adapters.md"


def block(section: str, language: str, number: int = 0) -> str:
    """A block of code in a section: the `number`th in `language`."""
    text = _PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[number]


def command(section: str, program: str, number: int = 0, **places: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the arguments of the line that runs `program`, with `places` filled in."""
    lines = block(section, "sh", number).replace("\\\n", " ").splitlines()
    [line] = [one for one in lines if re.search(rf"(^|\s){re.escape(program)}\s", one)]
    words = [places.get(word, word) for word in shlex.split(line, comments=True)]
    first = next(n for n, word in enumerate(words) if not re.fullmatch(r"[A-Z_]+=.*", word))
    return dict(word.split("=", 1) for word in words[:first]), words[first:]
