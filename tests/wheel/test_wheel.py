"""The wheels as their users get them."""

import json
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TAG = "manylinux_2_34_x86_64"
# What our extension has mapped that does not come with every Linux; the interpreter may have its own OpenSSL.
MAPPED = """
import hashlib, re, ssl

def mapped():
    name = r"/\\S*lib(crypto|ssl|zstd)\\S*"
    return {found[0] for found in map(re.compile(name).search, open("/proc/self/maps")) if found}

before = mapped()
import weightcast
print(*(mapped() - before), sep="\\n")
"""


def check(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts/check_wheel.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_wheel_is_true_to_its_tag(wheels):
    checked = check(*wheels)
    assert checked.returncode == 0, checked.stderr


def test_there_is_a_wheel_for_each_python(wheels, pythons):
    tags = {wheel.name.split("-")[2] for wheel in wheels}
    assert {f"cp3{minor}" for minor in pythons if minor < 12} | {"cp312"} == tags


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--limit=GLIBC=2.33", r"scripts/weightcast wants GLIBC_2\.34; "),
        ("--limit=GLIBC=2.33", r"_weightcast\.abi3\.so wants GLIBC_2\.34; "),
        ("--limit=GLIBCXX=3.4.28", r"_weightcast\.abi3\.so wants GLIBCXX_3\.4\.29; "),
        ("--max-bytes=1000000", r"MB, at most 1\.0"),
    ],
)
def test_what_is_too_new_or_too_big_is_named(stable, argument, complaint):
    checked = check(argument, stable)
    assert checked.returncode == 1
    assert re.search(complaint, checked.stderr), checked.stderr


def test_a_library_that_is_not_in_the_wheel_is_named(stable, tmp_path):
    """As if one had not been linked in."""
    library = tmp_path / "more.so"
    subprocess.run(
        ["cc", "-shared", "-o", library, "-Wl,--no-as-needed", "-lzstd"], capture_output=True, check=True
    )
    more = tmp_path / stable.name
    more.write_bytes(stable.read_bytes())
    with zipfile.ZipFile(more, "a") as wheel:
        wheel.write(library, "weightcast/more.so")
    checked = check(more)
    assert checked.returncode == 1
    assert re.search(r"more\.so needs libzstd\S+, neither in the wheel", checked.stderr), checked.stderr


def test_auditwheel_agrees(wheels):
    for wheel in wheels:
        command = [ROOT / "build/wheel/tools/bin/auditwheel", "show", wheel]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        text = " ".join(shown.split())
        assert f'consistent with the following platform tag: "{TAG}"' in text, shown


def test_it_has_the_licenses_of_what_it_bundles(stable):
    with zipfile.ZipFile(stable) as wheel:
        names = wheel.namelist()
        (licenses,) = [name for name in names if name.endswith("licenses/THIRD_PARTY_LICENSES")]
        text = wheel.read(licenses).decode()
    assert not [name for name in names if ".libs/" in name]
    for library in ("libssl-dev", "libzstd-dev", "nanobind"):
        assert f"\n{library}\n" in text


def test_the_command_works(stable, pythons, install):
    installed = install(pythons[12], stable)
    assert "bit-exact" in installed.run("weightcast", "demo")
    assert json.loads(installed.run("weightcast", "info", "--json"))
    version = stable.name.split("-")[1]
    assert version in installed.run("weightcast", "--version")


def test_nothing_but_the_wheel_is_used(stable, pythons, install):
    installed = install(pythons[12], stable)
    assert not installed.run("python", "-c", MAPPED).split()


def examples() -> list[pathlib.Path]:
    """Those that need nothing but numpy."""
    scripts = sorted((ROOT / "examples").glob("*.py"))
    return [
        script
        for script in scripts
        if not re.search(r"^\s*(import|from) (torch|ray)\b", script.read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize("script", examples(), ids=lambda script: script.stem)
def test_the_examples_run(stable, pythons, install, script):
    install(pythons[12], stable).run("python", script)


@pytest.mark.parametrize("minor", [10, 11, 13, 14])
def test_other_pythons(wheels, pythons, install, minor):
    if minor not in pythons:
        pytest.skip(f"no Python 3.{minor} here")
    tag = f"cp3{minor}" if minor < 12 else "cp312"
    (wheel,) = [wheel for wheel in wheels if wheel.name.split("-")[2] == tag]
    installed = install(pythons[minor], wheel)
    assert "bit-exact" in installed.run("python", ROOT / "examples" / "minimal.py")
    assert json.loads(installed.run("weightcast", "info", "--json"))
