"""``KeyedStream``: aggregations, windows and process functions per key.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, which exports it, too.
"""

import copy
from collections.abc import Callable
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from flowlet.common.checks import check_kind, is_name, is_whole_number
from flowlet.common.time import Length, millis_of
from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from flowlet.common.types import Row
from flowlet.datastream.data_stream import IN_EITHER_MODE, CloseableIterator, DataStream, partition
from flowlet.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.datastream.user_functions.argument_checks import (
    checked_function,
    checked_object,
    declared_type,
    result_type,
)
from flowlet.datastream.user_functions.function import WrappingFunction
from flowlet.datastream.window.evictors import Evictor
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    MergingWindowAssigner,
    WindowAssigner,
)
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import KeyGroups
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import GraphValue, OperatorFactory, OperatorTransformation
from flowlet.keys.column_key import ColumnKey
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

F = TypeVar("F")
P = TypeVar("P")


# The kinds of functions of windows, by whether these are of a keyed stream.
_FUNCTIONS: Final[dict[bool, tuple[type[Any], type[Any]]]] = {
    True: (WindowFunction, ProcessWindowFunction),
    False: (AllWindowFunction, ProcessAllWindowFunction),
}


class WindowsOfStream(Generic[F, P]):
    """The methods that windows of keyed, of unkeyed and of streams of columns share; ``F``, ``P``: the kinds of their
    functions.
    """

    _is_keyed: bool

    def __init__(self, keyed_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        needs = "windows need an assigner such as TumblingEventTimeWindows.of(Time.seconds(5))"
        check_kind(window_assigner, WindowAssigner, needs)
        self._stream = keyed_stream
        self._assigner = window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._chosen: dict[str, Any] = {}  # further fields of the ``WindowSpec``

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        """The environment of the stream."""
        return self._stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The declared type of the records."""
        return self._stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Evaluate windows when this trigger says so, in place of the assigner's trigger."""
        check_kind(trigger, Trigger, "trigger() needs a Trigger")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise JobGraphError(
                f"windows that merge need a trigger that can merge, which {type(trigger).__name__} cannot: see "
                "can_merge()"
            )
        self._trigger = trigger
        return self

    def evictor(self, evictor: Evictor[Any, Any]) -> Self:
        """Take records out of windows when they are evaluated; all records are kept then.  Not in PyFlink."""
        check_kind(evictor, Evictor, "evictor() needs an Evictor such as CountEvictor.of(3)")
        self._chosen["evictor"] = evictor
        return self

    def allowed_lateness(self, time_ms: int | Length) -> Self:
        """Keep windows of event time for so many milliseconds after their end, for records that are late."""
        lateness_ms = millis_of(time_ms, "allowed_lateness()", takes_number=True, at_least_ms=0)
        self._chosen["allowed_lateness_ms"] = lateness_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send records that are too late to a side output of the result; else they are dropped and counted."""
        check_kind(output_tag, OutputTag, "side_output_late_data() needs an OutputTag")
        self._chosen["late_tag_id"] = output_tag.tag_id
        return self

    def reduce(
        self,
        reduce_function: Callable[[Any, Any], Any] | ReduceFunction,
        window_function: F | P | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Combine the records of each window, as they arrive; ``window_function`` is called with the result as the only
        element.
        """
        combine = checked_function(reduce_function, ReduceFunction, "reduce", 2)
        if window_function is None and output_type is None:
            output_type = self.get_input_type()
        function = self._checked(window_function, "reduce")
        return self._windowed(combine, function, self.get_input_type(), output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: F | P | None = None,
        accumulator_type: TypeInformation | list[TypeInformation] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Aggregate the records of each window, as they arrive; ``window_function`` is called with the result as the
        only element.
        """
        combine = checked_object(aggregate_function, "aggregate", AggregateFunction)
        function = self._checked(window_function, "aggregate")
        return self._windowed(combine, function, declared_type(accumulator_type), output_type)

    def apply(self, window_function: F, output_type: TypeInformation | None = None) -> DataStream:
        """Call a function with all records of each window."""
        function = checked_object(window_function, "apply", _FUNCTIONS[self._is_keyed][0])
        return self._windowed(None, function, self.get_input_type(), output_type)

    def process(self, process_window_function: P, output_type: TypeInformation | None = None) -> DataStream:
        """Call a function with all records of each window and a context."""
        function = checked_object(process_window_function, "process", _FUNCTIONS[self._is_keyed][1])
        return self._windowed(None, function, self.get_input_type(), output_type)

    def _checked(self, window_function: F | P | None, method: str) -> Any:
        return None if window_function is None else checked_object(window_function, method, *_FUNCTIONS[self._is_keyed])

    def _windowed(
        self, combine: Any, function: Any, state_type: TypeInformation, output_type: TypeInformation | None
    ) -> DataStream:
        trigger = (
            self._assigner.get_default_trigger(self.get_execution_environment())
            if self._trigger is None
            else self._trigger
        )
        spec = WindowSpec(
            self._assigner,
            trigger,
            combine=combine,
            function=function,
            state_type=state_type,
            is_keyed=self._is_keyed,
            **self._chosen,
        )
        kind = "Window" if self._is_keyed else "AllWindow"
        functions = ", ".join(type(each).__name__ for each in (combine, function) if each is not None)
        stream = self._stream
        factory = OperatorFactory.of(
            "flowlet.windows.window_operator:WindowOperator",
            spec=spec,
            key_selector=stream._key_selector,
            is_batch=GraphValue.IS_BATCH,
        )
        return stream._then(
            type(self._assigner).__name__,
            factory,
            declared_type(output_type),
            description=f"{kind}({self._assigner}, {type(trigger).__name__}, {functions})",
            # Other windows may have timers of the clock, and columns are not taken apart on the way.
            takes_single_records=spec.is_aligned and not isinstance(stream._key_selector, ColumnKey),
        )


class WindowedStream(WindowsOfStream[WindowFunction[Any, Any, Any, Any], ProcessWindowFunction[Any, Any, Any, Any]]):
    """The records of each key in windows; made by ``window`` and ``count_window`` of a keyed stream."""

    _is_keyed = True


class AllWindowedStream(WindowsOfStream[AllWindowFunction[Any, Any, Any], ProcessAllWindowFunction[Any, Any, Any]]):
    """All records in windows; made by ``window_all`` and ``count_window_all``.  One subtask does all the work."""

    _is_keyed = False

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(data_stream.key_by(OneKey()), window_assigner)


class OneKey(KeySelector):
    """Gives every record one key, 0."""

    def get_key(self, value: Any) -> int:
        """Return 0."""
        return 0


def count_windows(size: int, slide: int) -> WindowAssigner[Any, Any]:
    """The assigner of ``count_window``; a ``slide`` of 0 stands for windows one after the other."""
    for number in (size, slide):
        if not is_whole_number(number):
            raise JobGraphError(f"count windows need whole numbers of records, got {number!r}")
    return CountTumblingWindowAssigner(size) if slide == 0 else CountSlidingWindowAssigner(size, slide)


@dataclass(slots=True, repr=False, eq=False)
class IntervalJoin:
    """Two keyed streams whose records meet if their timestamps lie close together; ``between`` says how close."""

    _left: "KeyedStream"
    _right: "KeyedStream"

    def in_event_time(self) -> Self:
        """Compare timestamps, which is the only way."""
        return self

    def in_processing_time(self) -> Self:
        """Raise JobGraphError: as in Flink, an interval join needs event time."""
        raise JobGraphError(
            "interval_join() works in event time only; assign timestamps and watermarks to both streams"
        )

    def between(self, lower_bound: Length, upper_bound: Length) -> "IntervalJoined":
        """Join a left record with the right ones from its timestamp plus ``lower_bound`` to its timestamp plus
        ``upper_bound``.

        Args:
            lower_bound: may be negative.
            upper_bound: not less; both bounds belong to the interval.

        Raises:
            JobGraphError: a bound is no length of time, or the upper one is less.
        """
        lower, upper = (millis_of(each, "between()") for each in (lower_bound, upper_bound))
        if upper < lower:
            raise JobGraphError(
                f"between() needs a lower bound that is not above the upper one, got {lower} ms and {upper} ms"
            )
        return IntervalJoined(self._left, self._right, lower, upper)


@dataclass(slots=True, repr=False, eq=False)
class IntervalJoined:
    """Two keyed streams and the interval in which their records meet; ``process`` takes the function for each pair."""

    _left: "KeyedStream"
    _right: "KeyedStream"
    _lower: int
    _upper: int
    _late_tags: list[str | None] = field(default_factory=lambda: [None, None])

    def lower_bound_exclusive(self) -> Self:
        """Leave out right records at the lower bound."""
        self._lower += 1
        return self

    def upper_bound_exclusive(self) -> Self:
        """Leave out right records at the upper bound."""
        self._upper -= 1
        return self

    def side_output_left_late_data(self, output_tag: "OutputTag") -> Self:
        """Send left records that are older than the watermark to a side output; else they are counted and dropped."""
        return self._with_late_tag(0, output_tag, "side_output_left_late_data")

    def side_output_right_late_data(self, output_tag: "OutputTag") -> Self:
        """Send right records that are older than the watermark to a side output; else they are counted and dropped."""
        return self._with_late_tag(1, output_tag, "side_output_right_late_data")

    def process(self, func: ProcessJoinFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function to each pair; results have the later timestamp of the pair.

        Raises:
            JobGraphError: it is no ``ProcessJoinFunction``, or the exclusive bounds leave no interval.
        """
        function = checked_object(func, "process", ProcessJoinFunction)
        if self._upper < self._lower:
            raise JobGraphError("process(): the exclusive bounds of the interval join leave nothing between them")
        factory = OperatorFactory.of(
            "flowlet.joins.interval_join_operator:IntervalJoinOperator",
            function=function,
            key_selectors=(self._left._key_selector, self._right._key_selector),
            bounds=(self._lower, self._upper),
            late_tags=tuple(self._late_tags),
            is_batch=GraphValue.IS_BATCH,
        )
        second_input = self._right._transformation
        return self._left._then("Interval Join", factory, declared_type(output_type), second_input=second_input)

    def _with_late_tag(self, index: int, output_tag: "OutputTag", method: str) -> Self:
        check_kind(output_tag, OutputTag, f"{method}() needs an OutputTag")
        self._late_tags[index] = output_tag.tag_id
        return self


# The results that keyed aggregations emit: one per record, or one per key and chunk.
EMIT_ROWS, EMIT_BATCHES = "row", "batch"


class KeyedStream(DataStream):
    """A stream whose records with one key are in one subtask; made by ``key_by``.

    It is no operator: it has no name, parallelism or other settings, and its partitioning is fixed.
    """

    __slots__ = ("_key_type", "_origin")

    class AccumulateType(Enum):
        """The aggregations of a field."""

        MIN = 1
        MAX = 2
        MIN_BY = 3
        MAX_BY = 4
        SUM = 5

    def __init__(self, origin: DataStream, key_selector: Any, key_type: TypeInformation | None = None) -> None:
        super().__init__(origin._environment, partition(origin, KeyGroups(key_selector)))
        self._origin = origin
        self._key_type = key_type

    def reduce(self, func: Callable[[Any, Any], Any] | ReduceFunction) -> DataStream:
        """Combine the records of each key: a result per record, or in BATCH mode one per key at the end."""
        function = checked_function(func, ReduceFunction, "reduce", 2)
        return DataStream(self._environment, self._reduced("reduce", function, self.get_type()))

    def sum(self, position_to_sum: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the sum so far.

        Args:
            position_to_sum: position or name of the field; for records that are numbers, 0.
            emit: ``"row"``: one result per record; ``"batch"``: one per key and chunk.  The size of chunks depends on
                the network; the last result of each key does not.
        """
        _check_position("sum", position_to_sum)
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_aggregation_operator:KeyedSumOperator",
            key_selector=self._key_selector,
            position=position_to_sum,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=emits_batches_of("sum", emit),
        )
        return self._then("Sum", factory, self.get_type())

    def count(self, *, emit: str = EMIT_ROWS) -> DataStream:
        """Pairs of each key and the number of its records so far; ``emit``: see ``sum``.  Not in PyFlink."""
        return DataStream(self._environment, self._counted(None, emit))

    def min(self, position_to_min: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the lowest value so far; arguments as for ``sum``."""
        return self._extreme("min", position_to_min, emit)

    def max(self, position_to_max: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the highest value so far; arguments as for ``sum``."""
        return self._extreme("max", position_to_max, emit)

    def min_by(self, position_to_min_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the lowest value so far in a field, of equal ones the first; arguments as for
        ``sum``.
        """
        return self._extreme("min_by", position_to_min_by, emit)

    def max_by(self, position_to_max_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the highest value so far in a field, of equal ones the first; arguments as for
        ``sum``.
        """
        return self._extreme("max_by", position_to_max_by, emit)

    def process(
        self, func: KeyedProcessFunction | ProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """Apply a process function; a ``KeyedProcessFunction`` has keys and timers."""
        function = checked_object(func, "process", KeyedProcessFunction, ProcessFunction)
        has_timers = getattr(type(function), "on_timer", None) not in (None, KeyedProcessFunction.on_timer)
        results = result_type(output_type, func, "process_element", is_iterated=True)
        # A timer of the clock needs a thread that no source keeps busy.
        return self._with_function(
            "KeyedProcess",
            "flowlet.operators.process_operator:ProcessOperator",
            function,
            results,
            IN_EITHER_MODE,
            takes_single_records=not has_timers,
        )

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Put the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of ``size`` records of a key; with ``slide`` a new one begins at every ``slide``-th record."""
        return WindowedStream(self, count_windows(size, slide))

    def interval_join(self, other_stream: "KeyedStream") -> IntervalJoin:
        """Join with the records of another keyed stream whose timestamps lie close by: ``.between(...).process(...)``.

        Not in PyFlink.
        """
        self._check_companion(other_stream, "interval_join")
        if not isinstance(other_stream, KeyedStream):
            raise JobGraphError("interval_join() needs a second stream that is keyed; call key_by(...) on it")
        return IntervalJoin(self, other_stream)

    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> "KeyedStream":
        """The records keyed in another way, which replaces this key."""
        return self._origin.key_by(key_selector, key_type)

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the job now and return its records, as ``DataStream`` does.

        As in PyFlink, each result is a ``Row`` of the key, ``f0``, and the record, ``f1``.  A stream of columns returns
        its rows as they are.
        """
        selector = self._key_selector
        if isinstance(selector, ColumnKey):
            return super().execute_and_collect(job_execution_name, limit)
        pairs = RowTypeInfo([self._key_type or PickledBytesTypeInfo(), self.get_type()])
        return self.map(_WithKey(selector), pairs).execute_and_collect(job_execution_name, limit)

    def _extreme(self, method: str, position: int | str, emit: str) -> DataStream:
        _check_position(method, position)
        function = Aggregation(method, position)
        return DataStream(self._environment, self._reduced(method, function, self.get_type(), emit))

    def _reduced(
        self, method: str, function: Any, output_type: TypeInformation, emit: str = EMIT_ROWS
    ) -> OperatorTransformation:
        emits_batches = emits_batches_of(method, emit)
        is_declared = isinstance(function, Aggregation)
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_aggregation_operator:KeyedReduceOperator",
            key_selector=self._key_selector,
            reduce_function=function,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=emits_batches,
            # As in PyFlink the result so far is kept in its declared type: the function sees its names, for example.
            result_type=None if is_declared else output_type,
        )
        name = method.replace("_", " ").title()
        return self._add(name, factory, output_type, takes_single_records=not (emits_batches or is_declared))

    def _counted(self, field_names: tuple[str, str] | None, emit: str) -> OperatorTransformation:
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_aggregation_operator:KeyedCountOperator",
            key_selector=self._key_selector,
            field_names=field_names,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=emits_batches_of("count", emit),
        )
        return self._add("Count", factory, PickledBytesTypeInfo())

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream:
        raise JobGraphError(
            f"a keyed stream keeps its partitioning, it cannot become {partitioner.ship_strategy}: "
            "partition before key_by(), or behind the next operator"
        )


class _WithKey(WrappingFunction, MapFunction):
    """Makes a row of the key and the record; the selector is opened and closed."""

    def __init__(self, selector: Any) -> None:
        # A copy, opened by itself: ``key_by`` opens its selector where records are sent, which may be this very task.
        super().__init__(copy.copy(selector) if isinstance(selector, Function) else selector)
        self._select: Callable[[Any], Any] = getattr(self._function, "get_key", self._function)

    def map(self, value: Any) -> Row:
        return Row(self._select(value), value)


def emits_batches_of(method: str, emit: Any) -> GraphValue | bool:
    """Whether a keyed aggregation emits one result per key and chunk.  Raises JobGraphError: ``emit`` says neither."""
    if emit not in (EMIT_ROWS, EMIT_BATCHES):
        raise JobGraphError(f"{method}() emits {EMIT_ROWS!r} or {EMIT_BATCHES!r}, got emit={emit!r}")
    return GraphValue.IS_STREAMING if emit == EMIT_BATCHES else False


def _check_position(method: str, position: Any) -> None:
    if not is_whole_number(position) and not is_name(position):
        raise JobGraphError(f"{method}() needs the position or the name of a field, got {position!r}")
