"""Decides whether an asynchronous call is tried again.

Side:       pure.
Invariants: the user's predicates are not called when no attempt is left.
Units:      milliseconds; attempts count from 1.
Source:     Flink ``AsyncWaitOperator.RetryableResultHandlerDelegator``.
"""

from typing import Any


class RetryPolicy:
    """Applies PyFlink's ``AsyncRetryStrategy`` to outcomes."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def __repr__(self) -> str:
        return f"<RetryPolicy of a {type(self._strategy).__name__}>"

    def delay_after_result(self, results: list[Any], num_attempts: int) -> int | None:
        """The delay before the next attempt; None if these results count."""
        return self._delay_after("result_predicate", results, num_attempts)

    def delay_after_error(self, error: BaseException, num_attempts: int) -> int | None:
        """The delay before the next attempt; None if the error counts, as an error that is no ``Exception`` always
        does.
        """
        return self._delay_after("exception_predicate", error, num_attempts) if isinstance(error, Exception) else None

    def _delay_after(self, kind: str, outcome: Any, num_attempts: int) -> int | None:
        if not self._strategy.can_retry(num_attempts):
            return None
        predicate = getattr(self._strategy.get_retry_predicate(), kind)()
        if predicate is None or not predicate(outcome):
            return None
        return max(0, int(self._strategy.get_backoff_time_millis(num_attempts)))
