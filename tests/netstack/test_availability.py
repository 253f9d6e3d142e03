"""``AvailabilityFuture`` and ``AvailabilityHelper``."""

import threading
from functools import partial

import pytest

from netstack.availability import AVAILABLE, AvailabilityFuture, AvailabilityHelper, run_all


def test_callbacks_run_once_in_order_when_completed() -> None:
    """Callbacks added before completion run when it comes, each exactly once."""
    future, seen = AvailabilityFuture(), []
    future.add_done_callback(lambda: seen.append("first"))
    future.add_done_callback(lambda: seen.append("second"))

    assert not seen
    future.complete()
    future.complete()

    assert seen == ["first", "second"]
    assert future.is_done


def test_a_callback_added_later_runs_at_once() -> None:
    """On a done future the caller's own thread runs the callback."""
    future, seen = AvailabilityFuture(), []
    future.complete()

    future.add_done_callback(lambda: seen.append(threading.get_ident()))

    assert seen == [threading.get_ident()]


def test_a_callback_may_use_the_future() -> None:
    """No lock is held while callbacks run."""
    future, seen = AvailabilityFuture(), []
    future.add_done_callback(lambda: future.add_done_callback(lambda: seen.append("inner")))

    future.complete()

    assert seen == ["inner"]


def test_a_callback_that_raises_does_not_silence_the_others() -> None:
    """Every callback runs; the caller gets the last error, the earlier one is its context."""
    future, seen = AvailabilityFuture(), []

    def fail(text: str) -> None:
        seen.append(text)
        raise OSError(text)

    future.add_done_callback(lambda: fail("first"))
    future.add_done_callback(lambda: seen.append("second"))
    future.add_done_callback(lambda: fail("third"))

    with pytest.raises(OSError, match="third") as caught:
        future.complete()

    assert seen == ["first", "second", "third"]
    assert str(caught.value.__context__) == "first"
    assert future.is_done


def test_racing_completions_and_callbacks_lose_nothing() -> None:
    """In every order of ``complete`` and ``add_done_callback`` each callback runs exactly once."""
    for _ in range(200):
        future, barrier = AvailabilityFuture(), threading.Barrier(2)
        seen: list[int] = []

        def complete(future: AvailabilityFuture = future, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            future.complete()

        thread = threading.Thread(target=complete)
        thread.start()
        barrier.wait()
        for number in range(5):
            future.add_done_callback(lambda number=number, seen=seen: seen.append(number))  # type: ignore[misc]  # default arguments bind now
        thread.join()

        assert sorted(seen) == list(range(5))


def test_the_helper_swaps_futures() -> None:
    """Unavailable -> available hands out the pending future once; a reset makes a fresh one only when it is done."""
    helper = AvailabilityHelper()
    pending = helper.future
    helper.reset_unavailable()
    assert helper.future is pending, "a pending future stays"

    to_complete = helper.unavailable_to_reset_available()

    assert to_complete is pending
    assert helper.future is AVAILABLE
    assert helper.is_available
    assert helper.unavailable_to_reset_available() is None
    helper.reset_unavailable()
    assert helper.future is not AVAILABLE
    assert not helper.is_available


def test_a_helper_may_start_available() -> None:
    """Output starts available, input does not."""
    assert AvailabilityHelper(is_available=True).is_available
    assert not AvailabilityHelper().is_available


def test_a_removed_callback_does_not_run() -> None:
    """Only the removed callback is dropped; removing an unknown one does nothing."""
    future, seen = AvailabilityFuture(), []

    def first() -> None:
        seen.append("first")

    future.add_done_callback(first)
    future.add_done_callback(lambda: seen.append("second"))
    future.remove_done_callback(first)
    future.remove_done_callback(first)
    future.complete()

    assert seen == ["second"]


# ---------------------------------------------------------------- ``run_all``


def test_any_number_of_calls_may_fail() -> None:
    """More calls may fail than the interpreter nests: all are made, and every error is the context of the next one."""
    made: list[int] = []

    def fail(number: int) -> None:
        made.append(number)
        raise RuntimeError(number)

    with pytest.raises(RuntimeError) as caught:
        run_all([partial(fail, number) for number in range(5000)])

    errors: list[BaseException | None] = [caught.value]
    while (error := errors[-1]) is not None:
        errors.append(error.__context__)
    assert made == list(range(5000))
    assert [str(error) for error in errors[:-1]] == [str(number) for number in reversed(made)]
