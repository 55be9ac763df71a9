"""Reads C++ headers: their tokens, and their public declarations as compact lines.

It knows the C++ of include/weightcast, which clang-format keeps regular, and fails on anything else.
"""

import itertools
import pathlib
import re
import textwrap
from typing import NamedTuple

WIDTH = 110

_TOKEN = re.compile(
    r"""
    (?P<directive>^[ \t]*\#(?:\\\n|[^\n])*) |
    (?P<comment>//[^\n]*|/\*.*?\*/) |
    (?P<string>"(?:[^"\\\n]|\\.)*") |
    (?P<char>'(?:[^'\\\n]|\\.)*') |
    (?P<number>\d[\w.']*) |
    (?P<name>[A-Za-z_]\w*) |
    (?P<sign>::|->|<=>|\[\[|\]\]|&&|\|\||[=!<]=|<<|\+\+|--|[-+*/%&|^~!=<>?:;,.(){}\[\]]) |
    (?P<space>\s+)
    """,
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)
_NO_MEMBERS = {"class", "concept", "enum", "extern", "namespace", "requires", "struct", "union"}
_CLOSES = {"(": ")", "[": "]", "{": "}", "[[": "]]"}


class Unreadable(Exception):
    """Something that these scripts do not understand, and so must not leave out."""


class Token(NamedTuple):
    kind: str
    text: str
    spaced: bool  # Something separates it from the token before.
    line: int


def tokens_of(text: str, path: pathlib.Path) -> list[Token]:
    """All but comments and spaces."""
    found: list[Token] = []
    place, spaced, line = 0, False, 1
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise Unreadable(f"{path}:{line}: cannot read {text[place : place + 20]!r}")
        kind, piece = match.lastgroup or "", match.group()
        if kind in ("space", "comment"):
            spaced = True
        else:
            found.append(Token(kind, piece, spaced, line))
            spaced = False
        line += piece.count("\n")
        place = match.end()
    return found


def comments_of(text: str) -> list[str]:
    return [match.group() for match in _TOKEN.finditer(text) if match.lastgroup == "comment"]


class Nesting:
    """Whether a token is at the top of a declaration, outside all brackets, those of templates too."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._before = ""

    @property
    def at_top(self) -> bool:
        return not self._open

    def take(self, token: Token) -> None:
        text, inner = token.text, self._open[-1] if self._open else ""
        if text in _CLOSES:
            self._open.append(_CLOSES[text])
        elif text == "<" and inner in ("", ">") and re.fullmatch(r"(?!operator\b)\w+", self._before):
            self._open.append(">")
        elif text == inner:
            self._open.pop()
        elif text in _CLOSES.values():
            raise Unreadable(f"line {token.line}: a {text} that closes nothing")
        self._before = text


def text_of(tokens: list[Token]) -> str:
    """On one line, as it was spaced, without [[nodiscard]]."""
    text = "".join(" " * token.spaced + token.text for token in tokens).strip()
    text = text.replace("[[nodiscard]] ", "")
    return re.sub(r"([(\[]|(?<=\w)<) ", r"\1", text)


def wrapped(text: str, indent: int) -> list[str]:
    """Broken after commas alone."""
    lines = textwrap.wrap(
        re.sub("(?<!,) ", "\0", text),
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


class Header:
    """`lines`: the public declarations. `macros`: name -> (parameters, body)."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.macros: dict[str, tuple[str, str]] = {}
        text = path.read_text()
        self._tokens = tokens_of(text, path)
        self._next = 0
        self._classes = set(re.findall(r"\b(?:class|struct) (?:\[\[\w+\]\] )?(\w+)[^;{]*\{", text))
        try:
            self.lines = self._scope(indent=0, public=True)
            if self._next < len(self._tokens):
                raise Unreadable("a } too many")
        except Unreadable as error:
            line = self._tokens[min(self._next, len(self._tokens) - 1)].line
            raise Unreadable(f"{path}:{line}: {error}") from None
        self.lines += [
            f"#define {name}{taken[0]}" for name, taken in self.macros.items() if not self._helps(name)
        ]

    def _helps(self, name: str) -> bool:
        """A macro that others of its header are made of."""
        return any(re.search(rf"\b{name}\b", body) for _, body in self.macros.values())

    def _peek(self, ahead: int = 0) -> str:
        place = self._next + ahead
        return self._tokens[place].text if place < len(self._tokens) else ""

    def _at_directive(self) -> bool:
        return self._next < len(self._tokens) and self._tokens[self._next].kind == "directive"

    def _take(self, expected: str = "") -> Token:
        if self._next == len(self._tokens):
            raise Unreadable("ends in the middle of a declaration")
        token = self._tokens[self._next]
        if expected and token.text != expected:
            raise Unreadable(f"{token.text!r} where {expected!r} should be")
        self._next += 1
        return token

    def _scope(self, indent: int, public: bool) -> list[str]:
        """To the } that ends it, or to the end of the file."""
        lines: list[str] = []
        while self._peek() not in ("", "}"):
            if self._at_directive():
                self._directive(self._take().text)
            elif self._peek() in ("public", "private") and self._peek(1) == ":":
                public = self._take().text != "private"
                self._take()
            else:
                declared = self._declaration(indent)
                lines += declared if public else []
        return lines

    def _directive(self, text: str) -> None:
        if match := re.match(r"\s*#define (\w+)(\([^)]*\))?(.*)", text, re.DOTALL):
            self.macros[match[1]] = (match[2] or "", match[3])
        elif match := re.match(r"\s*#undef (\w+)", text):
            del self.macros[match[1]]
        elif not re.match(r"\s*#(pragma once|include )", text):
            raise Unreadable(f"cannot read {text!r}")

    def _declaration(self, indent: int) -> list[str]:
        first = self._peek()
        if re.fullmatch("[A-Z][A-Z0-9_]+", first) and self._peek(1) == "(":
            return self._table(indent)
        head = self._head()
        plain = self._without_template(head)
        kind, body = plain[0].text, self._peek() == "{"
        is_function = any(token.text == "(" for token in self._top(plain))
        if kind == "namespace" and body:
            return self._namespace(head, indent)
        if kind in ("class", "struct") and not is_function:
            return self._class(head, indent, kind == "struct") if body else self._forward(head, indent)
        if kind in ("enum", "union") and body:
            text = text_of([*head, *self._braced()])
            self._take(";")
            return wrapped(re.sub(r",? }$", " }", text) + ";", indent)
        return self._member(head, plain, indent)

    def _head(self) -> list[Token]:
        """To the first { or ; outside of brackets."""
        nesting, head = Nesting(), []
        while not (nesting.at_top and self._peek() in ("{", ";")):
            if self._at_directive():
                raise Unreadable("a directive inside a declaration")
            head.append(self._take())
            nesting.take(head[-1])
        if not head:
            raise Unreadable(f"a declaration cannot begin with {self._peek()!r}")
        return head

    def _braced(self) -> list[Token]:
        nesting, taken = Nesting(), [self._take("{")]
        nesting.take(taken[0])
        while not nesting.at_top:
            taken.append(self._take())
            nesting.take(taken[-1])
        return taken

    @staticmethod
    def _top(tokens: list[Token]) -> list[Token]:
        """Those outside of brackets; of these the brackets that open."""
        nesting, top = Nesting(), []
        for token in tokens:
            if nesting.at_top:
                top.append(token)
            nesting.take(token)
        return top

    @staticmethod
    def _without_template(head: list[Token]) -> list[Token]:
        if head[0].text != "template":
            return head
        nesting = Nesting()
        for place, token in enumerate(head):
            nesting.take(token)
            if place > 1 and nesting.at_top:
                return head[place + 1 :]
        raise Unreadable("a template of nothing")

    def _namespace(self, head: list[Token], indent: int) -> list[str]:
        self._take("{")
        lines = self._scope(indent, public=True)
        self._take("}")
        if head[-1].text == "weightcast":
            return lines
        return [f"{text_of(head)} {{", *lines, "}"]

    def _forward(self, head: list[Token], indent: int) -> list[str]:
        self._take(";")
        return [] if indent == 0 and head[-1].text in self._classes else wrapped(text_of(head) + ";", indent)

    def _class(self, head: list[Token], indent: int, public: bool) -> list[str]:
        self._take("{")
        lines = self._scope(indent + 2, public)
        self._take("}")
        self._take(";")
        if not lines:
            return wrapped(text_of(head) + " {};", indent)
        return ["", *wrapped(text_of(head) + " {", indent), *lines, " " * indent + "};", ""]

    def _member(self, head: list[Token], plain: list[Token], indent: int) -> list[str]:
        """A function, a variable, an alias: all that may have a body or a value in braces."""
        top = re.sub(r"operator[^\w\s(]+", "operator", text_of(self._top(plain)))
        if "(" in top.partition("=")[0]:
            if self._peek() == ";":
                self._take()
            else:
                head = self._without_body(head)
            return [] if self._is_defined_outside(plain) else wrapped(text_of(head) + ";", indent)
        if head[0].text != "friend" and not _NO_MEMBERS.isdisjoint(token.text for token in head):
            raise Unreadable(f"cannot read {text_of(head)!r}")
        while self._peek() != ";":
            head += self._braced() if self._peek() == "{" else [self._take()]
        self._take(";")
        return wrapped(text_of(head) + ";", indent)

    def _without_body(self, head: list[Token]) -> list[Token]:
        """Takes initializers and body."""
        top = self._top(head)
        colon = next((token for token in top if token.text == ":"), None)
        if colon is not None:
            while self._tokens[self._next - 1].kind == "name":  # member_{value}, ...
                self._braced()
                if self._peek() == ",":
                    self._head()
            head = list(itertools.takewhile(lambda token: token is not colon, head))
        self._braced()
        if self._peek() == ";":
            self._take()
        return head

    def _is_defined_outside(self, plain: list[Token]) -> bool:
        """The body of a member that its class has declared."""
        texts = [token.text for token in self._top(plain)]
        name = texts.index("(") - 1
        if name < 1 or texts[name - 1] != "::":
            return False
        if not self._classes.intersection(texts[:name]):
            raise Unreadable(f"defines {texts[name]}, which is not declared here")
        return True

    def _table(self, indent: int) -> list[str]:
        """TABLE(X), where X makes a member of each row: grouped by type."""
        name = self._take().text
        self._take("(")
        row = self._take().text
        self._take(")")
        if name not in self.macros or row not in self.macros or self._peek() == ";":
            raise Unreadable(f"cannot read the macro {name}")
        table, (parameters, body) = self.macros[name][1], self.macros[row]
        rows = re.findall(r"\bX\(\s*(\w+)\s*,\s*(\w+)\s*,", table)
        if len(rows) != len(re.findall(r"\bX\(", table)) or body.strip() != "type name{};":
            raise Unreadable(f"cannot read the rows of {name}{parameters}")
        lines: list[str] = []
        for kind, group in itertools.groupby(rows, key=lambda one: one[0]):
            lines += wrapped(f"{kind} {', '.join(name + '{}' for _, name in group)};", indent)
        return lines


def declarations(path: pathlib.Path) -> str:
    """What a program that includes it may use; bodies, private members and comments are left out."""
    text = "\n".join(Header(path).lines)
    text = re.sub(r"{\n\n+", "{\n", text)
    return re.sub(r"\n\n+(?=\n| *})", "\n", text).strip("\n")
