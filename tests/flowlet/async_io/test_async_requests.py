"""Promises of deadlines and repeated attempts.

Source: Flink ``AsyncWaitOperatorTest``, its tests of timeouts and of retries.
"""

from typing import Any

import pytest

from flowlet.async_io.async_calls import Failed
from flowlet.async_io.async_wait_operator import AsyncWaitStatistics, retry_delay_ms
from flowlet.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.errors import UserFunctionError
from flowlet.records import Watermark
from tests.flowlet.async_io.async_harness import AsyncHarness, Doubler

BOTH_ORDERS = pytest.mark.parametrize("is_ordered", [True, False])


class Patient(Doubler):
    """A doubler with an answer of its own when the time is over."""

    def timeout(self, value: Any) -> list[Any]:
        return [f"instead of {value}"]


class Asking(Doubler):
    """A doubler that asks another coroutine when the time is over."""

    async def timeout(self, value: Any) -> list[Any]:  # type: ignore[override]  # allowed to users, who are not checked
        raise NotImplementedError


class Confused(Doubler):
    def timeout(self, value: Any) -> list[Any]:
        return 7  # type: ignore[return-value]  # what users do


async def lookup(value: Any) -> list[Any]:
    raise NotImplementedError


def fixed_delay(max_attempts: int = 2) -> AsyncRetryStrategy:
    return AsyncRetryStrategy.fixed_delay(max_attempts, 50, empty_result_predicate, has_exception_predicate)


# -- deadlines


def test_a_call_that_takes_too_long_fails_the_task() -> None:
    """The task fails by PyFlink's default."""
    harness = AsyncHarness(timeout_ms=1000)
    harness.process("a")
    harness.advance(999)

    with pytest.raises(UserFunctionError, match="the record 'a'") as caught:
        harness.advance(1)

    assert isinstance(caught.value.__cause__, TimeoutError)
    assert "too late: a" in str(caught.value.__cause__)
    assert caught.value.__cause__.__notes__ == ["raised by timeout(), after 1000 ms without a result"]


def test_a_plain_coroutine_function_that_takes_too_long_fails_the_task() -> None:
    harness = AsyncHarness(lookup, timeout_ms=1000)
    harness.process("a")

    with pytest.raises(UserFunctionError) as caught:
        harness.advance(1000)

    assert repr(caught.value.__cause__) == "TimeoutError('no result within 1000 ms')"


@BOTH_ORDERS
def test_a_function_may_have_another_answer_when_the_time_is_over(is_ordered: bool) -> None:
    """testAsyncTimeoutIgnore: the call is interrupted and its record takes no more place."""
    harness = AsyncHarness(Patient(), timeout_ms=1000, is_ordered=is_ordered)
    harness.process("a", "b", timestamps=[1, 2])
    harness.operator.process_watermark(Watermark(2))
    harness.end("b", ["B"])

    harness.advance(1000)

    assert harness.elements == (["instead of a", "B"] if is_ordered else ["B", "instead of a"]) + [Watermark(2)]
    assert harness.calls.cancelled == ["a"]
    assert harness.operator.statistics() == AsyncWaitStatistics(num_in_queue=0, num_retries=0, num_timeouts=1)


def test_an_outcome_after_the_deadline_is_ignored() -> None:
    """testTimeoutAfterComplete, the other way round: one outcome counts."""
    harness = AsyncHarness(Patient(), timeout_ms=1000)
    harness.process("a")
    late = harness.calls.running[0]
    harness.advance(1000)

    harness.calls.running.append(late)
    harness.end("a", ["late"])

    assert harness.elements == ["instead of a"]


def test_an_outcome_that_came_before_the_deadline_counts() -> None:
    """testTimeoutAfterComplete: also when its mail has not run yet."""
    harness = AsyncHarness(timeout_ms=1000)
    harness.process("a", "b")
    harness.end("b", ["B"])
    harness.calls.end("a", ["A"])

    harness.advance(1000)
    harness.run_mails()

    assert harness.elements == ["A", "B"]


def test_the_timer_of_a_batch_goes_with_its_last_record() -> None:
    """Without a timeout there is no timer."""
    untimed = AsyncHarness(timeout_ms=0)
    untimed.process("a")
    assert untimed.clock.num_timers == 0
    harness = AsyncHarness(timeout_ms=1000)
    harness.process("a", "b")
    harness.process("c")

    at_first = harness.clock.num_timers
    harness.end("a", [])
    harness.end("c", [])
    after_two = harness.clock.num_timers
    harness.end("b", [])

    assert (at_first, after_two, harness.clock.num_timers) == (2, 1, 0)


def test_closing_calls_off_the_timers() -> None:
    harness = AsyncHarness(timeout_ms=1000, retry_strategy=fixed_delay())
    harness.process("a", "b")
    harness.end("a", [])
    armed = harness.clock.num_timers

    harness.close()

    assert (armed, harness.clock.num_timers) == (2, 0)


def test_a_timer_that_was_on_its_way_when_it_was_called_off_does_nothing() -> None:
    """Users' code runs neither after the last result of its batch nor after close."""
    harness = AsyncHarness(timeout_ms=1000, retry_strategy=fixed_delay())
    harness.process("a")
    harness.process("b")
    harness.end("b", [])
    harness.calls.end("a", ["A"])
    harness.run_mails()
    harness.close()

    assert len(harness.clock.registered) == 3
    for timer in harness.clock.registered:
        timer.callback(1000)

    assert harness.elements == ["A"]
    assert harness.calls.started == ["a", "b"]


def test_only_the_records_without_a_result_are_too_late() -> None:
    """Results of other records in the batch count in whatever order they arrive."""
    harness = AsyncHarness(Patient(), timeout_ms=1000)
    harness.process("a", "b", "c")
    harness.end("a", ["A"])
    harness.end("c", ["C"])

    harness.advance(1000)

    assert harness.elements == ["A", "instead of b", "C"]
    assert harness.operator.statistics().num_timeouts == 1


def test_records_that_came_later_have_their_own_deadline() -> None:
    harness = AsyncHarness(Patient(), timeout_ms=1000)
    harness.process("a")
    harness.advance(400)
    harness.process("b")

    harness.advance(600)

    assert harness.elements == ["instead of a"]
    harness.advance(400)
    assert harness.elements == ["instead of a", "instead of b"]


def test_the_answer_to_a_deadline_may_be_a_coroutine() -> None:
    """The coroutine that answers a deadline has no deadline of its own, and is not repeated."""
    harness = AsyncHarness(Asking(), timeout_ms=1000, retry_strategy=fixed_delay())
    harness.process("a")

    harness.advance(1000)
    harness.advance(5000)
    asked = [call.function.__name__ for call in harness.calls.running]
    harness.end("a", [])

    assert asked == ["timeout"]
    assert len(harness.operator.queue) == 0
    assert harness.operator.statistics().num_retries == 0


def test_an_answer_to_a_deadline_that_is_no_list_is_refused() -> None:
    harness = AsyncHarness(Confused(), timeout_ms=1000)
    harness.process("a")

    with pytest.raises(UserFunctionError) as caught:
        harness.advance(1000)

    assert "got 7 of type int" in str(caught.value.__cause__)


# -- attempts


@BOTH_ORDERS
def test_a_call_is_repeated_until_its_result_is_good(is_ordered: bool) -> None:
    """testProcessingTimeWithRetry: no result and exceptions ask for another attempt after the delay."""
    harness = AsyncHarness(is_ordered=is_ordered, retry_strategy=fixed_delay())
    harness.process("a", "b", timestamps=[1, 2])

    harness.end("a", [])
    harness.end("b", ["B"])
    harness.advance(49)
    waiting = list(harness.calls.started)
    harness.advance(1)
    harness.end("a", OSError())
    harness.advance(50)
    harness.end("a", ["A"])

    assert waiting == ["a", "b"]
    assert harness.calls.started == ["a", "b", "a", "a"]
    assert harness.elements == (["A", "B"] if is_ordered else ["B", "A"])
    assert harness.operator.statistics() == AsyncWaitStatistics(num_in_queue=0, num_retries=2, num_timeouts=0)
    assert harness.clock.num_timers == 0


def test_the_last_attempt_counts_whatever_it_comes_to() -> None:
    harness = AsyncHarness(retry_strategy=fixed_delay(max_attempts=1))
    harness.process("a", "b")

    harness.end("a", [])
    harness.end("b", OSError("first"))
    harness.advance(50)
    harness.end("a", [])

    assert harness.operator.statistics().num_in_queue == 1
    with pytest.raises(UserFunctionError) as caught:
        harness.end("b", OSError("second"))
    assert repr(caught.value.__cause__) == "OSError('second')"


def test_the_deadline_is_that_of_all_attempts() -> None:
    """testProcessingTimeAlwaysTimeoutFunctionWithRetry: it also ends the wait for the next one."""
    harness = AsyncHarness(Patient(), timeout_ms=70, retry_strategy=fixed_delay(max_attempts=9))
    harness.process("a")
    harness.end("a", [])
    harness.advance(50)
    harness.end("a", [])

    harness.advance(20)
    armed = harness.clock.num_timers
    harness.advance(1000)

    assert armed == 0
    assert harness.elements == ["instead of a"]
    assert harness.calls.started == ["a", "a"]


def test_attempts_go_on_after_the_end_of_the_input() -> None:
    """Attempts keep their delays until one counts: a call that fails once does not end a bounded job."""
    harness = AsyncHarness(retry_strategy=fixed_delay(max_attempts=3))
    harness.process("a", "b", "c")
    harness.end("b", [])
    harness.end("a", [])
    harness.when_parked(
        lambda: harness.calls.end("c", []),
        lambda: harness.advance(50),
        lambda: harness.calls.end("b", ["B"]),
        lambda: harness.calls.end("a", []),
        lambda: harness.calls.end("c", ["C"]),
        lambda: harness.advance(50),
        lambda: harness.calls.end("a", ["A"]),
    )

    harness.operator.end_input(1)

    assert sorted(harness.calls.started) == ["a", "a", "a", "b", "b", "c", "c"]
    assert sorted(harness.elements) == ["A", "B", "C"]
    assert harness.clock.num_timers == 0


def test_an_exception_of_a_predicate_names_the_record() -> None:
    def broken(results: list[Any]) -> bool:
        raise ZeroDivisionError

    harness = AsyncHarness(retry_strategy=AsyncRetryStrategy.fixed_delay(2, 50, broken, None))
    harness.process("a")

    with pytest.raises(UserFunctionError, match="the record 'a'") as caught:
        harness.end("a", [])

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__cause__.__notes__ == ["raised by the retry strategy"]


# -- the delay of the next attempt


def test_an_outcome_that_the_predicate_wants_is_tried_again_until_no_attempt_is_left() -> None:
    strategy = fixed_delay()

    assert [retry_delay_ms(strategy, [], attempts) for attempts in (1, 2, 3)] == [50, 50, None]
    assert [retry_delay_ms(strategy, Failed(ValueError()), attempts) for attempts in (1, 2, 3)] == [50, 50, None]
    assert retry_delay_ms(strategy, ["something"], 1) is None


def test_without_a_predicate_the_first_outcome_counts() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, None, None)

    assert retry_delay_ms(strategy, [], 1) is None
    assert retry_delay_ms(strategy, Failed(ValueError()), 1) is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_is_no_exception_is_never_tried_again(error: BaseException) -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, None, has_exception_predicate)

    assert retry_delay_ms(strategy, Failed(error), 1) is None


def test_predicates_are_not_asked_when_no_attempt_is_left() -> None:
    asked: list[Any] = []

    def ask(results: list[Any]) -> bool:
        asked.append(results)
        return False

    strategy = AsyncRetryStrategy.fixed_delay(1, 50, ask, None)

    retry_delay_ms(strategy, [1], 2)
    retry_delay_ms(strategy, [2], 1)

    assert asked == [[2]]


def test_a_negative_delay_is_none() -> None:
    """A user's own strategy may compute one; a timer in the past would be no error, either."""

    class Hasty(AsyncRetryStrategy):
        def can_retry(self, current_attempts: int) -> bool:
            return True

        def get_backoff_time_millis(self, current_attempts: int) -> int:
            return -3

        def get_retry_predicate(self) -> Any:
            return AsyncRetryStrategy.fixed_delay(1, 1, empty_result_predicate, None).get_retry_predicate()

    assert retry_delay_ms(Hasty(), [], 1) == 0
