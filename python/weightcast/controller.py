"""The controller as an object of this process."""

from __future__ import annotations

from . import _weightcast as _core
from .workers import Settings, _settings


class Controller:
    """The process that plans, inside this one. `weightcast controller` runs it alone."""

    def __init__(self, listen: str = "", *, settings: Settings | None = None, http: str = "") -> None:
        """`http`: "host:port" where the live page is served, port 0: any (docs/http.md)."""
        self._core = _core.CoreController.start(listen, _settings(settings), http)

    @property
    def address(self) -> str:
        """ "host:port" for the workers."""
        return self._core.address

    @property
    def http_address(self) -> str:
        """ "host:port" of the live page; empty without it."""
        return self._core.http_address

    def stop(self) -> None:
        self._core.stop()

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
