#!/usr/bin/env python3
"""Checks that README.md, CONTRIBUTING.md, docs/**/*.md and the source are in plain words.

Target of every page: sentences of 15 words on average, none over 30, and none of the terms in FORBIDDEN.
Comments and strings of the source have none of these terms either.
Pages that miss the target are listed in scripts/prose_allowed.json with what they may have today. No number
there may rise. `scripts/check_prose.py --lower` writes today's lower numbers into that file; it never raises
one and never adds a page. `scripts/check_prose.py --show docs/page.md` prints what misses the target.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import re
import sys

MEAN, LONGEST = 15.0, 30
# A run of fewer words is a label ("**Containers.**"), not a sentence.
SHORTEST = 3

# What not to write -> what to write. Code, in ``` or in `, is not searched.
FORBIDDEN = {
    r"roads?": "path, or transport",
    r"doors?": "listener, or handshake",
    r"desks?|task servers?": "rollout queue",
    r"news": "state, or report",
    r"(?:re)?dial(?:s|ed|led|ing|ling|er|ers|ler|lers)?": "connect",
    r"farewells?": "graceful shutdown",
    r"goodbyes?": "leave message, or graceful shutdown",
    r"givers?": "peer source",
    r"lives": "runs, exists, is valid; generation (of a lane)",
    r"reigns?": "term",
    r"polite(?:ly)?": "graceful",
    r"mend(?:s|ed|ing)?": "fix, or repair",
    r"anew": "again, or new",
    r"as ever": "unchanged",
    r"passed over": "skipped",
    r"taken for dead": "declared dead",
    r"heard of": "received from",
    r"leave to be \w+": "permission",
    r"no whole number": "must be an integer in [a, b]",
    r"to be had": "available",
    r"gives? way": "yields",
    r"sees? to (?:it|that|what)": "ensures",
}
_FORBIDDEN = re.compile(r"\b(?:" + "|".join(FORBIDDEN).replace(" ", r"\s+") + r")\b", re.IGNORECASE)

# Their comments and strings are searched too, but for files where such words are data.
SOURCES = ("src", "include", "tools", "python", "bench", "scripts", "examples")
DATA = ("scripts/check_prose.py", "python/weightcast/rl/tasks.py")
_STRING = r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
_CPP = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^\s()\\"]*)\(.*?\)\1"' + _STRING, re.DOTALL)
_SCRIPT = re.compile(r"""#[^\n]*|("{3}|'{3}).*?\1""" + _STRING, re.DOTALL)
_TEXTS = {suffix: _CPP for suffix in (".h", ".cc", ".js")} | {
    suffix: _SCRIPT for suffix in (".py", ".sh", "")
}

_NOT_PROSE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|approx)\.", re.IGNORECASE)
# Behind the mark that ends a sentence: closing marks, a space, and what a sentence begins with.
_END = re.compile(
    r"""(?<=[.!?…])["')\]*_]*\s+(?=["'(\[*_]*(?:[A-Z0-9\x00]|(?:weightcast|gRPC|vLLM|verl|torch)\b))"""
    r"""|\s+·\s+"""
)
_WORD = re.compile(r"[^\W_]|\x00")
_MARK = "\x00"  # stands for a piece of code: one word


@dataclasses.dataclass(frozen=True)
class Counts:
    """mean: words a sentence, rounded up to a tenth. long: sentences over LONGEST. terms: forbidden ones."""

    mean: float = MEAN
    longest: int = LONGEST
    long: int = 0
    terms: int = 0

    def over(self, allowed: "Counts") -> list[str]:
        pairs = [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return [
            f"{name} {got}, allowed {getattr(allowed, name)}"
            for name, got in pairs
            if got > getattr(allowed, name)
        ]

    def at_most(self, other: "Counts") -> "Counts":
        return Counts(*map(min, dataclasses.astuple(self), dataclasses.astuple(other)))

    def at_least(self, other: "Counts") -> "Counts":
        return Counts(*map(max, dataclasses.astuple(self), dataclasses.astuple(other)))


TARGET = Counts()


def _lines(text: str) -> list[str]:
    """Without blocks of code and comments; code within a line is one _MARK, a link is its text."""
    text = _NOT_PROSE.sub("", text)
    return [_LINK.sub(r"\1", _CODE.sub(_MARK, line)) for line in text.splitlines()]


def _paragraphs(text: str) -> list[str]:
    """Of prose: no headings and no tables. Each item of a list is one."""
    paragraphs, last = [], ""
    for line in [*_lines(text), ""]:
        item = _ITEM.match(line)
        code = line.startswith("    ") and not item and not last
        prose = line.strip() and not code and not line.lstrip().startswith(("|", "#"))
        if (item or not prose) and last:
            paragraphs.append(last)
            last = ""
        if prose:
            last = f"{last} {line[item.end() :] if item else line.strip()}".strip()
    return paragraphs


def _cells(text: str) -> list[str]:
    rows = [line for line in _lines(text) if line.lstrip().startswith("|")]
    return [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]


def _split(paragraphs: list[str]) -> list[str]:
    found = [one for paragraph in paragraphs for one in _END.split(_ABBREVIATION.sub(r"\1", paragraph))]
    return [one for one in found if words(one) >= SHORTEST]


def sentences(text: str) -> list[str]:
    """Of prose: the mean is theirs."""
    return _split(_paragraphs(text))


def long_sentences(text: str) -> list[str]:
    """Of prose and of cells of tables."""
    return [one for one in _split(_paragraphs(text) + _cells(text)) if words(one) > LONGEST]


def words(sentence: str) -> int:
    return sum(bool(_WORD.search(word)) for word in sentence.split())


def terms(text: str) -> list[str]:
    """Forbidden ones, in tables and headings too."""
    return _FORBIDDEN.findall("\n".join(_lines(text)))


def advice(term: str) -> str:
    term = " ".join(term.split())
    use = next(use for pattern, use in FORBIDDEN.items() if re.fullmatch(pattern, term, re.IGNORECASE))
    return f"'{term}': write {use}"


def texts(root: pathlib.Path) -> dict[str, str]:
    """Comments and strings of each source file, without marks: a term may go over two lines."""
    found = {}
    for path in sorted(path for folder in SOURCES for path in (root / folder).rglob("*")):
        name, pattern = path.relative_to(root).as_posix(), _TEXTS.get(path.suffix)
        if path.name == "CMakeLists.txt":
            pattern = _SCRIPT
        if pattern and path.is_file() and name not in DATA:
            found[name] = "\n".join(one[0].strip("/*#<\"' \n") for one in pattern.finditer(path.read_text()))
    return found


def count(text: str) -> Counts:
    lengths = [words(one) for one in sentences(text)] or [0]
    mean = math.ceil(10 * sum(lengths) / len(lengths)) / 10
    long = [words(one) for one in long_sentences(text)]
    return Counts(mean, max(lengths + long), len(long), len(terms(text)))


def pages(root: pathlib.Path) -> dict[str, str]:
    paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def check(found: dict[str, Counts], allowed: dict[str, Counts]) -> list[str]:
    """A line for each page that has more than it may, and for each entry that is not needed any more."""
    wrong = []
    for name, counts in found.items():
        if over := counts.over(allowed.get(name, TARGET)):
            wrong.append(f"{name}: {'; '.join(over)} (scripts/check_prose.py --show {name})")
    for name in allowed:
        if name not in found or not found[name].over(TARGET):
            wrong.append(f"{name} needs no entry any more: run scripts/check_prose.py --lower")
    return wrong


def lowered(found: dict[str, Counts], allowed: dict[str, Counts]) -> dict[str, Counts]:
    lower = {
        name: one.at_most(found[name]).at_least(TARGET) for name, one in allowed.items() if name in found
    }
    return {name: one for name, one in lower.items() if found[name].over(TARGET)}


def read_allowed(path: pathlib.Path) -> dict[str, Counts]:
    return {name: Counts(**one) for name, one in json.loads(path.read_text()).items()}


def write_allowed(path: pathlib.Path, allowed: dict[str, Counts]) -> None:
    rows = [
        f"  {json.dumps(name)}: {json.dumps(dataclasses.asdict(one))}"
        for name, one in sorted(allowed.items())
    ]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n" if rows else "{}\n")


def show(text: str) -> None:
    print(*(f"{name}={value}" for name, value in dataclasses.asdict(count(text)).items()))
    for one in long_sentences(text):
        print(f"{words(one)} words: {one.replace(_MARK, '`…`')}")
    for term in terms(text):
        print(advice(term))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lower", action="store_true", help="lower the allowed numbers to today's")
    parser.add_argument(
        "--show", metavar="PAGE", type=pathlib.Path, help="what of one page misses the target"
    )
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    if options.show:
        show(options.show.read_text())
        return 0
    path = options.root / "scripts" / "prose_allowed.json"
    found = {name: count(text) for name, text in pages(options.root).items()}
    allowed = read_allowed(path)
    if options.lower:
        allowed = lowered(found, allowed)
        write_allowed(path, allowed)
    wrong = check(found, allowed)
    wrong += [f"{name}: {advice(term)}" for name, text in texts(options.root).items() for term in terms(text)]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"prose: ok, {len(allowed)} of {len(found)} pages to be shortened")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
