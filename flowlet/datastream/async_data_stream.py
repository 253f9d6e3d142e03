"""``AsyncDataStream``: asynchronous calls for the records of a stream.

Side:   pure.
Source: PyFlink ``pyflink.datastream.async_data_stream``; as in Flink, a retry strategy requires a timeout.  Beyond
        PyFlink: a coroutine function in place of an ``AsyncFunction``, any length of time in place of a ``Time``, and a
        timeout of 0 for none.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from flowlet.common.checks import check_kind, check_number
from flowlet.common.time import Length, millis_of
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.user_functions.argument_checks import check_is_object, declared_type, name_of
from flowlet.datastream.user_functions.process_functions import AsyncFunction
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import OperatorFactory

__all__ = ["AsyncDataStream"]

DEFAULT_CAPACITY = 100

_Function: TypeAlias = AsyncFunction | Callable[[Any], Awaitable[list[Any]]]


class AsyncDataStream:
    """Adds asynchronous calls to a stream.

    All methods take:

    data_stream: the records to call for.
    async_function: an ``AsyncFunction``, or an ``async def`` function of one record; returns a list.
    timeout: for all attempts of one record together, from the start of its first call.
    capacity: how many records may wait for their results at once; a watermark between them counts as one, as in Flink.
        Further records wait unstarted, and are in the checkpoints; meanwhile no input is read.  Cancellation, timers,
        and checkpoints whose barriers have reached the task wait for no call.
    output_type: of the results.

    All methods raise JobGraphError for a wrong argument; the message names a right one.
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: _Function,
        timeout: Length,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Emit results as soon as they are complete; watermarks keep their place among them."""
        return _wait("unordered_wait", data_stream, async_function, timeout, capacity, output_type)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: _Function,
        timeout: Length,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Emit results as ``unordered_wait`` does; ``async_retry_strategy`` says which calls are tried again, and
        when.
        """
        return _wait(
            "unordered_wait_with_retry",
            data_stream,
            async_function,
            timeout,
            capacity,
            output_type,
            async_retry_strategy,
        )

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: _Function,
        timeout: Length,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Emit results in the order of their records: a slow call delays those behind it."""
        return _wait("ordered_wait", data_stream, async_function, timeout, capacity, output_type)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: _Function,
        timeout: Length,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = DEFAULT_CAPACITY,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Emit results as ``ordered_wait`` does; ``async_retry_strategy`` says which calls are tried again, and
        when.
        """
        return _wait(
            "ordered_wait_with_retry", data_stream, async_function, timeout, capacity, output_type, async_retry_strategy
        )


def _wait(
    method: str,
    stream: DataStream,
    function: _Function,
    timeout: Length,
    capacity: int,
    output_type: TypeInformation | None,
    retry_strategy: AsyncRetryStrategy | None = None,
) -> DataStream:
    check_kind(stream, DataStream, f"{method}() needs a DataStream")
    check_number(capacity, 1, f"{method}() needs a capacity of 1 or more records")
    timeout_ms = millis_of(timeout, f"{method}()")
    if timeout_ms < 0:
        raise JobGraphError(f"{method}() needs a timeout that is not negative, got {timeout_ms} ms")
    if method.endswith("_with_retry"):
        needs = f"{method}() needs a retry strategy such as AsyncRetryStrategy.fixed_delay(...)"
        check_kind(retry_strategy, AsyncRetryStrategy, needs)
        if timeout_ms == 0:
            raise JobGraphError(f"{method}() needs a timeout greater than 0: it ends the attempts")
    factory = OperatorFactory.of(
        "flowlet.async_io.async_wait_operator:AsyncWaitOperator",
        function=_checked_function(method, function),
        timeout_ms=timeout_ms,
        capacity=capacity,
        is_ordered=method.startswith("ordered"),
        retry_strategy=retry_strategy,
    )
    return stream._then("async wait operator", factory, declared_type(output_type))


def _checked_function(method: str, function: Any) -> Any:
    check_is_object(function, method)
    if not isinstance(function, AsyncFunction):
        if not inspect.iscoroutinefunction(function):
            raise JobGraphError(
                f"{method}() needs an AsyncFunction or an async def function of one record, got {name_of(function)}"
            )
    elif not inspect.iscoroutinefunction(function.async_invoke):
        raise JobGraphError(
            f"{method}(): async_invoke of {type(function).__name__} is an ordinary method; write it with async def"
        )
    return function
