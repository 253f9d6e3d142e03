"""Common predicates for retry strategies.

Side:   pure.
Source: PyFlink ``pyflink.datastream.async_retry_predicates``.
"""

from typing import Any

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: list[Any] | None) -> bool:
    """Whether there is no result."""
    return not result


def has_exception_predicate(error: BaseException | None) -> bool:
    """Whether there is an exception of any type."""
    return error is not None


def exception_type_predicate(error: BaseException | None, expected_error_type: type[BaseException]) -> bool:
    """Whether there is an exception of this type; bind the type with a lambda or ``functools.partial``."""
    return isinstance(error, expected_error_type)
