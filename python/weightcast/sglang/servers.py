"""The trainers' side: the calls that make SGLang servers take a version."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import Error, InvalidArgument, Unavailable


class Servers:
    """SGLang servers that take each version together. One trainer rank makes these calls.

        with servers.updating():
            update = trainer.publish(step)      # on every rank
        update.wait()

    urls: as "http://host:30000". api_key: SGLang's (admin) key, if it has one. timeout: seconds for one call.
    Requests that are running are retracted, keep their tokens, and go on with the new weights.
    """

    def __init__(self, urls: str | Sequence[str], *, api_key: str = "", timeout: float = 300.0) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        if not self._urls:
            raise InvalidArgument("give Servers the URL of at least one SGLang server")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Paused inside; at its end the servers take what was published inside, and generate again.

        If the body raises, they wait for a version in vain first, up to four minutes.
        """
        self.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Error):
                self.end()
            raise
        self.end()

    def begin(self) -> None:
        """Pauses all, and has those join that have not yet. Errors: none is paused."""
        try:
            self._everywhere(self._begin)
        except Error:
            with contextlib.suppress(Error):
                self._everywhere(self._go_on)
            raise

    def end(self) -> None:
        """Returns when all have switched. Errors name the server that did not; the others generate again."""
        self._everywhere(self._end)

    def _begin(self, url: str) -> None:
        self._call(url, "pause_generation", {"mode": "retract"})
        self._joined(url, self._call(url, "begin_weight_update", {}))

    def _end(self, url: str) -> None:
        try:
            self._joined(url, self._call(url, "end_weight_update", {}))
            self._call(url, "flush_cache")
        finally:
            self._go_on(url)

    def _go_on(self, url: str) -> None:
        self._call(url, "continue_generation", {})

    def _joined(self, url: str, answer: str) -> None:
        """Without its plugin, SGLang answers the same calls with success and updates nothing."""
        if "weightcast" not in answer:
            raise InvalidArgument(
                f"{url} runs without weightcast: install it beside SGLang, set WEIGHTCAST_CONTROLLER there, "
                "and leave it in SGLANG_PLUGINS if that is set; if all is so, its log says what failed"
            )

    def _everywhere(self, step: Callable[[str], None]) -> None:
        """At the same time: servers wait for each other."""
        with concurrent.futures.ThreadPoolExecutor(len(self._urls)) as threads:
            done = [threads.submit(step, url) for url in self._urls]
        for one in done:
            one.result()

    def _call(self, url: str, path: str, body: dict[str, Any] | None = None) -> str:
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(f"{url.rstrip('/')}/{path}", data, self._headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return response.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, TypeError, KeyError):
                text = json.loads(text)["message"]
            raise Error(f"the SGLang server {url} refused {path}: {text}; see its log") from None
        except OSError as error:
            raise Unavailable(
                f"no answer from the SGLang server {url} to {path}: {error}; check that it runs there"
            ) from None
