"""``ManualClock``: a clock that only the test moves."""

import pytest

from netstack.testing import ManualClock


def test_time_passes_only_when_it_is_told_to() -> None:
    """Time begins at the given point and passes by the given durations."""
    clock = ManualClock(now_ns=5)

    before = (clock.now_ns(), clock.now_ns())
    clock.advance(10)
    clock.advance(0)

    assert before == (5, 5)
    assert clock.now_ns() == 15
    assert repr(clock) == "<ManualClock at 15 ns>"


def test_time_does_not_go_back() -> None:
    """A monotonic clock."""
    clock = ManualClock()

    with pytest.raises(ValueError, match="back by 1 ns"):
        clock.advance(-1)
    assert clock.now_ns() == 0
