"""Assigners, which put records into windows: of a fixed length, of a number of records, or of all records.

Side:   pure.  An instance is pickled, and called on the thread of one task for the records of all keys.
Units:  milliseconds.
Source: PyFlink ``pyflink.datastream.window``; sessions: ``session_assigners``.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any, ClassVar, Generic, Self

from flowlet.common.serializer import TypeSerializer
from flowlet.common.time import Length, millis_of
from flowlet.datastream.states.state_descriptors import ValueStateDescriptor
from flowlet.datastream.states.state_ttl_config import StateTtlConfig
from flowlet.datastream.user_functions.argument_checks import W2, T, W
from flowlet.datastream.user_functions.window_clock import WindowClock
from flowlet.datastream.window.time_triggers import EventTimeTrigger, ProcessingTimeTrigger
from flowlet.datastream.window.triggers import CountTrigger, NeverTrigger, Trigger
from flowlet.datastream.window.window_serializers import (
    CountWindowSerializer,
    GlobalWindowSerializer,
    TimeWindowSerializer,
)
from flowlet.datastream.window.windows import CountWindow, GlobalWindow, TimeWindow
from flowlet.errors import FlowletError, JobGraphError

__all__ = [
    "CountSlidingWindowAssigner",
    "CountTumblingWindowAssigner",
    "GlobalWindows",
    "MergingWindowAssigner",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]


NO_TIMESTAMP = -(2**63)
"""The timestamp that assigners and triggers get for a record without one: Java's ``Long.MIN_VALUE``."""


class WindowAssigner(ABC, Generic[T, W]):
    """Puts each record into any number of windows."""

    class WindowAssignerContext(WindowClock):
        """The clock, and the states of the present key."""

    @abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: "WindowAssigner.WindowAssignerContext"
    ) -> Collection[W]:
        """The windows of a record; ``timestamp`` is -2**63 for a record without one."""

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger[T, W]:
        """The trigger that is used where none is set."""

    @abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]:
        """A serializer of the windows.  flowlet pickles windows and never calls this."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end with the watermark, not with the clock."""


class MergingWindowAssigner(WindowAssigner[T, W]):
    """An assigner whose windows may become one later."""

    class MergeCallback(Generic[W2]):
        """Collects which windows become one."""

        def __init__(self) -> None:
            self.found: list[tuple[W2, list[W2]]] = []

        def merge(self, to_be_merged: Iterable[W2], merge_result: W2) -> None:
            """Note that these windows become ``merge_result``."""
            self.found.append((merge_result, list(to_be_merged)))

    @abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: "MergingWindowAssigner.MergeCallback[W]") -> None:
        """Tell ``callback`` which windows of a key become one; called with the present windows and a new one."""


class TimeWindowAssigner(WindowAssigner[T, TimeWindow]):
    """Windows by the timestamps of records, or by the clock; a subclass says which windows belong to a record.

    ``_is_event_time``: whether windows go by timestamps.
    """

    _is_event_time: ClassVar[bool]

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """The windows at the record's timestamp, or at the present moment."""
        if not self._is_event_time:
            return self._windows_of(element, context.get_current_processing_time())
        check_has_timestamp(timestamp)
        return self._windows_of(element, timestamp)

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """A trigger that fires at the end of the window."""
        return EventTimeTrigger() if self._is_event_time else ProcessingTimeTrigger()

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        """A serializer of the windows."""
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        """Whether windows go by timestamps."""
        return self._is_event_time

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, vars(self).values()))})"

    @abstractmethod
    def _windows_of(self, element: T, timestamp: int) -> list[TimeWindow]:
        """The windows of a record at a time."""


class EventTimeWindowAssigner(TimeWindowAssigner[T]):
    """Windows by the timestamps of records."""

    _is_event_time = True


class ProcessingTimeWindowAssigner(TimeWindowAssigner[T]):
    """Windows by the clock."""

    _is_event_time = False


class _TumblingWindows(TimeWindowAssigner[T]):
    """Windows of one length, one after the other."""

    def __init__(self, size: int | Length, offset: int | Length) -> None:
        name = type(self).__name__
        size, offset = (millis_of(each, name, takes_number=True) for each in (size, offset))
        if size <= 0 or abs(offset) >= size:
            what = f"size {size} ms, offset {offset} ms"
            raise JobGraphError(f"{name} needs a size above 0 and an offset below it, got {what}")
        self._size = size
        self._offset = offset

    @classmethod
    def of(cls, size: Length, offset: Length | None = None) -> Self:
        """Windows that begin at the multiples of ``size``, moved by ``offset``."""
        return cls(*_milliseconds(f"{cls.__name__}.of()", offset, size))

    def _windows_of(self, element: T, timestamp: int) -> list[TimeWindow]:
        start = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._size)
        return [TimeWindow(start, start + self._size)]


class TumblingEventTimeWindows(EventTimeWindowAssigner[T], _TumblingWindows[T]):
    """Windows of one length, one after the other, by the timestamps of records."""


class TumblingProcessingTimeWindows(ProcessingTimeWindowAssigner[T], _TumblingWindows[T]):
    """Windows of one length, one after the other, by the clock."""


class _SlidingWindows(TimeWindowAssigner[T]):
    """Windows of one length that overlap."""

    def __init__(self, size: int | Length, slide: int | Length, offset: int | Length) -> None:
        name = type(self).__name__
        size, slide, offset = (millis_of(each, name, takes_number=True) for each in (size, slide, offset))
        if size <= 0 or slide <= 0 or abs(offset) >= slide:
            raise JobGraphError(
                f"{name} needs a size and a slide above 0 and an offset below the slide, "
                f"got size {size} ms, slide {slide} ms, offset {offset} ms"
            )
        self._size = size
        self._slide = slide
        self._offset = offset

    @classmethod
    def of(cls, size: Length, slide: Length, offset: Length | None = None) -> Self:
        """Windows of length ``size`` that begin at the multiples of ``slide``, moved by ``offset``."""
        return cls(*_milliseconds(f"{cls.__name__}.of()", offset, size, slide))

    def _windows_of(self, element: T, timestamp: int) -> list[TimeWindow]:
        """The windows, the latest first."""
        last = TimeWindow.get_window_start_with_offset(timestamp, self._offset, self._slide)
        return [TimeWindow(start, start + self._size) for start in range(last, timestamp - self._size, -self._slide)]


class SlidingEventTimeWindows(EventTimeWindowAssigner[T], _SlidingWindows[T]):
    """Windows of one length that overlap, by the timestamps of records."""


class SlidingProcessingTimeWindows(ProcessingTimeWindowAssigner[T], _SlidingWindows[T]):
    """Windows of one length that overlap, by the clock."""


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """One window for all records of a key; it needs a trigger, for by default it is never evaluated."""

    @staticmethod
    def create() -> "GlobalWindows[Any]":
        """The assigner."""
        return GlobalWindows()

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[GlobalWindow]:
        """The one window."""
        return [GlobalWindow.get()]

    def get_default_trigger(self, env: Any) -> Trigger[T, GlobalWindow]:
        """A trigger that never fires."""
        return NeverTrigger()

    def get_window_serializer(self) -> TypeSerializer[GlobalWindow]:
        """A serializer of the window."""
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        """Return False."""
        return False

    def __repr__(self) -> str:
        return "GlobalWindows()"


class _CountWindows(WindowAssigner[T, CountWindow]):
    """Counts the records of each key."""

    def __init__(self, window_size: int, descriptor: ValueStateDescriptor) -> None:
        if window_size <= 0:
            raise JobGraphError(f"{type(self).__name__} needs a number of records above 0, got {window_size}")
        self._window_size = window_size
        self._count_descriptor = descriptor

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> Self:
        """Forget the number of records of a key that had none for a while; PyFlink keeps it for ever."""
        self._count_descriptor.enable_time_to_live(ttl_config)
        return self

    def get_default_trigger(self, env: Any) -> Trigger[T, CountWindow]:
        """A trigger that fires when the window is full."""
        return CountTrigger(self._window_size)

    def get_window_serializer(self) -> TypeSerializer[CountWindow]:
        """A serializer of the windows."""
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        """Return False."""
        return False

    def _next_index(self, context: WindowAssigner.WindowAssignerContext) -> int:
        """Count the record; return how many records of the key came before."""
        state = context.get_runtime_context().get_state(self._count_descriptor)
        index = int(state.value() or 0)
        state.update(index + 1)
        return index


class CountTumblingWindowAssigner(_CountWindows[T]):
    """Windows of a number of records of a key, one after the other."""

    def __init__(self, window_size: int) -> None:
        super().__init__(window_size, ValueStateDescriptor("tumble-count-assigner"))

    @staticmethod
    def of(window_size: int) -> "CountTumblingWindowAssigner[Any]":
        """Windows of ``window_size`` records."""
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        """The window that is being filled."""
        return [CountWindow(self._next_index(context) // self._window_size)]

    def __repr__(self) -> str:
        return f"CountTumblingWindowAssigner({self._window_size})"


class CountSlidingWindowAssigner(_CountWindows[T]):
    """Windows of a number of records of a key that overlap: a new one begins at every ``window_slide``-th record."""

    def __init__(self, window_size: int, window_slide: int) -> None:
        super().__init__(window_size, ValueStateDescriptor("slide-count-assigner"))
        if window_slide <= 0:
            raise JobGraphError(f"CountSlidingWindowAssigner needs a slide above 0, got {window_slide}")
        self._window_slide = window_slide

    @staticmethod
    def of(window_size: int, window_slide: int) -> "CountSlidingWindowAssigner[Any]":
        """Windows of ``window_size`` records, a new one at every ``window_slide``-th record."""
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[CountWindow]:
        """The windows that are being filled, the latest first."""
        index = self._next_index(context)
        first = max(0, (index - self._window_size) // self._window_slide + 1)
        return [CountWindow(number) for number in range(index // self._window_slide, first - 1, -1)]

    def __repr__(self) -> str:
        return f"CountSlidingWindowAssigner({self._window_size}, {self._window_slide})"


def check_has_timestamp(timestamp: int) -> None:
    """Raise FlowletError if a record has no timestamp: windows of event time need one."""
    if timestamp <= NO_TIMESTAMP:
        raise FlowletError(
            "windows of event time need timestamps: call assign_timestamps_and_watermarks(...) before window(...)"
        )


def _milliseconds(what: str, offset: Length | None, *lengths: Length) -> list[int]:
    """The lengths, then the offset, in milliseconds."""
    return [*(millis_of(each, what) for each in lengths), 0 if offset is None else millis_of(offset, what)]
