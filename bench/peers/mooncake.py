"""Mooncake's transfer engine over TCP, by its Python API. As a program: measures, in its environment."""

import pathlib
import sys
import time
from typing import Any

if __name__ != "__main__":
    from . import python_peer
    from .install import library_path, python_with, unpack_debian


class Peer:
    name = "Mooncake"
    paths = ("tcp",)
    reuse = False

    def __init__(self, folder: pathlib.Path) -> None:
        self.python = python_with(folder / "mooncake", "mooncake-transfer-engine-non-cuda")
        # It is linked against the libraries of RDMA, also where there is none.
        root = unpack_debian(folder / "verbs", ["libibverbs1", "libnl-3-200", "libnl-route-3-200"])
        self.environment = {"LD_LIBRARY_PATH": library_path(root)}
        python_peer.check_import(self.python, "mooncake.engine", self.environment)

    def measure(self, path: str, sizes: list[str], seconds: float, cores: list[int]) -> dict[str, float]:
        return python_peer.measure(self.python, __file__, self.environment, sizes, seconds, cores)


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # This file must not stand in front of what it imports.
    import pair
    from mooncake.engine import TransferEngine

    def check(code: int, what: str) -> None:
        if code != 0:
            raise RuntimeError(f"Mooncake's {what} ({code}); leave Mooncake out with --peers")

    class Mooncake:
        def __init__(self, memory: Any) -> None:
            self.base = memory.ctypes.data
            self.engine = TransferEngine()
            check(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "engine cannot start")
            check(self.engine.register_memory(self.base, memory.nbytes), "engine cannot register memory")

        def hello(self) -> Any:
            return self.engine.get_rpc_port(), self.base

        def meet(self, hello: Any) -> None:
            port, self.there = hello
            self.peer = f"127.0.0.1:{port}"

        def prepare(self, pieces: list[tuple[int, int]]) -> Any:
            here = [self.base + at for at, _ in pieces]
            there = [self.there + at for at, _ in pieces]
            return here, there, [size for _, size in pieces]

        def write(self, prepared: Any) -> None:
            here, there, sizes = prepared
            if len(sizes) == 1:
                failed = self.engine.transfer_sync_write(self.peer, here[0], there[0], sizes[0])
            else:
                failed = self.engine.batch_transfer_sync_write(self.peer, here, there, sizes)
            check(failed, "write failed")

        def progress(self) -> None:
            time.sleep(0.0001)  # Its own threads do the work.

    pair.main(Mooncake)
