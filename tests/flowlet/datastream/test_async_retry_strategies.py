from functools import partial
from typing import Any, cast

import cloudpickle
import pytest

from flowlet.datastream.async_retry_predicates import (
    empty_result_predicate,
    exception_type_predicate,
    has_exception_predicate,
)
from flowlet.datastream.async_retry_strategies import (
    AsyncRetryStrategy,
    ExponentialBackoffDelayRetryStrategy,
    FixedDelayRetryStrategy,
    NoRetryStrategy,
)
from flowlet.errors import JobGraphError


def test_no_retry_never_retries() -> None:
    strategy = AsyncRetryStrategy.no_restart()

    assert isinstance(strategy, NoRetryStrategy)
    assert not strategy.can_retry(1)
    assert strategy.get_backoff_time_millis(1) == -1
    predicate = strategy.get_retry_predicate()
    assert (predicate.result_predicate(), predicate.exception_predicate()) == (None, None)


def test_a_fixed_delay_is_the_same_for_every_attempt() -> None:
    """The strategy repeats after the first and after the second attempt."""
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, empty_result_predicate, has_exception_predicate)

    assert isinstance(strategy, FixedDelayRetryStrategy)
    assert [strategy.can_retry(attempts) for attempts in (1, 2, 3)] == [True, True, False]
    assert [strategy.get_backoff_time_millis(attempts) for attempts in (1, 2)] == [50, 50]
    predicate = strategy.get_retry_predicate()
    assert (predicate.result_predicate(), predicate.exception_predicate()) == (
        empty_result_predicate,
        has_exception_predicate,
    )


def test_an_exponential_delay_grows_up_to_its_limit() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(5, 10, 70, 2.0, None, has_exception_predicate)

    assert isinstance(strategy, ExponentialBackoffDelayRetryStrategy)
    assert [strategy.can_retry(attempts) for attempts in (1, 5, 6)] == [True, True, False]
    assert [strategy.get_backoff_time_millis(attempts) for attempts in (1, 2, 3, 4, 5)] == [10, 20, 40, 70, 70]
    assert strategy.get_retry_predicate().exception_predicate() is has_exception_predicate


def test_the_attempts_of_different_records_do_not_mix() -> None:
    """The delay depends on the attempt alone, not on the record that asked before."""
    strategy = AsyncRetryStrategy.exponential_backoff(5, 10, 1000, 3.0, None, None)

    first = strategy.get_backoff_time_millis(3)
    strategy.get_backoff_time_millis(1)

    assert (first, strategy.get_backoff_time_millis(3), strategy.get_backoff_time_millis(2)) == (90, 90, 30)


def test_a_delay_too_great_for_a_float_is_the_limit() -> None:
    strategy = AsyncRetryStrategy.exponential_backoff(10_000, 10, 99, 1e10, None, None)

    assert strategy.get_backoff_time_millis(9_999) == 99


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(FixedDelayRetryStrategy, 0, 1, None, None), "max_attempts of 1 or more, got 0"),
        (partial(FixedDelayRetryStrategy, 1, 0, None, None), "backoff_time_millis of 1 or more, got 0"),
        (lambda: FixedDelayRetryStrategy(1, cast("int", 1.5), None, None), "backoff_time_millis of 1 or more, got 1.5"),
        (
            partial(ExponentialBackoffDelayRetryStrategy, True, 1, 1, 2, None, None),
            "max_attempts of 1 or more, got True",
        ),
        (partial(ExponentialBackoffDelayRetryStrategy, 1, 0, 1, 2, None, None), "initial_delay of 1 or more, got 0"),
        (
            partial(ExponentialBackoffDelayRetryStrategy, 1, 1, -1, 2, None, None),
            "max_retry_delay of 1 or more, got -1",
        ),
        (partial(ExponentialBackoffDelayRetryStrategy, 1, 1, 1, 0, None, None), "multiplier greater than 0, got 0"),
        (
            partial(ExponentialBackoffDelayRetryStrategy, 1, 1, 1, float("nan"), None, None),
            "multiplier greater than 0, got nan",
        ),
        (
            lambda: ExponentialBackoffDelayRetryStrategy(1, 1, 1, cast("float", "2"), None, None),
            "multiplier greater than 0, got '2'",
        ),
    ],
)
def test_wrong_numbers_are_refused_while_the_program_is_built(make: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        make()


def test_a_strategy_travels_with_its_function() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(2, 50, lambda results: len(results) > 1, None)

    arrived = cloudpickle.loads(cloudpickle.dumps(strategy))

    assert arrived.get_retry_predicate().result_predicate()([1, 2])


def test_ready_made_predicates() -> None:
    assert empty_result_predicate([])
    assert empty_result_predicate(None)
    assert not empty_result_predicate([None])
    assert has_exception_predicate(ValueError())
    assert not has_exception_predicate(None)
    assert exception_type_predicate(ConnectionResetError(), ConnectionError)
    assert not exception_type_predicate(ValueError(), ConnectionError)
    assert not exception_type_predicate(None, ConnectionError)
