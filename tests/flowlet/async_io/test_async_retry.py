from typing import Any

import pytest

from flowlet.async_io.async_calls import Failed
from flowlet.async_io.async_wait_operator import retry_delay_ms
from flowlet.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy


def test_an_outcome_that_the_predicate_wants_is_tried_again_until_no_attempt_is_left() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, empty_result_predicate, has_exception_predicate)

    assert [retry_delay_ms(strategy, [], attempts) for attempts in (1, 2, 3)] == [50, 50, None]
    assert [retry_delay_ms(strategy, Failed(ValueError()), attempts) for attempts in (1, 2, 3)] == [50, 50, None]
    assert retry_delay_ms(strategy, ["something"], 1) is None


def test_without_a_predicate_the_first_outcome_counts() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, None, None)

    assert retry_delay_ms(strategy, [], 1) is None
    assert retry_delay_ms(strategy, Failed(ValueError()), 1) is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
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
