"""The function of an asynchronous call.

Side:   pure.  An instance is made in the user's program, pickled, and called by one task.
Source: PyFlink ``pyflink.datastream.functions.AsyncFunction``.
"""

from abc import abstractmethod
from typing import Any

from flowlet.datastream.function import Function

__all__ = ["AsyncFunction"]


class AsyncFunction(Function):
    """Any number of records for each record, from a coroutine; many of them run at the same time.

    Coroutines of all tasks of a process share one event loop: they must not block it.  ``open``, ``close`` and ``timeout`` are called on
    the task's thread, or, where they are written with ``async def``, on that loop, which is where clients with sessions want to be made.
    """

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """The records that take the place of ``value``, as a list; ``[]`` for none.

        An exception fails the job, unless a retry strategy asks for another attempt.
        """

    def timeout(self, value: Any) -> list[Any]:
        """The records that take the place of ``value`` when the time is over; the coroutine was cancelled before.

        Raises:
            TimeoutError: unless overridden; it fails the job.
        """
        raise TimeoutError(f"{type(self).__name__}.async_invoke() had no result in time")
