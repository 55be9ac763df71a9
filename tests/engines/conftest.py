"""What the tests of several engines use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import weightcast as wc


@pytest.fixture
def controller() -> Iterator[str]:
    with wc.Controller("127.0.0.1:0") as running:
        yield running.address


@pytest.fixture
def started() -> Iterator[list[Any]]:
    """Processes that a test adds; ended with it."""
    found: list[Any] = []
    yield found
    for one in found:
        one.end()
