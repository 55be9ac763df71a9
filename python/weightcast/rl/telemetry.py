"""What engines tell of themselves through the queue: when they did what, and what they hold."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from .. import Corrupt, TimedOut
from .failures import other_release
from .report import Report
from .timeline import seconds_of, well_formed

_log = logging.getLogger("weightcast.rl")
_GONE_CHECK = 0.25  # Seconds between two looks at who is still here.
_VERSION = re.compile(r"[0-9]{1,18}")  # As an engine's digests name it.


class Telemetry:
    """What engines tell of themselves, as trainer 0 keeps it. Thread safe."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._changed = threading.Condition()
        self._digests: dict[int, dict[str, dict[str, str]]] = {}  # Version → engine → tensor → digest.
        self._compared: set[str] = set()  # The engines whose digests were compared last.
        self._spans: dict[int, list[tuple[float, float]]] = {}  # Iteration → when it was generated.

    def on(self, engine: str, telemetry: dict[str, Any]) -> None:
        """Raises ProtocolError for what no engine tells."""
        spans, digests = telemetry.get("spans") or [], telemetry.get("digests") or {}
        if not isinstance(spans, list) or not all(map(well_formed, spans)):
            raise other_release("it sent malformed spans of its timeline")
        if not isinstance(digests, dict) or not all(
            isinstance(version, str) and _VERSION.fullmatch(version) and _are_digests(one)
            for version, one in digests.items()
        ):
            raise other_release("it sent malformed digests of its weights")
        self._report.events(spans)
        with self._changed:
            for span in spans:
                if span["kind"] == "generate":
                    self._spans.setdefault(span["iteration"], []).append((span["start"], span["end"]))
            for version, one in digests.items():
                self._digests.setdefault(int(version), {})[engine] = one
            self._changed.notify_all()

    def generation_seconds(self, iteration: int) -> float:
        """In which some engine generated for it."""
        with self._changed:
            return seconds_of(self._spans.pop(iteration, []))

    def compare(
        self, version: int, ours: dict[str, str], engines: Callable[[], Collection[str]], timeout: float
    ) -> int:
        """Waits for the digests of all engines that are here at first and stay; how many have been compared.

        engines: says who is here. Of those that are not, or no longer, one that was compared last time is
        named in a warning. Raises Corrupt when an engine's tensor differs, TimedOut when one stays and says
        nothing.
        """
        expected, deadline = self._compared | set(engines()), time.monotonic() + timeout
        while True:
            here = set(engines())  # Not with our lock, which the queue takes while it has its own.
            with self._changed:
                silent = expected - set(self._digests.get(version, {}))
                left = deadline - time.monotonic()
                if not silent & here or left <= 0:
                    break
                self._changed.wait(min(left, _GONE_CHECK))
        for engine in sorted(silent - here):
            _log.warning(
                "version %d: engine %s has left, so its weights were not compared; its log says why it left",
                version,
                engine,
            )
        with self._changed:
            said = sorted(self._digests.get(version, {}).items())
            self._compared = {engine for engine, _ in said}
            self._digests = {one: found for one, found in self._digests.items() if one > version}
        for engine, theirs in said:
            for name in sorted(set(ours) | set(theirs)):
                if ours.get(name) != theirs.get(name):
                    raise Corrupt(
                        f"version {version}: {name} has SHA-256 {theirs.get(name)} at engine {engine} and "
                        f"{ours.get(name)} at the trainers; check memory and, between hosts, NICs and cables"
                    )
        if silent & here:
            names = ", ".join(sorted(silent & here))
            raise TimedOut(
                f"version {version}: no digests from {names} within {timeout:g} s; "
                "check that these engines run, and see their logs"
            )
        return len(said)


def _are_digests(one: Any) -> bool:
    return isinstance(one, dict) and all(type(text) is str for pair in one.items() for text in pair)
