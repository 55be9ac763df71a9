"""scripts/check_prose.py: how it counts, and that allowed numbers only fall."""

import json
import pathlib
import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import check_prose  # noqa: E402
from check_prose import TARGET, Counts  # noqa: E402

LONG = "One " + "word " * 34 + "more."


def test_the_pages_are_within_what_they_may():
    found = {name: check_prose.count(text) for name, text in check_prose.pages(ROOT).items()}
    assert check_prose.check(found, check_prose.read_allowed(ROOT / "scripts" / "prose_allowed.json")) == []


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("One two three. Four five six seven.\nEight nine ten.", [3, 4, 3]),
        ("A sentence over\ntwo lines ends here.", [7]),
        ("- An item of four.\n- Another item that has six.\n1. A third one", [4, 5, 3]),
        ("Set `a b c` to 5 s. `Code` may begin one.", [5, 4]),
        ("It takes 0.5 ms, e.g. On this machine.", [8]),
        ("See [the page of settings](settings.md) for all. (It is generated.)", [7, 3]),
        ("It moves no bytes. weightcast itself moves them.", [4, 4]),
        ("**Label.** Then comes a sentence.", [4]),
        ("Here is the list: [one of them](a) · [two of them](b)", [7, 3]),
        ("# A heading is not one\n\n| a table | is not one |\n|---|---|\n| it is | not either |", []),
        ("Before the code.\n```sh\nnot a sentence. Nor this one.\n```\nBehind the code.", [3, 3]),
        ("Before the code.\n\n    not a sentence\n    nor this one\n\nBehind the code.", [3, 3]),
        ("Before the comment. <!-- not a\nsentence at all. --> Behind the comment.", [3, 3]),
        ("A dash – or a colon: no words – counts none.", [9]),
    ],
)
def test_words_of_sentences(text, lengths):
    assert [check_prose.words(one) for one in check_prose.sentences(text)] == lengths


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The road is open.\n\n| Doors | is a table |", ["road", "Doors"]),
        ("It dials, redialled and is dialling.", ["dials", "redialled", "dialling"]),
        ("A rank is taken for dead and\nthe file passed over.", ["taken for dead", "passed over"]),
        ("A rank is taken for\ndead.", ["taken for\ndead"]),
        ("Broader indoor newspapers; a radial line; `road` and\n```\ndoor\n```", []),
    ],
)
def test_forbidden_terms(text, found):
    assert check_prose.terms(text) == found


def test_the_source_has_no_forbidden_terms():
    found = {name: check_prose.terms(text) for name, text in check_prose.texts(ROOT).items()}
    assert len(found) > 1000 and {name: terms for name, terms in found.items() if terms} == {}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("src/base/a.cc", "int road = 0;  // Made anew.\n", ["anew"]),
        ("src/base/a.cc", "/// It is taken for\n  /// dead. /* news */\n", ["taken for\ndead", "news"]),
        (
            "include/weightcast/a.h",
            'char c = \'"\'; Say("it is passed "\n    "over", road);',
            ["passed\nover"],
        ),
        ("src/http/page/a.js", "const door = 'anew';", ["anew"]),
        ("tools/a.cc", 'auto t = R"(the "door")"; road = 1\'000;', ["door"]),
        (
            "python/weightcast/a.py",
            '"""The\n\nroad.\n"""\nnews = \'door\'  # anew\n',
            ["road", "door", "anew"],
        ),
        ("scripts/lint", "# A door\nroad news\n", ["door"]),
        ("src/base/CMakeLists.txt", "road() # anew", ["anew"]),
        ("src/base/a.cc", "// `road` is a name.\nint lives = news(anew);\n", []),
        ("examples/ddp_gpt2/alice.txt", "a door", []),
        ("tests/unit/a.cc", "// anew", []),
    ],
)
def test_planted_terms_in_comments_and_strings(tmp_path, name, text, found):
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    assert [
        term for text in check_prose.texts(tmp_path).values() for term in check_prose.terms(text)
    ] == found


def test_a_planted_term_fails_the_check(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "README.md").write_text("All is well here.\n")
    (tmp_path / "CONTRIBUTING.md").write_text("All is well here.\n")
    (tmp_path / "scripts" / "prose_allowed.json").write_text("{}")
    (tmp_path / "src" / "a.h").write_text("/// Made anew.\n")
    assert run(tmp_path) == (1, "src/a.h: 'anew': write again, or new\n")


def test_the_mean_is_rounded_up():
    assert check_prose.count("One two three. One two three. One two three four.").mean == 3.4


def test_a_cell_counts_where_it_is_long_and_not_for_the_mean():
    rows = f"| five words in a cell | {LONG} `a|b` \\| {LONG} |\n|---|---|\n| {LONG[:90]} | it |"
    text = f"One two three.\n\n{rows}"
    assert [check_prose.words(one) for one in check_prose.long_sentences(text)] == [36, 37]
    assert check_prose.count(text) == Counts(mean=3.0, longest=37, long=2, terms=0)


def test_a_page_without_an_entry_must_meet_the_target():
    assert check_prose.check({"a.md": Counts(15.0, 30, 0, 0)}, {}) == []
    wrong = check_prose.check({"a.md": Counts(15.1, 31, 1, 1)}, {})
    assert wrong == [
        "a.md: mean 15.1, allowed 15.0; longest 31, allowed 30; long 1, allowed 0; terms 1, allowed 0 "
        "(scripts/check_prose.py --show a.md)"
    ]


def test_an_entry_allows_its_numbers_and_no_more():
    allowed = {"a.md": Counts(20.0, 40, 2, 1)}
    assert check_prose.check({"a.md": Counts(20.0, 40, 2, 1)}, allowed) == []
    assert len(check_prose.check({"a.md": Counts(20.0, 40, 3, 1)}, allowed)) == 1


@pytest.mark.parametrize("found", [{}, {"a.md": TARGET}])
def test_an_entry_that_is_not_needed_is_named(found):
    wrong = check_prose.check(found, {"a.md": Counts(20.0, 40, 2, 1)})
    assert wrong == ["a.md needs no entry any more: run scripts/check_prose.py --lower"]


def test_numbers_are_lowered_never_raised():
    allowed = {
        "a.md": Counts(20.0, 40, 2, 1),
        "b.md": Counts(20.0, 40, 2, 1),
        "gone.md": Counts(20.0, 40, 2, 1),
    }
    found = {"a.md": Counts(12.0, 45, 1, 3), "b.md": TARGET, "new.md": Counts(99.0, 99, 9, 9)}
    assert check_prose.lowered(found, allowed) == {"a.md": Counts(15.0, 40, 1, 1)}


def run(root: pathlib.Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, ROOT / "scripts" / "check_prose.py", "--root", root, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_lower_writes_what_the_check_then_takes(tmp_path):
    (tmp_path / "docs" / "decisions").mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "README.md").write_text("All is well here.\n")
    (tmp_path / "CONTRIBUTING.md").write_text("All is well here.\n")
    (tmp_path / "docs" / "decisions" / "one.md").write_text(LONG + "\n")
    allowed = tmp_path / "scripts" / "prose_allowed.json"
    old = {"mean": 50, "longest": 50, "long": 5, "terms": 5}
    allowed.write_text(json.dumps({"README.md": old, "docs/decisions/one.md": old}))
    code, said = run(tmp_path)
    assert code == 1 and said.startswith("README.md needs no entry")
    assert run(tmp_path, "--lower") == (0, "prose: ok, 1 of 3 pages to be shortened\n")
    assert json.loads(allowed.read_text()) == {
        "docs/decisions/one.md": {"mean": 36.0, "longest": 36, "long": 1, "terms": 0}
    }
    assert run(tmp_path) == (0, "prose: ok, 1 of 3 pages to be shortened\n")


def test_show_prints_what_misses_the_target(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"The road is open. {LONG}\n")
    code, said = run(tmp_path, "--show", str(page))
    assert code == 0
    assert "longest=36 long=1 terms=1" in said
    assert "'road': write path" in said
