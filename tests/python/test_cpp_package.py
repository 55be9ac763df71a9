"""What `make install` gives C++ programs. They are built outside of the tree and see nothing else of ours."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from conftest import ROOT

EXAMPLES = ROOT / "examples" / "cpp"


def run(*command: object, **environment: str) -> str:
    """A command to its end, without what `make` gives its children; what it printed."""
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in command]
    done = subprocess.run(
        words,
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def prefix(binary, tmp_path_factory) -> pathlib.Path:
    """An installed weightcast, moved after it was installed."""
    folder = tmp_path_factory.mktemp("prefix")
    run("make", "-C", ROOT, "install", f"PREFIX={folder / 'first'}")
    return (folder / "first").rename(folder / "moved")


@pytest.fixture
def examples(tmp_path) -> pathlib.Path:
    """A copy of them, away from the tree."""
    return shutil.copytree(EXAMPLES, tmp_path / "examples")


def with_cmake(examples: pathlib.Path, prefix: pathlib.Path, *options: str) -> pathlib.Path:
    """The folder of what it built."""
    build = examples / "build"
    run("cmake", "-S", examples, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", *options)
    run("cmake", "--build", build)
    return build


def with_pkg_config(source: pathlib.Path, package: str, prefix: pathlib.Path) -> pathlib.Path:
    """The program."""
    flags = run("pkg-config", "--cflags", "--libs", package, PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig")
    program = source.with_suffix("")
    run(os.environ.get("CXX", "g++"), "-std=c++20", source, *shlex.split(flags), "-o", program)
    return program


def libraries(program: pathlib.Path) -> str:
    return run("objdump", "-p", program)


def test_find_package(examples, prefix):
    built = with_cmake(examples, prefix)
    for transport in ("shm", "tcp"):
        said = run(built / "one_sided_write", WEIGHTCAST_TRANSPORT=transport)
        assert said.startswith(transport) and said.endswith("64 MiB: bit-exact\n")
    assert re.fullmatch(r"100 writes, \d+ ticks of a timer: bit-exact\n", run(built / "event_loop"))
    for _ in range(20):  # Nothing is said of a controller that is away, whichever side closes first.
        assert run(built / "one_update") == "version 1: 4.2 MB, bit-exact\n"


def test_find_package_of_the_data_plane_needs_only_libcrypto(examples, prefix):
    built = with_cmake(examples, prefix, "-DPKG_CONFIG_EXECUTABLE=/nowhere/pkg-config")
    assert not (built / "one_update").exists()
    assert "libssl" not in libraries(built / "one_sided_write")
    assert "zstd" not in libraries(built / "one_sided_write")
    assert "bit-exact" in run(built / "one_sided_write")


def test_pkg_config(examples, prefix):
    program = with_pkg_config(examples / "one_sided_write.cc", "weightcast-endpoint", prefix)
    assert "libssl" not in libraries(program)
    assert "bit-exact" in run(program)
    assert "bit-exact" in run(with_pkg_config(examples / "one_update.cc", "weightcast", prefix))


def test_installed_headers_include_nothing_else(prefix, tmp_path):
    headers = sorted(path.name for path in (prefix / "include" / "weightcast").iterdir())
    assert headers == sorted(path.name for path in (ROOT / "include" / "weightcast").glob("*.h"))
    every = tmp_path / "every.cc"
    every.write_text("".join(f"#include <weightcast/{header}>\n" for header in headers))
    run("g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", f"-I{prefix}/include", every)


def test_installed_command(prefix):
    assert run(prefix / "bin" / "weightcast", "--version").startswith("weightcast ")
