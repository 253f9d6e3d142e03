"""Strategies that decide whether an asynchronous call is tried again, and after how long.

Side:       pure.  A strategy is made in the user's program, pickled with the function, and called on the task's thread.
Invariants: a strategy has no state: one serves all records of a task, whose attempts are interleaved.
Units:      delays in milliseconds; attempts count from 1, so ``max_attempts`` is the number of repetitions, as in
            Flink.
Source:     PyFlink ``pyflink.datastream.async_retry_strategies``, and two interfaces of
            ``pyflink.datastream.functions``, because the factories need both.  PyFlink's exponential strategy remembers
            the last delay, which mixes up records; this one computes it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeAlias

from flowlet.common.checks import check_number
from flowlet.datastream.user_functions.argument_checks import OUT
from flowlet.errors import JobGraphError

__all__ = [
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

ResultPredicate: TypeAlias = Callable[[list[OUT]], bool] | None
ExceptionPredicate: TypeAlias = Callable[[Exception], bool] | None


class AsyncRetryPredicate(ABC, Generic[OUT]):
    """Decides which outcomes are tried again."""

    @abstractmethod
    def result_predicate(self) -> ResultPredicate[OUT]:
        """The function that tells whether a result is tried again; None: no result is."""

    @abstractmethod
    def exception_predicate(self) -> ExceptionPredicate:
        """The function that tells whether an exception is tried again; None: no exception is."""


class AsyncRetryStrategy(ABC, Generic[OUT]):
    """Decides how often, when and why an asynchronous call is tried again."""

    @abstractmethod
    def can_retry(self, current_attempts: int) -> bool:
        """Whether another attempt is allowed after this many."""

    @abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The delay before the next attempt in milliseconds."""

    @abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """The predicate that decides which outcomes are tried again."""

    @staticmethod
    def no_restart() -> "AsyncRetryStrategy":
        """Never try again."""
        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate[OUT],
        exception_predicate: ExceptionPredicate,
    ) -> "AsyncRetryStrategy":
        """Try again up to ``max_attempts`` times, each time after ``backoff_time_millis``."""
        return FixedDelayRetryStrategy(max_attempts, backoff_time_millis, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate[OUT],
        exception_predicate: ExceptionPredicate,
    ) -> "AsyncRetryStrategy":
        """Try again up to ``max_attempts`` times; each delay is ``multiplier`` times the last one, at most
        ``max_retry_delay``.
        """
        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class RetryPredicate(AsyncRetryPredicate[OUT]):
    """Holds the two predicates."""

    def __init__(self, result_predicate: ResultPredicate[OUT], exception_predicate: ExceptionPredicate) -> None:
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate[OUT]:
        """The function that tells whether a result is tried again."""
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate:
        """The function that tells whether an exception is tried again."""
        return self._exception_predicate


class NoRetryStrategy(AsyncRetryStrategy[OUT]):
    """Never tries again."""

    def can_retry(self, current_attempts: int) -> bool:
        """Return False."""
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Return -1: there is no next attempt."""
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """A predicate by which no outcome is tried again."""
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy[OUT]):
    """Waits equally long before every repetition.  Raises JobGraphError if an argument is not positive."""

    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: ResultPredicate[OUT],
        exception_predicate: ExceptionPredicate,
    ) -> None:
        self._max_attempts = _positive("max_attempts", max_attempts)
        self._backoff_time_ms = _positive("backoff_time_millis", backoff_time_millis)
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """Whether another attempt is allowed after this many."""
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """The delay, which does not depend on the attempt."""
        return self._backoff_time_ms

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """The two predicates."""
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy[OUT]):
    """Waits ``multiplier`` times as long before each repetition as before the last one, at most ``max_retry_delay``.

    Raises:
        JobGraphError: an argument is not positive.
    """

    def __init__(
        self,
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: ResultPredicate[OUT],
        exception_predicate: ExceptionPredicate,
    ) -> None:
        self._max_attempts = _positive("max_attempts", max_attempts)
        self._initial_delay_ms = _positive("initial_delay", initial_delay)
        self._max_delay_ms = _positive("max_retry_delay", max_retry_delay)
        given: Any = multiplier
        if not isinstance(given, int | float) or isinstance(given, bool) or not 0 < given < float("inf"):
            raise JobGraphError(f"a retry strategy needs a multiplier greater than 0, got {multiplier!r}")
        self._multiplier = multiplier
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        """Whether another attempt is allowed after this many."""
        return current_attempts <= self._max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """``initial_delay`` after the first attempt, limited from the second on."""
        if current_attempts <= 1:
            return self._initial_delay_ms
        try:
            delay_ms = self._initial_delay_ms * float(self._multiplier) ** (current_attempts - 1)
        except OverflowError:
            return self._max_delay_ms
        return int(min(delay_ms, self._max_delay_ms))

    def get_retry_predicate(self) -> AsyncRetryPredicate[OUT]:
        """The two predicates."""
        return self._predicate


def _positive(name: str, number: int) -> int:
    check_number(number, 1, f"a retry strategy needs {name} of 1 or more")
    return number
