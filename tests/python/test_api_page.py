"""docs/api.md has the public API as it is, and public headers speak only of what is installed with them."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import api_headers  # noqa: E402

SCRIPT = ROOT / "scripts" / "api_page.py"
HEADERS = sorted((ROOT / "include" / "weightcast").glob("*.h"))


def check(root: pathlib.Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check", "--root", root], stderr=subprocess.PIPE, text=True, timeout=60
    )
    return done.returncode, done.stderr


@pytest.fixture
def copy(tmp_path):
    """The files that the page is made from, to be changed."""
    for folder in ("include", "python/bindings", "python/weightcast"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "api.md", tmp_path / "docs")
    return tmp_path


def edit(path: pathlib.Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_page_is_current():
    assert check(ROOT) == (0, "")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "include/weightcast/endpoint.h",
            "size_t Progress()",
            "int Progress()",
            "+  virtual int Progress() = 0;",
        ),
        ("include/weightcast/status.h", "kCorrupt,", "kCorrupt, kNew,", "kCorrupt, kNew"),
        (
            "python/weightcast/endpoint.py",
            "def cancel(self)",
            "def stop(self)",
            "+    def stop(self) -> None",
        ),
        ("python/bindings/tensor.cc", 'nb::arg("b")', 'nb::arg("c")', "+def newer(a, c)"),
    ],
)
def test_a_changed_declaration_is_shown(copy, file, old, new, said):
    assert check(copy) == (0, "")
    edit(copy / file, old, new)
    code, text = check(copy)
    assert code == 1 and said in text and text.endswith("run scripts/api_page.py\n")


def test_nothing_is_left_out(copy):
    (copy / "include/weightcast/extra.h").write_text("#pragma once\nint Extra();\n")
    assert check(copy) == (1, "docs/api.md has no block for extra.h\n")
    edit(copy / "docs/api.md", "<!-- clock.h -->", "<!-- extra.h -->\n<!-- end -->\n\n<!-- clock.h -->")
    assert check(copy) == (1, "weightcast.h does not include extra.h\n")
    edit(copy / "docs/api.md", "Trainer Update Inference", "Trainer Inference")
    assert check(copy) == (1, "docs/api.md has no block for weightcast.Update\n")


def test_what_cannot_be_read_is_named(copy):
    edit(copy / "include/weightcast/version.h", "struct Version {", "#if 1\n#endif\nstruct Version {")
    code, text = check(copy)
    assert code == 1 and re.search(r"version\.h:\d+: cannot read '#if 1'", text)


READABLE = """\
#pragma once
namespace weightcast {
class Later;
class Plain final : public Later {
  int hidden_ = 0;

 public:
  Plain() : a_{1}, b_(2) { Do(); }
  bool operator<(const Plain& other) const { return a_ < other.a_; }
  int operator()(int x) const;  ///< Comment; with a brace {
  std::map<std::string, std::function<void(int)>> map{{"a", {}}};
  template <typename T>
  [[nodiscard]] T Get(T fallback = {}) const {
    return a_ > 1 ? T() : fallback;
  }

 private:
  friend class Other;
  void Hidden() {}
};
}  // namespace weightcast
"""


def test_headers_are_read_whole(tmp_path):
    path = tmp_path / "plain.h"
    path.write_text(READABLE)
    assert api_headers.declarations(path).splitlines() == [
        "class Later;",
        "",
        "class Plain final : public Later {",
        "  Plain();",
        "  bool operator<(const Plain& other) const;",
        "  int operator()(int x) const;",
        '  std::map<std::string, std::function<void(int)>> map{{"a", {}}};',
        "  template <typename T> T Get(T fallback = {}) const;",
        "};",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "extern int x\n",
        'extern "C" {\nint f();\n}\n',
        "MACRO(x)\nint f();\n",
        "}\n",
        "int f(;\n",
        "class A {\n",
    ],
)
def test_other_code_is_refused(tmp_path, text):
    path = tmp_path / "strange.h"
    path.write_text(text)
    with pytest.raises(api_headers.Unreadable, match=r"strange\.h:\d+"):
        api_headers.declarations(path)


def strangers(header: str) -> list[str]:
    """Files named in the comments of a public header that its user does not have."""
    installed = {path.name for path in HEADERS}
    installed |= {f"weightcast/{name}" for name in installed}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    text = "\n".join(api_headers.comments_of(header))
    named = re.findall(r"[\w./-]*\w\.(?:h|hpp|cc|cpp|py|md|txt)\b", text)
    return [name for name in named if name not in installed | pages] + re.findall(r"\bsrc/[\w/]*", text)


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_headers_speak_of_what_is_installed(path):
    assert strangers(path.read_text()) == []


def test_strangers_are_found():
    assert strangers(
        "/// As chunks.h says.\nint x;  // See src/base and docs/none.md, docs/api.md, clock.h.\n"
    ) == [
        "chunks.h",
        "docs/none.md",
        "src/base",
    ]
