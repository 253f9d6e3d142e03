"""``WindowedStream`` and ``AllWindowedStream``: what can be done with windows.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, which exports them, too.  ``evictor`` is Flink's, PyFlink has none.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flowlet.common.checks import check_kind, is_whole_number
from flowlet.common.time import Length, millis_of
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    KeySelector,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.user_functions.argument_checks import checked_function, checked_object, declared_type
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
from flowlet.graph.transformation import GraphValue, OperatorFactory
from flowlet.keys.column_key import ColumnKey

if TYPE_CHECKING:
    from flowlet.datastream.keyed_stream import KeyedStream
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["AllWindowedStream", "WindowedStream"]

F = TypeVar("F")
P = TypeVar("P")


class _Windows(Generic[F, P]):
    """What both kinds have in common; ``F`` and ``P``: their kinds of window functions."""

    _kind: str
    _function_classes: tuple[type[Any], type[Any]]
    _is_keyed: bool

    def __init__(self, keyed_stream: "KeyedStream", window_assigner: WindowAssigner[Any, Any]) -> None:
        if not isinstance(window_assigner, WindowAssigner):
            raise JobGraphError(
                "windows need an assigner such as TumblingEventTimeWindows.of(Time.seconds(5)), got "
                f"{window_assigner!r}"
            )
        self._keyed_stream = keyed_stream
        self._assigner = window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._evictor: Evictor[Any, Any] | None = None
        self._allowed_lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        """The environment of the stream."""
        return self._keyed_stream.get_execution_environment()

    def get_input_type(self) -> TypeInformation:
        """The declared type of the records."""
        return self._keyed_stream.get_type()

    def trigger(self, trigger: Trigger[Any, Any]) -> Self:
        """Evaluate windows when this trigger says so, not when that of the assigner does."""
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
        self._evictor = evictor
        return self

    def allowed_lateness(self, time_ms: int | Length) -> Self:
        """Keep windows of event time for so many milliseconds after their end, for records that are late."""
        self._allowed_lateness_ms = millis_of(time_ms, "allowed_lateness()", takes_number=True, at_least_ms=0)
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> Self:
        """Send records that are too late to a side output of the result; else they are dropped and counted."""
        check_kind(output_tag, OutputTag, "side_output_late_data() needs an OutputTag")
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: Callable[[Any, Any], Any] | ReduceFunction,
        window_function: F | P | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Combine the records of each window, as they come; ``window_function`` is called with the result as the only
        element.
        """
        combine = checked_function(reduce_function, ReduceFunction, "reduce", 2)
        if window_function is None and output_type is None:
            output_type = self.get_input_type()
        function = (
            None if window_function is None else checked_object(window_function, "reduce", *self._function_classes)
        )
        return self._windowed(combine, function, self.get_input_type(), output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: F | P | None = None,
        accumulator_type: TypeInformation | list[TypeInformation] | None = None,
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """Aggregate the records of each window, as they come; ``window_function`` is called with the result as the only
        element.
        """
        combine = checked_object(aggregate_function, "aggregate", AggregateFunction)
        function = (
            None if window_function is None else checked_object(window_function, "aggregate", *self._function_classes)
        )
        accumulator = (
            Types.ROW(accumulator_type) if isinstance(accumulator_type, list) else declared_type(accumulator_type)
        )
        return self._windowed(combine, function, accumulator, output_type)

    def apply(self, window_function: F, output_type: TypeInformation | None = None) -> DataStream:
        """Call a function with all records of each window."""
        function = checked_object(window_function, "apply", self._function_classes[0])
        return self._windowed(None, function, self.get_input_type(), output_type)

    def process(self, process_window_function: P, output_type: TypeInformation | None = None) -> DataStream:
        """Call a function with all records of each window and a context."""
        function = checked_object(process_window_function, "process", self._function_classes[1])
        return self._windowed(None, function, self.get_input_type(), output_type)

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
            self._evictor,
            self._allowed_lateness_ms,
            None if self._late_tag is None else self._late_tag.tag_id,
            combine,
            function,
            state_type,
            self._is_keyed,
        )
        functions = ", ".join(type(each).__name__ for each in (combine, function) if each is not None)
        stream = self._keyed_stream
        factory = OperatorFactory.of(
            "flowlet.windows.window_operator:WindowOperator",
            spec=spec,
            key_selector=stream._key_selector,
            is_batch=GraphValue.IS_BATCH,
        )
        step = stream._step(type(self._assigner).__name__, factory, declared_type(output_type))
        step.description = f"{self._kind}({self._assigner}, {type(trigger).__name__}, {functions})"
        # Other windows may have timers of the clock, and columns are not taken apart on the way.
        step.takes_single_records = spec.is_aligned and not isinstance(stream._key_selector, ColumnKey)
        return stream._then(step)


class WindowedStream(_Windows[WindowFunction[Any, Any, Any, Any], ProcessWindowFunction[Any, Any, Any, Any]]):
    """The records of each key in windows; made by ``window`` and ``count_window`` of a keyed stream."""

    _kind = "Window"
    _function_classes = (WindowFunction, ProcessWindowFunction)
    _is_keyed = True


class AllWindowedStream(_Windows[AllWindowFunction[Any, Any, Any], ProcessAllWindowFunction[Any, Any, Any]]):
    """All records in windows; made by ``window_all`` and ``count_window_all``.  One subtask does all the work."""

    _kind = "AllWindow"
    _function_classes = (AllWindowFunction, ProcessAllWindowFunction)
    _is_keyed = False

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(data_stream.key_by(OneKey()), window_assigner)


class OneKey(KeySelector):
    """The same key for every record."""

    def get_key(self, value: Any) -> int:
        """0."""
        return 0


def count_windows(size: int, slide: int) -> WindowAssigner[Any, Any]:
    """The assigner of ``count_window``; a ``slide`` of 0 stands for windows one after the other."""
    for number in (size, slide):
        if not is_whole_number(number):
            raise JobGraphError(f"count windows need whole numbers of records, got {number!r}")
    return CountTumblingWindowAssigner(size) if slide == 0 else CountSlidingWindowAssigner(size, slide)
