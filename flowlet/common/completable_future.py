"""``CompletableFuture``: a value that a running job will have.

Side:   pure.  ``result()`` waits by calling the function given; it holds no lock and starts nothing.
Source: PyFlink ``pyflink.common.completable_future``.
Absent: ``cancel`` and ``cancelled``: cancel the job with its client instead.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """A value that is set later; any thread may ask, all get the same value.

    ``wait`` waits for the value, and returns it or raises the error, always the same.  ``is_done``: whether it would do so at once.
    """

    __slots__ = ("_is_done", "_wait")

    def __init__(self, wait: Callable[[], T], is_done: Callable[[], bool]) -> None:
        self._wait = wait
        self._is_done = is_done

    @staticmethod
    def completed(value: T) -> "CompletableFuture[T]":
        """A future that has its value."""
        return CompletableFuture(lambda: value, lambda: True)

    def done(self) -> bool:
        """Whether there is a value or an error."""
        return self._is_done()

    def result(self) -> T:
        """Wait for the value.  Raises FlowletError if the job failed or was cancelled."""
        return self._wait()

    def exception(self) -> Exception | None:
        """Wait, and return the error; None if there is a value."""
        try:
            self._wait()
        except Exception as error:  # noqa: BLE001  # handed to the caller, not swallowed
            return error
        return None

    def __str__(self) -> str:
        return f"CompletableFuture({'done' if self._is_done() else 'pending'})"
