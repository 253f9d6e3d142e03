"""The function of an asynchronous call.

Side:   pure.  An instance is made in the user's program, pickled, and called by one task.
Source: PyFlink ``pyflink.datastream.functions.AsyncFunction``.
"""

from abc import abstractmethod
from typing import Any

from flowlet.datastream.user_functions.function import Function

__all__ = ["AsyncFunction"]


class AsyncFunction(Function):
    """Returns any number of records for each record, from a coroutine; many of them run at once.

    The coroutines of all tasks of a process share one event loop, so they must not block.  ``open``, ``close`` and ``timeout`` run on the
    task's thread; written with ``async def``, they run on that loop, where clients with sessions should be made.
    """

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """The records that replace ``value``, as a list; ``[]`` for none.

        An exception fails the job, unless a retry strategy asks for another attempt.
        """

    def timeout(self, value: Any) -> list[Any]:
        """The records that replace ``value`` after the timeout; the coroutine was cancelled before.

        Raises:
            TimeoutError: unless overridden; it fails the job.
        """
        raise TimeoutError(f"{type(self).__name__}.async_invoke() had no result in time")
