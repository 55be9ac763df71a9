"""NIXL over UCX, by its Python API. As a program: measures, in its environment."""

import os
import pathlib
import sys
from typing import Any

if __name__ != "__main__":
    from . import python_peer
    from .install import python_with


class Peer:
    name = "NIXL"
    paths = ("tcp", "any", "huge")
    reuse = False

    def __init__(self, folder: pathlib.Path) -> None:
        self.python = python_with(folder / "nixl", "nixl-cu13")
        python_peer.check_import(self.python, "nixl_cu13._api", {})

    def measure(self, path: str, sizes: list[str], seconds: float, cores: list[int]) -> dict[str, float]:
        # Within a host UCX has its own choice of path: without tcp among them it does not start.
        choice = {"UCX_TLS": "tcp,self"} if path == "tcp" else {}
        # Left alone numpy asks for huge pages.
        choice["NUMPY_MADVISE_HUGEPAGE"] = "1" if path == "huge" else "0"
        return python_peer.measure(self.python, __file__, choice, sizes, seconds, cores)


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # This file must not stand in front of what it imports.
    import pair
    from nixl_cu13._api import nixl_agent, nixl_agent_config

    class Nixl:
        def __init__(self, memory: Any) -> None:
            self.base = memory.ctypes.data
            # Without its thread: who waits drives, on the one core of its process.
            self.agent = nixl_agent(
                f"bench-{os.getpid()}", nixl_agent_config(False, False, 0, backends=["UCX"])
            )
            self.agent.register_memory([(self.base, memory.nbytes, 0, "")], "DRAM")

        def hello(self) -> Any:
            return self.agent.get_agent_metadata(), self.base

        def meet(self, hello: Any) -> None:
            metadata, self.there = hello
            self.peer = self.agent.add_remote_agent(metadata)

        def prepare(self, pieces: list[tuple[int, int]]) -> Any:
            here = self.agent.get_xfer_descs([(self.base + at, size, 0) for at, size in pieces], "DRAM")
            there = self.agent.get_xfer_descs([(self.there + at, size, 0) for at, size in pieces], "DRAM")
            return self.agent.initialize_xfer("WRITE", here, there, self.peer)

        def write(self, prepared: Any) -> None:
            state = self.agent.transfer(prepared)
            while state == "PROC":
                state = self.agent.check_xfer_state(prepared)
            if state != "DONE":
                raise RuntimeError(f"NIXL: a transfer ended as {state}; leave NIXL out with --peers")

        def progress(self) -> None:
            self.agent.get_new_notifs()

    pair.main(Nixl)
