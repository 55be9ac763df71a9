"""Runs a function as a container does: another user, own namespaces, a small /dev/shm, forbidden calls.

All in the child that runs it: the modules that it needs were loaded before, so that an interpreter in a
folder of root's serves as well. x86-64 and arm64.
"""

import contextlib
import ctypes
import dataclasses
import os
import pickle
import platform
import signal
import struct
import traceback
from collections.abc import Callable
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 1, 4, 38, 22
# (process_vm_readv, process_vm_writev)
CROSS_COPY = {"x86_64": (310, 311), "aarch64": (270, 271)}

_libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Container:
    network: str  # The name of a network namespace.
    user: int = 1000
    own_pids: bool = True
    log: str | None = None  # Where standard error goes.


def _check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _die_with_parent() -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "PR_SET_PDEATHSIG")


def _mount(kind: str | None, target: str, flags: int, options: str | None) -> None:
    texts = [None if text is None else text.encode() for text in (kind, target, kind, options)]
    source, where, filesystem, data = texts
    _check(_libc.mount(source, where, filesystem, ctypes.c_ulong(flags), data), f"mount {target}")


def _enter(container: Container) -> None:
    """Everything but the pid namespace, which begins with the next child."""
    with open(f"/run/netns/{container.network}") as network:
        _check(_libc.setns(network.fileno(), CLONE_NEWNET), "setns")
    if container.log is not None:
        log = os.open(container.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 2)
        os.close(log)
    os.setgroups([])
    os.setresgid(container.user, container.user, container.user)
    os.setresuid(container.user, container.user, container.user)
    # Forgotten with the user: a process that cannot be dumped has no say over its namespaces either.
    _check(_libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "PR_SET_DUMPABLE")
    own = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | (CLONE_NEWPID if container.own_pids else 0)
    _check(_libc.unshare(own), "unshare")
    for name, text in (("setgroups", "deny"), ("gid_map", None), ("uid_map", None)):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text or f"{container.user} {container.user} 1")
    _mount(None, "/", MS_REC_PRIVATE, None)
    _mount("tmpfs", "/dev/shm", 0, "size=64m")


def _drop_capabilities() -> None:
    header = struct.pack("<Ii", 0x20080522, 0)  # Version 3, of this process.
    _check(_libc.capset(header, bytes(24)), "capset")


def _forbid_cross_copy() -> None:
    """EPERM from process_vm_readv and process_vm_writev, as under a container's default profile of old."""
    read, write = CROSS_COPY[platform.machine()]
    load, jump, answer = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, refuse = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO with EPERM
    program = b"".join(
        struct.pack("<HBBI", *step)
        for step in (
            (load, 0, 0, 0),
            (jump, 1, 0, read),
            (jump, 0, 1, write),
            (answer, 0, 0, refuse),
            (answer, 0, 0, allow),
        )
    )
    steps = ctypes.create_string_buffer(program, len(program))
    filter_ = ctypes.create_string_buffer(struct.pack("<H6xQ", len(program) // 8, ctypes.addressof(steps)))
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    _check(_libc.prctl(PR_SET_SECCOMP, 2, ctypes.byref(filter_), 0, 0), "PR_SET_SECCOMP")


def _in_child(action: Callable[[], Any]) -> Any:
    """In a fork, which ends with this process; a signal that ended it is named."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            outcome = ("ok", action())
        except BaseException as error:
            outcome = (type(error).__name__, f"{error}\n{traceback.format_exc()}")
        with contextlib.suppress(BaseException), os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) or not answer:
        raise RuntimeError(f"the container ended with status {status}, signal {os.WTERMSIG(status)}")
    kind, value = pickle.loads(answer)
    if kind != "ok":
        raise RuntimeError(f"{kind} in the container: {value}")
    return value


def contained(container: Container, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)` in this container. Call it in a process that is there for nothing else."""

    def inside() -> Any:
        _die_with_parent()
        _drop_capabilities()
        _forbid_cross_copy()
        return function(*arguments)

    def outside() -> Any:
        _enter(container)
        _die_with_parent()
        return _in_child(inside)

    return _in_child(outside)
