"""Which endpoints of `weightcast.p2p` this user has on this host.

Each announces itself by a file with its metadata, and holds a lock on the file as long as it exists. A file
whose lock is free was left by a process that has exited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import stat
import tempfile
import weakref
from collections.abc import Iterator

from .errors import Permission


def _shared() -> pathlib.Path:
    """Of this host. Anyone can make the name first, but nobody can take it away once it is ours."""
    base = pathlib.Path("/dev/shm")
    if not os.access(base, os.W_OK):
        base = pathlib.Path(tempfile.gettempdir())
    return base / f"weightcast-p2p-{os.getuid()}"


def _own() -> pathlib.Path:
    """Where no other user can make anything. Hosts may share it, so each has its own folder there."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(cache) if cache.startswith("/") else pathlib.Path.home() / ".cache"
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return base / "weightcast" / f"p2p-{boot}"


def _is_ours(folder: pathlib.Path) -> bool:
    """Whether it is there and this user's alone; raises `Permission` if it is ours but open to others."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    if found.st_mode & 0o077:
        raise Permission(
            f"other users have access to {folder}, where endpoints of this user are listed; "
            f"run: chmod go-rwx {folder}"
        )
    return True


def _folder() -> pathlib.Path:
    for folder in (_shared(), _own()):
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        if _is_ours(folder):
            return folder
    raise Permission(
        f"there is no folder to list this user's endpoints in: {_shared()} and {_own()} are files, or of "
        "another user; remove one of them, as its owner"
    )


_open: weakref.WeakSet[Announcement] = weakref.WeakSet()


class Announcement:
    """Announces an endpoint until it is closed. A forked child closes its copy: the lock is the parent's."""

    def __init__(self, metadata: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix=".", dir=_folder())
        self._file = os.fdopen(handle, "wb")
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._file.write(metadata)
        self._file.flush()
        hidden = pathlib.Path(name)
        self._path = hidden.rename(hidden.with_name(hidden.name[1:]))
        self._owner = os.getpid()
        _open.add(self)

    def close(self) -> None:
        if self._file.closed:
            return
        if os.getpid() == self._owner:
            self._path.unlink(missing_ok=True)
        self._file.close()


def _let_go() -> None:
    for one in list(_open):
        one.close()


os.register_at_fork(after_in_child=_let_go)


def announced() -> Iterator[bytes]:
    """The metadata of every open endpoint, including this process'. Files of exited processes are removed."""
    folders = [folder for folder in (_shared(), _own()) if _is_ours(folder)]
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if path.name.startswith("."):
            continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                yield file.read()
            else:
                path.unlink(missing_ok=True)
