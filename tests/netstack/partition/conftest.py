"""Fixtures for the stress tests of the shared modules."""

import sys
from collections.abc import Iterator

import pytest

from tests.waiting import LONG_S


@pytest.fixture
def tiny_switch_interval() -> Iterator[None]:
    """Let threads change places as often as the interpreter can manage."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _no_time_slice_comes_to_the_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that got lost fails the test instead of being found by the next look around."""
    monkeypatch.setattr("netstack.buffer.local_buffer_pool.PARK_SLICE_S", LONG_S)
