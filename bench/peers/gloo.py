"""gloo by torch.distributed: send, recv, and an answer, since a send says nothing of arrival.

As a program: measures."""

import os
import pathlib
import sys
import threading
import time
from typing import Any

if __name__ != "__main__":
    from . import Missing, python_peer

VENV = pathlib.Path(__file__).resolve().parents[2] / ".venv"


class Peer:
    name = "gloo"
    paths = ("tcp",)
    reuse = False

    def __init__(self, folder: pathlib.Path) -> None:
        self.python = VENV / "bin" / "python"
        if not self.python.exists():
            raise Missing("no .venv: scripts/bootstrap --python --torch makes one")
        python_peer.check_import(self.python, "torch.distributed", {})

    def measure(self, path: str, sizes: list[str], seconds: float, cores: list[int]) -> dict[str, float]:
        return python_peer.measure(self.python, __file__, {"GLOO_SOCKET_IFNAME": "lo"}, sizes, seconds, cores)


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # This file must not stand in front of what it imports.
    import pair
    import torch
    import torch.distributed as dist

    class Gloo:
        def __init__(self, memory: Any) -> None:
            torch.set_num_threads(1)
            self.memory = torch.from_numpy(memory)
            self.answer = torch.zeros(1, dtype=torch.uint8)
            self.prepared = 0
            self.is_target = "--target" in sys.argv
            self.store = None
            if not self.is_target:
                self.store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)

        def hello(self) -> Any:
            return None if self.store is None else self.store.port

        def meet(self, hello: Any) -> None:
            # Both make the group at once: its parts wait for each other.
            if self.is_target:
                self.store = dist.TCPStore("127.0.0.1", hello, 2, False)
                threading.Thread(target=self._serve, daemon=True).start()
            else:
                self.joining = threading.Thread(target=self._join, args=(0,), daemon=True)
                self.joining.start()

        def _join(self, rank: int) -> None:
            dist.init_process_group("gloo", store=self.store, rank=rank, world_size=2)

        def _serve(self) -> None:
            self._join(1)
            order = torch.zeros(2, dtype=torch.int64)
            transfers = []
            while True:
                dist.recv(order, 0)
                number, count = order.tolist()
                if number == len(transfers):
                    pieces = torch.zeros(count, 2, dtype=torch.int64)
                    dist.recv(pieces, 0)
                    transfers.append([self.memory[at : at + size] for at, size in pieces.tolist()])
                    continue
                for work in [dist.irecv(view, 0) for view in transfers[number]]:
                    work.wait()
                dist.send(self.answer, 0)

        def prepare(self, pieces: list[tuple[int, int]]) -> Any:
            """Both sides know the pieces beforehand, as those of a collective would."""
            self.joining.join()
            order = torch.tensor([self.prepared, len(pieces)])
            self.prepared += 1
            for tensor in (order, torch.tensor(pieces)):
                dist.send(tensor, 1)
            return order, *(self.memory[at : at + size] for at, size in pieces)

        def write(self, prepared: Any) -> None:
            for work in [dist.isend(tensor, 1) for tensor in prepared]:
                work.wait()
            dist.recv(self.answer, 1)

        def progress(self) -> None:
            time.sleep(0.0001)  # Its own threads do the work.

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    pair.main(Gloo)
