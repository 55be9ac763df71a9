#!/usr/bin/env python3
"""Writes the generated blocks of docs/api.md; with --check says what is not current, and ends with 1.

A block stands between `<!-- endpoint.h -->`, or `<!-- weightcast: Trainer Update -->`, and `<!-- end -->`.
Every public header and every public name of the Python package has its place in one block.
"""

import argparse
import difflib
import pathlib
import re
import sys
from collections.abc import Iterable

from api_headers import Unreadable, declarations
from api_python import Package

_BLOCK = re.compile(r"<!-- ([\w.]+)(?:: ([\w ]+))? -->\n(.*?)<!-- end -->", re.DOTALL)
_UMBRELLA = "weightcast.h"


class Sources:
    """What the page is made from, and how often each was asked for."""

    def __init__(self, root: pathlib.Path) -> None:
        self._headers = {path.name: path for path in sorted((root / "include" / "weightcast").glob("*.h"))}
        self._package = Package(root)
        self._missing = [name for name in self._headers if name != _UMBRELLA]
        self._missing += [f"{module}.{name}" for module, name in self._names(self._package.modules())]

    def _names(self, modules: Iterable[str]) -> Iterable[tuple[str, str]]:
        return ((module, name) for module in modules for name in self._package.names(module))

    def block(self, match: re.Match[str]) -> str:
        source, names = match[1], (match[2] or "").split()
        if source.endswith(".h"):
            self._tick(source)
            language, text = "cpp", declarations(self._headers[source])
        else:
            names = names or self._package.names(source)
            for name in names:
                self._tick(f"{source}.{name}")
            language, text = "python", self._package.describe(source, names)
        return f"{match[0].splitlines()[0]}\n```{language}\n{text}\n```\n<!-- end -->"

    def _tick(self, name: str) -> None:
        if name not in self._missing:
            raise Unreadable(f"docs/api.md: {name} is not public, or has two blocks")
        self._missing.remove(name)

    def check_all_asked_for(self) -> None:
        if self._missing:
            raise Unreadable(f"docs/api.md has no block for {', '.join(self._missing)}")
        included = re.findall(r'#include "weightcast/(\w+\.h)"', self._headers[_UMBRELLA].read_text())
        if forgotten := self._headers.keys() - {_UMBRELLA, *included}:
            raise Unreadable(f"{_UMBRELLA} does not include {', '.join(sorted(forgotten))}")


def page_from(root: pathlib.Path, current: str) -> str:
    sources = Sources(root)
    page = _BLOCK.sub(sources.block, current)
    sources.check_all_asked_for()
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    options = parser.parse_args()
    path = options.root / "docs" / "api.md"
    current = path.read_text()
    try:
        page = page_from(options.root, current)
    except Unreadable as error:
        print(error, file=sys.stderr)
        return 1
    if not options.check:
        path.write_text(page)
    elif page != current:
        lines = current.splitlines(keepends=True), page.splitlines(keepends=True)
        sys.stderr.writelines(difflib.unified_diff(*lines, "docs/api.md", "docs/api.md as it should be"))
        print("docs/api.md is not current: run scripts/api_page.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
