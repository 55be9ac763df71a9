#!/usr/bin/env python3
"""Checks the layers: who may include and import whom, no transport by another, no long files or classes.

Of the controller's machine: no rule sees the state of another (docs/architecture.md). Of the transports'
contract: each field is set on one side of it and read on the other.
"""

import ast
import pathlib
import re
import sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parent.parent

# folder -> folders whose headers, or headers which, it may include. An edge more needs a reason in
# docs/decisions.
ALLOWED = {
    "base": [],
    "kernels": [],
    "plan": ["base"],
    "digest": ["base", "kernels/digest_math.h", "plan"],
    "checkpoint": ["base", "plan/box.h", "plan/segments.h"],
    "memory": ["base"],
    "protocol": ["base"],
    "stream": ["base"],
    "trace": ["base/strings.h"],
    "http": ["base", "trace/metrics.h"],
    "drivers": ["base/strings.h"],
    "device": ["base", "memory/memory.h", "trace/metrics.h", "drivers/cuda/cuda.h", "kernels"],
    "topology": ["base", "drivers/ibverbs/ibverbs.h"],
    "doctor": ["base", "drivers/ibverbs/ibverbs.h", "device/inventory.h", "topology"],
    "counters": ["base", "drivers/nvml/nvml.h", "topology/files.h"],
    "transport": [
        "base",
        "memory/memory.h",
        "memory/populate.h",
        "trace/metrics.h",
        "drivers/ibverbs/ibverbs.h",
        "device",
        "topology",
    ],
    "endpoint/transfers": [
        "base",
        "memory",
        "trace/metrics.h",
        "transport/transport.h",
        "transport/types.h",
    ],
    "endpoint": [
        "endpoint/transfers",
        "base",
        "memory",
        "stream/shared_key.h",
        "trace/metrics.h",
        "device",
        "transport/transport.h",
        "transport/types.h",
    ],
    "peertest": [
        "base",
        "protocol/worker_messages.h",
        "stream",
        "http/page.h",
        "counters/reader.h",
        "doctor",
        "endpoint/message.h",
        "transport/verbs/device_probe.h",  # The one transport that is named outside of builtin.cc.
    ],
    "p2p": ["base", "memory/memory.h", "transport/types.h", "endpoint/message.h", "endpoint/user_memory.h"],
    "control": ["base", "plan", "protocol", "stream", "trace/metrics.h", "http"],
    "worker": [
        "base",
        "kernels",
        "plan",
        "digest/digest.h",
        "memory/memory.h",
        "protocol",
        "trace/metrics.h",
        "http/exporter.h",
        "device",
        "endpoint/transfers/chunks.h",  # How transfers fall into chunks; all else by include/weightcast.
        "control/absence.h",
        "control/client.h",
        "control/token.h",
    ],
}
# Contracts inside src that Python has too, beside the public headers (docs/decisions/009).
BOUND = {"control/token.h", "p2p/engine.h", "worker/registration.h"}
# Headers of vendors and libraries that would spread seconds of compilation: only in .cc files.
HEAVY = re.compile(r"<(spdlog|fmt|nlohmann(?!/json_fwd)|CLI|boost)/")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
MAX_LINES = 600
CONTROL = ROOT / "src" / "control"
# The rules of the controller's machine: NAME_rule.h and .cc, the slice of the state NAME_state.h, more files.
RULES: dict[str, list[str]] = {
    "membership": ["hello_check.h", "hello_check.cc"],
    "run": [],
    "plan": [],
    "publication": [],
    "command": [],
    "opening": [],
    "update": [],
    "engine": ["engine_state.cc"],
    "rank": ["rank_state.cc"],
    "deadline": [],
    "repair": [],
}
# Every slice: the machine that makes the rules, the view of its state, and the shell around it.
SEES_ALL = {
    "machine_state.h",
    "machine.h",
    "machine_view.cc",
    "controller_machine.h",
    "update_recorder.h",
}
# All that changes workers and groups in the roster, by name.
CHANGES = ["worker_change.h", "group_change.h"]
MAX_METHODS = 25
# They have the functions of a foreign interface.
MIRRORS = {"Ibverbs", "LoadedIbverbs"}
CLASS = re.compile(r"(?<!enum )\b(?:class|struct) ([\w:]+)(?: final)?(?:\s*:[^;{}()]*)?\s*\{")
METHOD = re.compile(r"\s*[\w:&*\s]*?[\w&*]\s+[&*]*(operator\s*(?:\(\)|[^\s\w(]+|[\w:]+)|\w+)\(")
# The structs that pass between transports and who uses them.
CONTRACT = ["types.h", "transport.h", "write_ranges.h"]
PACKAGE = ROOT / "python" / "weightcast"
# Modules that docs/api.md has as public, beside the names that `import weightcast` gives.
PUBLIC_MODULES = {"collective", "torch"}


def transport_of(path: pathlib.Path) -> str | None:
    """'tcp' for src/transport/tcp/..., None for the contract and for other folders."""
    parts = path.relative_to(ROOT / "src").parts
    return parts[1] if parts[0] == "transport" and len(parts) > 2 else None


def folder_of(file: str) -> str:
    """Of a path below src: the folder that ALLOWED speaks of."""
    parts = file.split("/")
    inner = "/".join(parts[:2])
    return inner if inner in ALLOWED else parts[0]


def check_include(path: pathlib.Path, folder: str, header: str) -> str | None:
    target = folder_of(header)
    if target == folder:
        mine = transport_of(path)
        theirs = header.split("/")[1] if folder == "transport" and header.count("/") > 1 else None
        if theirs is not None and mine != theirs and path.name != "builtin.cc":
            return f"includes {header}: only builtin.cc names transports"
        return None
    if target in ALLOWED and not {target, header} & set(ALLOWED[folder]):
        return f"includes {header}: {folder} may include only {', '.join(ALLOWED[folder]) or 'nothing'}"
    return None


def check_source(path: pathlib.Path) -> list[str]:
    folder = folder_of(path.relative_to(ROOT / "src").as_posix())
    if folder not in ALLOWED:
        return [f"folder {folder} has no line in ALLOWED (scripts/check_layers.py)"]
    text = path.read_text()
    problems = []
    for kind, header in INCLUDE.findall(text):
        if kind == '"' and (problem := check_include(path, folder, header)):
            problems.append(problem)
        if kind == '"' and "/" not in header:
            problems.append(f'includes "{header}": name its folder')
    if path.suffix == ".h" and HEAVY.search(text):
        problems.append("a heavy header (spdlog, fmt, nlohmann, CLI11, Boost) in a header")
    return problems


def unused_edges() -> list[str]:
    problems = []
    used: dict[str, set[str]] = {folder: set() for folder in ALLOWED}
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in (".h", ".cc"):
            headers = {header for _, header in INCLUDE.findall(path.read_text())}
            used[folder_of(path.relative_to(ROOT / "src").as_posix())] |= headers | set(
                map(folder_of, headers)
            )
    for folder, allowed in ALLOWED.items():
        unused = [one for one in allowed if one not in used[folder]]
        problems += [f"src/{folder} includes nothing of {one}: strike it" for one in unused]
    return problems


def reached(header: str) -> set[str]:
    """The headers of src/control that it includes, also by others."""
    found, new = set(), [header]
    while new:
        name = new.pop()
        if name in found:
            continue
        found.add(name)
        text = (CONTROL / name).read_text()
        new += [
            one.split("/")[1]
            for kind, one in INCLUDE.findall(text)
            if kind == '"' and one.startswith("control/")
        ]
    return found - {header}


def methods_of(name: str, text: str) -> int:
    """How many methods the class declares whose body `text` begins with, but for constructors."""
    body, depth = "", 1
    for char in text:
        depth += (char == "{") - (char == "}")
        if depth == 0:
            break
        body += char if depth == 1 else ""
    while (shorter := re.sub(r"<[^<>;{}()]*(\([^<>;{}()]*\))?[^<>;{}()]*>", "", body)) != body:
        body = shorter
    declared = [
        METHOD.match(one)
        for one in re.split(r"[;}]|\b(?:public|private|protected):", body)
        if not re.search(r"\b(friend|using)\b|= (default|delete)", one)
    ]
    return sum(one is not None and one[1] != name.split("::")[-1] for one in declared)


def check_methods() -> list[str]:
    """No class has too many. A function that a header of the folder has for changing it counts as one."""
    quoted = r"""'(?:\\.|[^'\\\n])'|"(?:\\.|[^"\\\n])*"|"""
    ignored = re.compile(quoted + r"//[^\n]*|\[\[[^\]]*\]\]|^ *#.*$", re.MULTILINE)
    paths = [path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in (".h", ".cc")]
    texts = {path: ignored.sub("", path.read_text()) for path in paths}
    free = re.compile(r"^\w[\w:<>&*, ]*[ &*]\w+\((?:[a-z]\w*::)*([A-Z][\w:]*)& ", re.MULTILINE)
    changing = Counter(
        (path.parent, name) for path in paths if path.suffix == ".h" for name in free.findall(texts[path])
    )
    problems = []
    for path, text in texts.items():
        for found in CLASS.finditer(text):
            count = methods_of(found[1], text[found.end() :]) + changing[path.parent, found[1]]
            if count > MAX_METHODS and found[1] not in MIRRORS:
                what = f"{found[1]} has {count} methods, at most {MAX_METHODS}: split it"
                problems.append(f"{path.relative_to(ROOT)}: {what}")
    return problems


def check_rules() -> list[str]:
    """No rule of the controller's machine can name the state of another, and none has friends."""
    slices = {f"{rule}_state.h": rule for rule in RULES}
    owner = {f"{rule}{end}": rule for rule in RULES for end in ("_rule.h", "_rule.cc", "_state.h")}
    owner |= {file: rule for rule, files in RULES.items() for file in files}
    problems = []
    for path in sorted(CONTROL.iterdir()):
        if path.suffix not in (".h", ".cc") or path.name in SEES_ALL:
            continue
        own = owner.get(path.name)
        text = path.read_text()
        direct = {one.split("/")[1] for _, one in INCLUDE.findall(text) if one.startswith("control/")}
        seen = reached(path.name) if own else direct
        theirs = [one for one in sorted(seen) if one == "machine_state.h" or slices.get(one, own) != own]
        theirs += [one for one in sorted(seen) if own and one.endswith("_rule.h") and owner.get(one) != own]
        if theirs:
            problems.append(f"{path.name} sees {', '.join(theirs)}: rules meet in rules.h alone (RULES here)")
        if own and re.search(r"\bfriend\b(?!\s+bool operator==)", text):
            problems.append(f"{path.name} has a friend: a rule's state is its own")
        changes = re.search(r"\broster_?\.Change\(|\bRoster::Edit\b", text)
        if changes and path.name not in [*CHANGES, "roster.cc"]:
            problems.append(f"{path.name} calls Roster::Change: name the change in {' or '.join(CHANGES)}")
        if own not in (None, "membership") and re.search(
            r"\broster_?\.(Add|AddGroup|Remove|RemoveGroup)\(", text
        ):
            problems.append(f"{path.name} changes who is here: that is the membership rule's")
    found = {path.name.removesuffix("_rule.h") for path in CONTROL.glob("*_rule.h")}
    problems += [f"{rule}_rule.h has no line in RULES" for rule in sorted(found - set(RULES))]
    missing = [file for file in owner if not (CONTROL / file).exists()]
    return [f"src/control/{problem}" for problem in problems + [f"{file} is not there" for file in missing]]


def contract_fields() -> list[tuple[str, int, str]]:
    """(struct, place, name) of each field of the contract's structs."""
    found = []
    for name in CONTRACT:
        text = re.sub(r"//[^\n]*", "", (ROOT / "src" / "transport" / name).read_text())
        for struct, body in re.findall(r"struct (\w+) \{(.*?)\n *\};", text, re.DOTALL):
            members = [re.sub(r"\s*(=.*|\{\})$", "", one, flags=re.DOTALL) for one in body.split(";")]
            named = [re.search(r"\(\*(\w+)\)|^[^(]*\b(\w+)$", one.strip()) for one in members]
            fields = [one[1] or one[2] for one in named if one]
            found += [(struct, place, field) for place, field in enumerate(fields)]
    return found


def sets(text: str, struct: str, place: int, field: str) -> bool:
    """By name, or by its place in `Struct{...}`."""
    if re.search(rf"\.{field}\s*(=[^=]|\{{)", text):
        return True
    for found in re.finditer(rf"\b{struct}\{{(?=[^.}}])", text):
        depth, commas = 0, 0
        for char in text[found.end() :]:
            depth += (char in "({[") - (char in ")}]")
            commas += char == "," and depth == 0
            if depth < 0:
                break
        if commas >= place:
            return True
    return False


def check_contract() -> list[str]:
    """Each field has one who sets it on one side of the contract and one who reads it on the other."""

    def text_of(tops: list[pathlib.Path]) -> str:
        files = [path for top in tops for path in sorted(top.rglob("*")) if path.suffix in (".h", ".cc")]
        return re.sub(r"//[^\n]*", "", "\n".join(path.read_text() for path in files))

    users = [
        ROOT / "src" / folder
        for folder, allowed in ALLOWED.items()
        if any(one.startswith("transport/") for one in allowed)
    ]
    sides = [text_of([ROOT / "src" / "transport"]), text_of([*users, ROOT / "tools"])]
    problems = []
    for struct, place, field in contract_fields():
        read = [re.search(rf"(\.|->){field}\b(?!\s*(=[^=]|\{{))", side) is not None for side in sides]
        written = [sets(side, struct, place, field) for side in sides]
        if not (written[0] and read[1]) and not (written[1] and read[0]):
            missing = "sets" if not any(written) else "reads"
            problems.append(f"src/transport: nobody {missing} {struct}::{field} on the other side: delete it")
    return problems


def check_public(path: pathlib.Path) -> list[str]:
    return [
        f'includes "{header}": a public header includes only std and itself'
        for kind, header in INCLUDE.findall(path.read_text())
        if kind == '"' and not header.startswith("weightcast/")
    ]


def check_bindings(path: pathlib.Path) -> list[str]:
    allowed = {other.name for other in path.parent.iterdir()} | BOUND
    return [
        f'includes "{header}": bindings include only include/weightcast and {", ".join(sorted(BOUND))}'
        for kind, header in INCLUDE.findall(path.read_text())
        if kind == '"' and not header.startswith("weightcast/") and header not in allowed
    ]


def public_names() -> set[str]:
    """`__all__` of the package."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "__all__" for one in node.targets):
            return {str(name) for name in ast.literal_eval(node.value)}
    raise SystemExit("python/weightcast/__init__.py has no __all__")


def imports_of(path: pathlib.Path) -> list[tuple[str, str]]:
    """(module, name) of each import of something of weightcast; name is "" where a module is imported."""
    found = []
    inside = ("weightcast", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(one.name, "") for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(inside[: len(inside) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(module, one.name) for one in node.names]
    return [(module, name) for module, name in found if module.split(".")[0] == "weightcast"]


def check_python(path: pathlib.Path) -> list[str]:
    """weightcast.rl uses what a user can; nothing else of the package knows of it."""
    in_rl = path.relative_to(PACKAGE).parts[0] == "rl"
    names = public_names() | PUBLIC_MODULES | {"__version__"}
    problems = []
    for module, name in imports_of(path):
        of_rl = f"{module}.{name}.".startswith("weightcast.rl.")
        if of_rl and not in_rl:
            problems.append("imports weightcast.rl, which stands above the package")
        elif in_rl and not of_rl:
            public = (
                name in names if module == "weightcast" and name else module.split(".")[1] in PUBLIC_MODULES
            )
            if not public:
                problems.append(
                    f"imports {name or 'all'} of {module}: rl uses public names only (docs/api.md)"
                )
    return problems


def main() -> int:
    rules = [("src", check_source), ("include", check_public), ("python/bindings", check_bindings)]
    problems = []
    for top, check in rules:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".cc"):
                problems += [f"{path.relative_to(ROOT)}: {problem}" for problem in check(path)]
    for path in sorted(PACKAGE.rglob("*.py")):
        problems += [f"{path.relative_to(ROOT)}: {problem}" for problem in check_python(path)]
    problems += unused_edges() + check_rules() + check_methods() + check_contract()
    for top in ("src", "include", "tools", "python", "tests", "bench", "examples"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".py") and (lines := path.read_text().count("\n")) > MAX_LINES:
                problems.append(f"{path.relative_to(ROOT)}: {lines} lines, at most {MAX_LINES}: split it")
    print("\n".join(problems) if problems else "layers: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
