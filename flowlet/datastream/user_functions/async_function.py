"""The function of an asynchronous call.

Side:   pure.  An instance is made in the user's program, pickled, and called by one task.
Source: PyFlink ``pyflink.datastream.functions.AsyncFunction``.
"""

from abc import abstractmethod
from typing import Generic

from flowlet.datastream.user_functions.argument_checks import IN, OUT
from flowlet.datastream.user_functions.function import Function


class AsyncFunction(Function, Generic[IN, OUT]):
    """Returns any number of records for each record, from a coroutine; many of them run at once.

    The coroutines of all tasks of a process share one event loop, so they must not block.  ``open``, ``close`` and
    ``timeout`` run on the task's thread; written with ``async def``, they run on that loop, where clients with sessions
    should be made.
    """

    @abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]:
        """The records that replace ``value``, as a list; ``[]`` for none.

        An exception fails the job, unless a retry strategy asks for another attempt.
        """

    def timeout(self, value: IN) -> list[OUT]:
        """The records that replace ``value`` after the timeout; the coroutine was cancelled before.

        Raises:
            TimeoutError: unless overridden; it fails the job.
        """
        raise TimeoutError(f"Async function call has timed out for input: {value}")
