"""``EmbeddedEventLoop``: functions and timers run when the test says so."""

import threading

import pytest

from netstack.errors import ResourceClosedError
from netstack.testing import EmbeddedEventLoop, ManualClock


def test_functions_run_in_run_pending_in_order() -> None:
    """Functions of other threads, and functions that functions post, run in ``run_pending``, too."""
    loop, seen = EmbeddedEventLoop(), list[str]()
    loop.execute_threadsafe(seen.append, "first")
    loop.execute_threadsafe(lambda: loop.execute_threadsafe(seen.append, "posted"))
    other = threading.Thread(target=loop.execute_threadsafe, args=(seen.append, "other thread"))
    other.start()
    other.join()

    assert seen == []
    assert loop.run_pending() > 0

    assert seen == ["first", "other thread", "posted"]
    assert loop.run_pending() == 0
    assert loop.is_current_thread()


def test_timers_run_when_they_are_due() -> None:
    """Timers run in the order of their times, each at its own time; cancelled ones never run."""
    loop, seen = EmbeddedEventLoop(ManualClock(1_000)), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, loop.loop.time()))

    loop.loop.call_later(2, note, "two")
    loop.loop.call_later(1, note, "one")
    cancelled = loop.loop.call_later(1.5, note, "cancelled")
    loop.loop.call_later(9, note, "nine")
    cancelled.cancel()

    loop.advance(1.9)
    assert [name for name, _ in seen] == ["one"]
    loop.advance(0.1)

    assert [name for name, _ in seen] == ["one", "two"]
    assert [when for _, when in seen] == pytest.approx([1.000001, 2.000001])
    assert loop.num_timers == 1
    assert loop.clock.now_ns() == 2_000_001_000


def test_a_timer_set_by_a_timer_runs_in_the_same_advance_if_it_is_due() -> None:
    """A timer that a timer sets runs in this advance if it is due: time goes from timer to timer."""
    loop, seen = EmbeddedEventLoop(), list[float]()

    def again() -> None:
        seen.append(loop.loop.time())
        loop.loop.call_later(1, again)

    loop.loop.call_later(1, again)
    loop.advance(3.5)

    assert seen == [1, 2, 3]


def test_the_first_error_is_raised_after_everything_ran() -> None:
    """No error is lost, and no function either."""
    loop, seen = EmbeddedEventLoop(), list[str]()

    def fail() -> None:
        raise ValueError("broken")

    loop.execute_threadsafe(fail)
    loop.execute_threadsafe(seen.append, "after")
    loop.loop.call_soon(seen.append, "callback")

    with pytest.raises(ValueError, match="broken"):
        loop.run_pending()
    assert seen == ["after", "callback"]
    assert loop.run_pending() == 0


def test_functions_that_post_each_other_for_ever_are_found() -> None:
    """A test fails instead of hanging."""
    loop = EmbeddedEventLoop()

    def again() -> None:
        loop.execute_threadsafe(again)

    again()

    with pytest.raises(AssertionError, match="still not done"):
        loop.run_pending()


def test_a_closed_loop_refuses() -> None:
    """Functions that it accepted before are executed by ``close``, as in production."""
    loop, seen = EmbeddedEventLoop(), list[str]()
    loop.execute_threadsafe(seen.append, "accepted")

    loop.close()

    assert seen == ["accepted"]
    with pytest.raises(ResourceClosedError):
        loop.execute_threadsafe(seen.append, "refused")


# ---------------------------------------------------------------- ``ManualClock``


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
