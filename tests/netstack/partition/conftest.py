"""Fixtures for the tests of partitions, whose threads are woken or wait for ever."""

import pytest

from tests.netstack.partition.doubles import Producing, Reading
from tests.waiting import LONG_S


@pytest.fixture(autouse=True)
def _no_time_slice_comes_to_the_rescue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake-up that got lost fails the test instead of being found by the next look around."""
    monkeypatch.setattr("netstack.buffer.local_buffer_pool.PARK_SLICE_S", LONG_S)


@pytest.fixture
def it() -> Reading:
    """A pipelined subpartition with its view; many files have a rig of their own."""
    return Reading()


@pytest.fixture
def small() -> Producing:
    """A partition with buffers of 16 bytes, so that records span them."""
    return Producing(segment=16)
