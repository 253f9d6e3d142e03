"""Joins and co-groups of two streams by key within windows:
``stream.join(other).where(f).equal_to(g).window(assigner).apply(function)``.

Side:   pure.  Nothing runs before ``execute``.
Rules:  a join is a co-group, and a co-group is a window over the union of both streams, whose records say which stream
        they are of.  So all of windows works: assigners, triggers, evictors, lateness, state, merging.
Source: Flink ``JoinedStreams``, ``CoGroupedStreams``; the DataStream API of PyFlink has neither.
"""

import inspect
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flowlet.common.time import Length
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.states.runtime_context import RuntimeContext
from flowlet.datastream.user_functions.argument_checks import checked_function, checked_object, declared_type
from flowlet.datastream.user_functions.function import Function, WrappingFunction
from flowlet.datastream.user_functions.process_functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    WindowFunction,
)
from flowlet.datastream.user_functions.record_functions import FlatMapFunction, KeySelector, MapFunction
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import PartitionTransformation, UnionTransformation
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.datastream.data_stream import DataStream
    from flowlet.datastream.keyed_stream import KeyedStream
    from flowlet.datastream.window import WindowAssigner

    _Streams = tuple[DataStream, DataStream]

Tagged = tuple[Any, bool, Any]


class Tag(WrappingFunction, MapFunction):
    """Makes tagged records of the records of one stream.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``, which is opened and closed.
        is_second: whether the stream is the second one.
    """

    def __init__(self, key_selector: Any, *, is_second: bool) -> None:
        super().__init__(key_selector)
        self._key_of = key_selector
        self._is_second = is_second

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the selector, which may replace its method while it is opened."""
        super().open(runtime_context)
        if isinstance(self._function, KeySelector):
            self._key_of = self._function.get_key

    def map(self, value: Any) -> Tagged:
        """The tagged record."""
        return self._key_of(value), self._is_second, value


class CoGroups(WrappingFunction, WindowFunction[Tagged, Any, Any, Any]):
    """Hands the records of a window to a function of two lists.

    ``function``: a ``CoGroupFunction``, or a callable of two lists.
    """

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


Selector = Callable[[Any], Any] | KeySelector


class _WithWindow:
    """Two streams, the key of either, and the windows in which their records meet."""

    __slots__ = ("_windowed",)

    def __init__(self, windowed: Any) -> None:
        self._windowed = windowed

    def trigger(self, trigger: Any) -> Self:
        """Decide with a trigger when a window is evaluated; its elements are tuples: key, whether of the second stream,
        record.
        """
        self._windowed = self._windowed.trigger(trigger)
        return self

    def evictor(self, evictor: Any) -> Self:
        """Leave records of a window out; its elements are tuples, as for ``trigger``."""
        self._windowed = self._windowed.evictor(evictor)
        return self

    def allowed_lateness(self, time_ms: int | Length) -> Self:
        """Keep windows for so many milliseconds behind their end; each late record evaluates its window again."""
        self._windowed = self._windowed.allowed_lateness(time_ms)
        return self

    def _applied(self, function: Any, output_type: TypeInformation | None, name: str) -> "DataStream":
        stream: DataStream = self._windowed.apply(function, declared_type(output_type))
        return stream.name(name)


class WindowJoin(_WithWindow):
    """A join of two streams; ``apply`` gets each pair of records that have equal keys and lie in one window."""

    __slots__ = ()

    def apply(
        self,
        func: JoinFunction | FlatJoinFunction | Callable[[Any, Any], Any],
        output_type: TypeInformation | None = None,
    ) -> "DataStream":
        """Apply a function to each pair, once its window is evaluated; results have the last timestamp of the window.

        Args:
            func: a callable of two records is a ``JoinFunction``.
            output_type: of the results; None: any Python object.

        Raises:
            JobGraphError: it is no such function.
        """
        return self._applied(Joins(checked_join_function(func)), output_type, "Window Join")


class WindowCoGroup(_WithWindow):
    """A co-group of two streams; ``apply`` gets the records of both that have one key and lie in one window."""

    __slots__ = ()

    def apply(
        self, func: CoGroupFunction | Callable[[list[Any], list[Any]], Any], output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a function to both lists of records, one of which may be empty; results have the last timestamp of the
        window.

        Args:
            func: a callable of two lists is a ``CoGroupFunction``.
            output_type: of the results; None: any Python object.

        Raises:
            JobGraphError: it is no such function.
        """
        return self._applied(CoGroups(checked_co_group_function(func)), output_type, "Co-Group")


_W = TypeVar("_W", bound=_WithWindow)


@dataclass(slots=True, repr=False, eq=False)
class EqualTo(Generic[_W]):
    """Two streams with the key of either; ``window`` takes the windows in which their records meet."""

    _keyed: "KeyedStream"
    _with_window: type[_W]

    def window(self, assigner: "WindowAssigner[Any, Any]") -> _W:
        """Let records meet in the windows of an assigner.  Raises JobGraphError: it is none."""
        return self._with_window(self._keyed.window(assigner))


@dataclass(slots=True, repr=False, eq=False)
class Where(Generic[_W]):
    """Two streams with the key of the first; ``equal_to`` takes the key of the second."""

    _streams: "_Streams"
    _selector: Selector
    _key_type: TypeInformation | None
    _with_window: type[_W]

    def equal_to(self, key_selector: Selector, key_type: TypeInformation | None = None) -> EqualTo[_W]:
        """Take the key of a record of the second stream; see ``DataStream.key_by``.

        Raises:
            JobGraphError: the selector cannot be called with one record, or the keys have different declared types.
        """
        second = checked_function(key_selector, KeySelector, "equal_to", 1)
        types = {each for each in (self._key_type, key_type) if each is not None}
        if len(types) > 1:
            raise JobGraphError(f"the keys of both streams need one type, got {self._key_type} and {key_type}")
        first_stream, second_stream = self._streams
        first_tagged = _tagged(first_stream, Tag(self._selector, is_second=False))
        tagged = first_tagged.union(_tagged(second_stream, Tag(second, is_second=True)))
        return EqualTo(tagged.key_by(operator.itemgetter(0), next(iter(types), None)), self._with_window)


class _PairOfStreams(Generic[_W]):
    """Two streams; ``where`` takes the key of the first."""

    _with_window: type[_W]

    def __init__(self, first: "DataStream", second: "DataStream") -> None:
        self._streams = first, second

    def where(self, key_selector: Selector, key_type: TypeInformation | None = None) -> Where[_W]:
        """Take the key of a record of the first stream.

        Raises JobGraphError: the selector cannot be called with one record.
        """
        selector = checked_function(key_selector, KeySelector, "where", 1)
        return Where(self._streams, selector, key_type, self._with_window)


class JoinedStreams(_PairOfStreams[WindowJoin]):
    """Two streams whose records will be joined; made by ``DataStream.join``."""

    _with_window = WindowJoin


class CoGroupedStreams(_PairOfStreams[WindowCoGroup]):
    """Two streams whose records will be grouped together; made by ``DataStream.co_group``."""

    _with_window = WindowCoGroup


def _tagged(stream: "DataStream", tag: Tag) -> "DataStream":
    tagged = stream.map(tag).name("Tag")
    origin = stream._transformation
    # As in Flink, with the parallelism of the input: so that both are in one chain.
    if not isinstance(origin, PartitionTransformation | UnionTransformation):
        tagged.set_parallelism(origin.parallelism)
    return tagged
