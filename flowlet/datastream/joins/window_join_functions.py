"""The functions that make a join of a window over tagged records, and the checks of those that users give.

Side:   pure.  Instances are made in the user's program, pickled, and called on the thread of one task.
Rules:  a tagged record is a tuple: key, whether it is of the second stream, record.
Source: Flink ``CoGroupedStreams.TaggedUnion``, ``CoGroupWindowFunction``; ``JoinedStreams.JoinCoGroupFunction``,
        ``FlatJoinCoGroupFunction``.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from flowlet.datastream.user_functions.argument_checks import checked_function, checked_object
from flowlet.datastream.user_functions.function import Function, RuntimeContext
from flowlet.datastream.user_functions.join_functions import CoGroupFunction, FlatJoinFunction, JoinFunction
from flowlet.datastream.user_functions.record_functions import FlatMapFunction, KeySelector, MapFunction
from flowlet.datastream.user_functions.window_functions import WindowFunction
from flowlet.errors import JobGraphError

__all__ = ["CoGroups", "Joins", "Tag", "checked_co_group_function", "checked_join_function"]

Tagged = tuple[Any, bool, Any]


class Tag(MapFunction):
    """Makes tagged records of those of one stream.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``, which is opened and closed.
        is_second: whether the stream is the second one.
    """

    def __init__(self, key_selector: Any, *, is_second: bool) -> None:
        self._selector = key_selector
        self._is_second = is_second

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the selector."""
        is_object = isinstance(self._selector, KeySelector)
        if is_object:
            self._selector.open(runtime_context)
        self._key_of: Callable[[Any], Any] = self._selector.get_key if is_object else self._selector

    def close(self) -> None:
        """Close the selector."""
        if isinstance(self._selector, KeySelector):
            self._selector.close()

    def map(self, value: Any) -> Tagged:
        """The tagged record."""
        return self._key_of(value), self._is_second, value


class CoGroups(WindowFunction[Tagged, Any, Any, Any]):
    """Hands the records of a window to a function of two lists.

    ``function``: a ``CoGroupFunction``, or a callable of two lists.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        if isinstance(self._function, Function):
            self._function.open(runtime_context)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self._function, Function):
            self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Tagged]) -> Iterable[Any]:
        """The results of a window."""
        first: list[Any] = []
        second: list[Any] = []
        for _, is_second, value in inputs:
            (second if is_second else first).append(value)
        return self._results(first, second)

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        function = self._function
        results = function.co_group(first, second) if isinstance(function, CoGroupFunction) else function(first, second)
        return () if results is None else results


class Joins(CoGroups):
    """Calls a function with each pair of records of a window.

    ``function``: a ``JoinFunction``, a ``FlatJoinFunction``, or a callable of two records.
    """

    def _results(self, first: list[Any], second: list[Any]) -> Iterable[Any]:
        function = self._function
        if isinstance(function, FlatJoinFunction):
            for one in first:
                for two in second:
                    yield from function.join(one, two) or ()
            return
        join = function.join if isinstance(function, JoinFunction) else function
        for one in first:
            for two in second:
                yield join(one, two)


def checked_join_function(func: Any) -> Any:
    """The function of a join itself.  Raises JobGraphError: it is none."""
    if isinstance(func, FlatJoinFunction):
        return func
    if isinstance(func, Function):
        return checked_object(func, "apply", JoinFunction, FlatJoinFunction)
    if inspect.isgeneratorfunction(func):
        raise JobGraphError(
            f"apply() of a join needs one result per call, but {func!r} is a generator function: use a FlatJoinFunction"
        )
    return checked_function(func, JoinFunction, "apply", 2)


def checked_co_group_function(func: Any) -> Any:
    """The function of a co-group itself.  Raises JobGraphError: it is none."""
    if isinstance(func, Function) or not callable(func):
        return checked_object(func, "apply", CoGroupFunction)
    return checked_function(func, FlatMapFunction, "apply", 2)
