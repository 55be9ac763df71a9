"""Matrix products on a GPU without a pause, in a thread beside what else its process does."""

import threading
from typing import Any


class Products:
    """Products of two BF16 matrices of 8192 × 8192 in a stream of their own. One user at a time."""

    SIZE = 8192
    AHEAD = 4  # So many are queued, so that the GPU never waits for the next one.

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._left, self._right = (
            torch.randn((self.SIZE, self.SIZE), dtype=torch.bfloat16, device=device) for _ in range(2)
        )
        self._out = torch.empty_like(self._left)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._milliseconds: list[float] = []
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._stop.clear()
        self._milliseconds, self._error = [], None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> float:
        """Mean milliseconds of a product since `begin`, the first ones left out."""
        assert self._thread is not None
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        counted = self._milliseconds[2 * self.AHEAD :]
        return sum(counted) / len(counted)

    def run_for(self, seconds: float) -> float:
        self.begin()
        self._stop.wait(seconds)
        return self.end()

    def _run(self) -> None:
        torch = self._torch
        try:
            torch.cuda.set_device(self._device)
            with torch.cuda.stream(torch.cuda.Stream(self._device)):
                first = torch.cuda.Event(enable_timing=True)
                first.record()
                waiting = [first]
                while not self._stop.is_set():
                    torch.mm(self._left, self._right, out=self._out)
                    mark = torch.cuda.Event(enable_timing=True)
                    mark.record()
                    waiting.append(mark)
                    if len(waiting) <= self.AHEAD:
                        continue
                    waiting[1].synchronize()
                    self._milliseconds.append(waiting[0].elapsed_time(waiting[1]))
                    waiting.pop(0)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:  # For whoever calls end.
            self._error = error
