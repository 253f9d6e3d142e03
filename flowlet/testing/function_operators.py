"""``operator_of``: the operator that a job would use to run a user's function.

Side:   any.
Source: Flink ``ProcessFunctionTestHarnesses``.
"""

from typing import Any

from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from flowlet.datastream.user_functions.async_function import AsyncFunction
from flowlet.errors import JobGraphError
from flowlet.operators.co_functions import CoFlatMapOperator, CoMapOperator
from flowlet.operators.keyed_reduce_operator import KeyedReduceOperator
from flowlet.operators.process_operator import (
    CoProcessOperator,
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
)

_ASYNC_TIMEOUT_MS = 10_000
_ASYNC_CAPACITY = 100


def operator_of(function: Any, *key_selectors: Any) -> StreamOperator:
    """The operator for a function object, such as ``operator_of(Alarm(), lambda reading: reading.sensor)``.

    Args:
        function: an object of a class of ``flowlet.datastream``, or an operator, which is returned.
        key_selectors: one for each input of a keyed stream; none for a stream without keys.

    Raises:
        JobGraphError: the function is of another class (a plain callable could be any function), or key selectors are
            missing.
    """
    match function:
        case StreamOperator():
            return function
        case MapFunction():
            return MapOperator(function, *key_selectors)
        case FlatMapFunction():
            return FlatMapOperator(function, *key_selectors)
        case FilterFunction():
            return FilterOperator(function, *key_selectors)
        case AsyncFunction():
            return AsyncWaitOperator(function, timeout_ms=_ASYNC_TIMEOUT_MS, capacity=_ASYNC_CAPACITY, is_ordered=True)
        case ProcessFunction():
            return ProcessOperator(function, *key_selectors)
        case CoMapFunction():
            return CoMapOperator(function, _pair(key_selectors))
        case CoFlatMapFunction():
            return CoFlatMapOperator(function, _pair(key_selectors))
        case CoProcessFunction():
            return CoProcessOperator(function, _pair(key_selectors))
        case _:
            return _keyed_operator_of(function, key_selectors)


def _keyed_operator_of(function: Any, key_selectors: tuple[Any, ...]) -> StreamOperator:
    if not isinstance(function, KeyedProcessFunction | ReduceFunction | KeyedCoProcessFunction):
        raise JobGraphError(
            f"no operator is known for a {type(function).__name__}; pass an operator, such as MapOperator(function)"
        )
    num_needed = 2 if isinstance(function, KeyedCoProcessFunction) else 1
    if len(key_selectors) != num_needed:
        raise JobGraphError(f"a {type(function).__name__} needs {num_needed} key selectors, got {len(key_selectors)}")
    if isinstance(function, KeyedProcessFunction):
        return ProcessOperator(function, *key_selectors)
    if isinstance(function, ReduceFunction):
        return KeyedReduceOperator(key_selectors[0], function)
    return CoProcessOperator(function, _pair(key_selectors))


def _pair(key_selectors: tuple[Any, ...]) -> tuple[Any, Any] | None:
    if not key_selectors:
        return None
    first, second = key_selectors
    return first, second
