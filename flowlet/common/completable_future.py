"""``CompletableFuture``: a value that a running job will have.

Side:   pure.  ``result()`` waits by calling the function given; it holds no lock and starts nothing.
Source: PyFlink ``pyflink.common.completable_future``.
        ``exception()`` waits, as Python's own futures do; PyFlink's returns None as long as there is no outcome.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from flowlet.errors import FlowletError, without_our_frames

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """A value that is set later; any thread may ask, and all get one value.

    ``wait`` waits for the value, and returns it or raises the error, on each call that one value or error.
    ``is_done``: whether ``wait`` would return or raise at once.
    """

    __slots__ = ("_is_cancelled", "_is_done", "_wait")

    def __init__(self, wait: Callable[[], T], is_done: Callable[[], bool]) -> None:
        self._wait = wait
        self._is_done = is_done
        self._is_cancelled = False  # Written by the thread that cancels; read anywhere.

    @staticmethod
    def completed(value: T) -> "CompletableFuture[T]":
        """Make a future that has its value."""
        return CompletableFuture(lambda: value, lambda: True)

    def cancel(self) -> bool:
        """Give up the value, unless there is one already; returns whether it was given up.

        The work that makes the value goes on: to end a job, call ``JobClient.cancel``.  A thread that waits in
        ``result`` already waits on.
        """
        if not self._is_cancelled and not self._is_done():
            self._is_cancelled = True
        return self._is_cancelled

    def cancelled(self) -> bool:
        """Whether the value was given up."""
        return self._is_cancelled

    def done(self) -> bool:
        """Whether there is a value or an error, or it was given up."""
        return self._is_cancelled or self._is_done()

    def result(self) -> T:
        """Wait for the value.  Raises FlowletError if the job failed or was cancelled, or if this future was."""
        if self._is_cancelled:
            raise FlowletError("the future was cancelled: its value is not known here")
        try:
            return self._wait()
        except FlowletError as error:
            raise without_our_frames(error) from error.__cause__

    def exception(self) -> Exception | None:
        """Wait, and return the error; None if there is a value."""
        try:
            self.result()  # waits for the value; ended by whoever sets it, as in result()
        except Exception as error:  # noqa: BLE001  # handed to the caller, not swallowed
            return error
        return None

    def __str__(self) -> str:
        return f"CompletableFuture({'done' if self.done() else 'pending'})"
