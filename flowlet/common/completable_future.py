"""``CompletableFuture``: a value that a running job will have.

Side:   pure.  ``result()`` waits by calling what it was made with; it holds no lock and starts nothing.
Source: PyFlink ``pyflink.common.completable_future``.
Absent: ``cancel`` and ``cancelled``: to end a job, cancel its client.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """A value that is there later.

    Threading: any thread may ask; callers that ask at the same time each wait for the same value.

    Args:
        wait: returns the value, or raises the error, once it is there; called again gives the same.
        is_done: whether ``wait`` would return or raise at once.
    """

    __slots__ = ("_is_done", "_wait")

    def __init__(self, wait: Callable[[], T], is_done: Callable[[], bool]) -> None:
        self._wait = wait
        self._is_done = is_done

    @staticmethod
    def completed(value: T) -> "CompletableFuture[T]":
        """A future that has its value already."""
        return CompletableFuture(lambda: value, lambda: True)

    def done(self) -> bool:
        """Whether the value, or the error, is there."""
        return self._is_done()

    def result(self) -> T:
        """Wait for the value.

        Raises:
            FlowletError: the job failed or was cancelled; as its ``wait`` says.
        """
        return self._wait()

    def exception(self) -> Exception | None:
        """Wait, and return the error instead of raising it; None when there is a value."""
        try:
            self._wait()
        except Exception as error:  # noqa: BLE001  # handed to the caller, not swallowed
            return error
        return None

    def __str__(self) -> str:
        return f"CompletableFuture({'done' if self._is_done() else 'pending'})"
