"""Reads the Python package without importing it: signatures, and the first sentence of each docstring.

Classes of the extension come from their nanobind declarations, which name members and arguments but no types.
"""

import ast
import dataclasses
import pathlib
import re
import textwrap

from api_headers import WIDTH, Nesting, Token, Unreadable, text_of, tokens_of, wrapped

_EXTENSION = "_weightcast"
_BINDS = {"def": "()", "def_static": "()", "def_ro": "", "def_prop_ro": ""}


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0]


def _with_doc(line: str, doc: str | None, indent: int) -> list[str]:
    """`doc` beside the line where there is room, else below."""
    sentence = _first_sentence(doc or "")
    lines = wrapped(line, indent)
    if not sentence:
        return lines
    if len(lines) == 1 and len(lines[0]) + len(sentence) + 4 <= WIDTH:
        return [f"{lines[0]}  # {sentence}"]
    mark = " " * (indent + 4) + "# "
    return lines + textwrap.wrap(sentence, WIDTH, initial_indent=mark, subsequent_indent=mark)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def _dunders(names: list[str]) -> list[str]:
    shown = [name for name in names if re.fullmatch("__(?!init|del)\\w+__", name)]
    return [f"    # also {', '.join(shown)}"] if shown else []


# --- The package's own classes and functions ---------------------------------------------------------


class Module:
    """One file of the package. `nodes`: what stands at its top, by name."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.nodes: dict[str, ast.stmt] = {}
        self.origins: dict[str, str] = {}  # Name -> the file of the package that it is imported from.
        for node in ast.parse(path.read_text()).body:
            self._add(node)

    def _add(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self.nodes[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.nodes[node.targets[0].id] = node
        elif isinstance(node, ast.ImportFrom) and node.level and node.module:
            self.origins.update({one.asname or one.name: node.module for one in node.names})

    def public(self) -> list[str]:
        """What `__all__` says, in the order of the file; for those who came by import in its own."""
        listed = self.nodes.get("__all__")
        if not isinstance(listed, ast.Assign):
            raise Unreadable(f"{self.path} has no __all__")
        names = ast.literal_eval(listed.value)
        names += ["__version__"] * ("__version__" in self.nodes)
        return sorted(names, key=lambda name: getattr(self.nodes.get(name), "lineno", 0))

    def describe(self, name: str) -> list[str]:
        node = self.nodes.get(name)
        if isinstance(node, ast.ClassDef):
            return self._class(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return _function(node, 0)
        if isinstance(node, ast.Assign):
            return [f"{name} = {ast.unparse(node.value)}"]
        raise Unreadable(f"{self.path}: finds no {name}")

    def _class(self, node: ast.ClassDef) -> list[str]:
        bases = [ast.unparse(base) for base in node.bases]
        shown = ", ".join(base for base in bases if _is_public(base))
        members = node.body + [one for base in bases if not _is_public(base) for one in self._base(base)]
        lines = _with_doc(f"class {node.name}{f'({shown})' if shown else ''}:", ast.get_docstring(node), 0)
        for member in members:
            lines += [line for line in _member(member) if line.partition(" =")[0] not in lines]
        names = [one.name for one in members if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return lines + _dunders(names)

    def _base(self, name: str) -> list[ast.stmt]:
        node = self.nodes.get(name)
        if not isinstance(node, ast.ClassDef):
            raise Unreadable(f"{self.path}: finds no class {name}")
        return node.body


def _member(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        shown = _is_public(node.name) and "core" not in [one.arg for one in node.args.args]
        lines = _function(node, 4) if shown else []  # What takes a `core` only the package makes.
        return lines + (_attributes(node) if node.name == "__init__" else [])
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return ["    " + _plain(ast.unparse(node))] if _is_public(node.target.id) else []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return ["    " + _plain(ast.unparse(node))] if _is_public(node.targets[0].id) else []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []  # A docstring.
    raise Unreadable(f"line {node.lineno}: cannot read {ast.unparse(node)[:60]!r}")


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """What __init__ sets for others to read."""
    found = [
        node.attr
        for node in ast.walk(init)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_public(node.attr)
    ]
    return [f"    {name}" for name in dict.fromkeys(found)]


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, indent: int) -> list[str]:
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    given = _plain(ast.unparse(node.returns)) if node.returns else ""
    doc = ast.get_docstring(node)
    if "property" in marks:
        return _with_doc(f"{node.name}: {given}", doc, indent)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    shown = "".join(f"@{mark} " for mark in marks if mark in ("classmethod", "staticmethod"))
    arguments = ", ".join(_parameters(node.args))
    arrow = f" -> {given}" if given and node.name != "__init__" else ""
    return _with_doc(f"{shown}{word} {node.name}({arguments}){arrow}", doc, indent)


def _parameters(given: ast.arguments) -> list[str]:
    if given.vararg or given.kwarg or given.posonlyargs:
        raise Unreadable(f"line {given.args[0].lineno}: cannot read ({ast.unparse(given)})")
    plain: list[ast.expr | None] = [*[None] * (len(given.args) - len(given.defaults)), *given.defaults]
    named = [
        _parameter(one, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    star = ["*"] if named else []
    return [
        *(_parameter(one, default) for one, default in zip(given.args, plain, strict=True)),
        *star,
        *named,
    ]


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_plain(ast.unparse(one.annotation))}" if one.annotation else ""
    equals = " = " if kind else "="
    return one.arg + kind + (equals + _plain(ast.unparse(default)) if default else "")


def _plain(annotation: str) -> str:
    return annotation.replace("_core.", "").replace("'", '"')


# --- The extension's ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Bound:
    """A class of the extension, a function of its module, or a C++ function that binds to a class."""

    name: str
    doc: str = ""
    base: str = ""  # The C++ type of it.
    members: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # "name(arguments)", docstring

    def lines(self, bases: dict[str, str]) -> list[str]:
        shown = f"({bases[self.base]})" if self.base else ""
        lines = _with_doc(f"class {self.name}{shown}:", self.doc, 0)
        for member, doc in self.members:
            if _is_public(member.partition("(")[0]):
                lines += _with_doc(f"def {member}" if "(" in member else member, doc, 4)
        return lines + _dunders([member.partition("(")[0] for member, _ in self.members])


class Bindings:
    """What python/bindings declares: `nb::class_` with its chain of `def`s, and `module.def`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.classes: dict[str, Bound] = {}
        self.functions: dict[str, tuple[str, str]] = {}
        self._python_names: dict[str, str] = {}
        for path in sorted(folder.glob("*.cc")):
            try:
                self._read(tokens_of(path.read_text(), path))
            except Unreadable as error:
                raise Unreadable(f"{path}: {error}") from None

    def describe(self, name: str) -> list[str]:
        if name in self.classes:
            return self.classes[name].lines(self._python_names)
        if name in self.functions:
            member, doc = self.functions[name]
            return _with_doc(f"def {member}", doc, 0)
        raise Unreadable(f"python/bindings: finds no {name}")

    def _read(self, tokens: list[Token]) -> None:
        variables: dict[str, Bound] = {}
        helpers: dict[str, Bound] = {}  # C++ functions that take a class and bind to it.
        texts = [token.text for token in tokens]
        for place, text in enumerate(texts):
            if texts[place : place + 4] == ["nb", "::", "class_", "<"]:
                self._class(tokens, place + 3, variables, helpers)
            elif text in variables and texts[place + 1] == "." and texts[place - 1] not in (".", "::"):
                self._chain(tokens, place + 1, variables[text])
            elif text in helpers and texts[place + 1] == "(" and texts[place + 2] in variables:
                variables[texts[place + 2]].members += helpers[text].members
            elif texts[place : place + 3] == ["module", ".", "def"]:
                member, doc = _defined(_arguments(tokens, place + 3)[0], "()", drop=0)
                self.functions[member.partition("(")[0]] = (member, doc)

    def _class(
        self, tokens: list[Token], place: int, variables: dict[str, Bound], helpers: dict[str, Bound]
    ) -> None:
        """From the < of nb::class_<T, Base> on."""
        types, place = _arguments(tokens, place)
        cpp = text_of(types[0])
        if tokens[place].text == "&":  # A parameter: `void BindSlice(nb::class_<Slice>& bound)`.
            before = tokens[: place + 1]
            opening = max(index for index, token in enumerate(before) if token.text == "nb") - 1
            function, variable = tokens[opening - 1].text, tokens[place + 1].text
            helpers[function] = variables[variable] = Bound(function)
            return
        variable = tokens[place].text if tokens[place].kind == "name" else ""
        given, after = _arguments(tokens, place + bool(variable))
        name = _literal(given[1])
        if not name:
            raise Unreadable(f"line {tokens[place].line}: a class without a name")
        base = text_of(types[1]) if len(types) > 1 else ""
        doc = "".join(_literal(one) for one in given[2:])
        bound = self.classes[name] = Bound(name, doc, base)
        self._python_names[cpp] = name
        if variable:
            variables[variable] = bound
        self._chain(tokens, after, bound)

    def _chain(self, tokens: list[Token], place: int, bound: Bound) -> None:
        """`.def(...).def_ro(...)`, to its end."""
        while tokens[place].text == ".":
            method = tokens[place + 1]
            if method.text not in _BINDS:
                raise Unreadable(f"line {method.line}: cannot read .{method.text}(...)")
            given, place = _arguments(tokens, place + 2)
            bound.members.append(_defined(given, _BINDS[method.text], drop=method.text == "def"))


def _arguments(tokens: list[Token], place: int) -> tuple[list[list[Token]], int]:
    """Those of the brackets that open at `place`, and what comes after."""
    opening = tokens[place]
    if opening.text not in ("(", "<"):
        raise Unreadable(f"line {opening.line}: {opening.text!r} where arguments should be")
    closes = {"(": ")", "<": ">"}[opening.text]
    nesting, found = Nesting(), [[]]
    while True:
        place += 1
        token = tokens[place]
        if nesting.at_top and token.text == closes:
            return [one for one in found if one], place + 1
        if nesting.at_top and token.text == ",":
            found.append([])
        else:
            found[-1].append(token)
        nesting.take(token)


def _literal(tokens: list[Token]) -> str:
    """The text of string literals, or nothing."""
    if any(token.kind != "string" for token in tokens):
        return ""
    return "".join(ast.literal_eval(token.text) for token in tokens)


def _defined(given: list[list[Token]], brackets: str, drop: int) -> tuple[str, str]:
    """A member as Python sees it, and its docstring. drop: arguments of a lambda that are no argument's."""
    name, rest = _literal(given[0]), given[1:]
    if text_of(given[0]).startswith("nb::init"):
        name, rest = "__init__", given
    if not name:
        raise Unreadable(f"line {given[0][0].line}: a member without a name")
    doc = "".join(_literal(one) for one in rest)
    if not brackets:
        return name, doc
    named = [_named(text_of(one)) for one in rest if text_of(one).startswith("nb::arg(")]
    return f"{name}({', '.join((['self'] if drop else []) + (named or _of_lambda(rest, drop)))})", doc


def _named(argument: str) -> str:
    """nb::arg("timeout") = nb::none() → timeout=None"""
    match = re.fullmatch(r'nb::arg\("(\w+)"\)(?:\.none\(\))?(?: = (.+))?', argument)
    if match is None:
        raise Unreadable(f"cannot read {argument}")
    return match[1] + (f"={match[2].replace('nb::none()', 'None')}" if match[2] else "")


def _of_lambda(rest: list[list[Token]], drop: int) -> list[str]:
    """The names of a lambda's parameters; of `&Function` nothing is known."""
    place = next((index for index, token in enumerate(rest[0]) if token.text == "]"), None) if rest else None
    if place is None or rest[0][0].text != "[" or rest[0][place + 1].text != "(":
        return []
    return [one[-1].text for one in _arguments(rest[0], place + 1)[0]][drop:]


# --- Together ----------------------------------------------------------------------------------------


class Package:
    """The public names of `weightcast` and of the modules beside it that have `__all__`."""

    def __init__(self, root: pathlib.Path) -> None:
        self._folder = root / "python" / "weightcast"
        self._bindings = Bindings(root / "python" / "bindings")

    def _module(self, name: str) -> Module:
        file = name.partition(".")[2] or "__init__"
        return Module(self._folder / f"{file}.py")

    def modules(self) -> list[str]:
        """Those that a program imports by name: they have `__all__`."""
        files = sorted(self._folder.glob("[!_]*.py"))
        return ["weightcast", *(f"weightcast.{one.stem}" for one in files if "__all__" in Module(one).nodes)]

    def names(self, module: str) -> list[str]:
        return self._module(module).public()

    def describe(self, module: str, names: list[str]) -> str:
        """Classes with members stand apart."""
        text, apart = "", False
        for name in names:
            lines = self._describe(module, name)
            large = lines[0].startswith("class ") and len(lines) > 2
            text += ("\n" if text and (large or apart) else "") + "\n".join(lines) + "\n"
            apart = large
        return text.strip("\n")

    def _describe(self, module: str, name: str) -> list[str]:
        read = self._module(module)
        origin = read.origins.get(name)
        if name == "__version__":
            return ["__version__: str"]
        if origin == _EXTENSION:
            return self._bindings.describe(name)
        return (Module(self._folder / f"{origin}.py") if origin else read).describe(name)
