"""Sessions: windows that end after a gap without records.

Side:   pure.
Units:  milliseconds.
Source: PyFlink ``pyflink.datastream.window``.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Any

from flowlet.common.serializer import TypeSerializer
from flowlet.common.time import Length, millis_of
from flowlet.datastream.user_functions.argument_checks import T
from flowlet.datastream.window.time_triggers import EventTimeTrigger, ProcessingTimeTrigger
from flowlet.datastream.window.triggers import Trigger
from flowlet.datastream.window.window_assigners import MergingWindowAssigner, WindowAssigner
from flowlet.datastream.window.window_serializers import TimeWindowSerializer
from flowlet.datastream.window.windows import TimeWindow
from flowlet.errors import FlowletError, JobGraphError

__all__ = [
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "ProcessingTimeSessionWindows",
    "SessionWindowTimeGapExtractor",
]


class SessionWindowTimeGapExtractor(ABC):
    """Says after which gap the session of a record ends."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """The gap in milliseconds, above 0."""


class _Sessions(MergingWindowAssigner[T, TimeWindow]):
    """Each record begins a window of the gap's length; windows that touch each other become one."""

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        """Windows that touch each other become one."""
        TimeWindow.merge_windows(windows, callback)

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        """A serializer of the windows."""
        return TimeWindowSerializer()


class _EventTimeSessions(_Sessions[T]):
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """From the timestamp, as long as the gap."""
        return [TimeWindow(timestamp, timestamp + self._gap_of(element))]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """At the end of the session."""
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        """Yes."""
        return True

    @abstractmethod
    def _gap_of(self, element: T) -> int:
        """The gap after a record."""


class _ProcessingTimeSessions(_Sessions[T]):
    def assign_windows(
        self, element: T, timestamp: int, context: WindowAssigner.WindowAssignerContext
    ) -> Collection[TimeWindow]:
        """From the present moment, as long as the gap."""
        now = context.get_current_processing_time()
        return [TimeWindow(now, now + self._gap_of(element))]

    def get_default_trigger(self, env: Any) -> Trigger[T, TimeWindow]:
        """At the end of the session."""
        return ProcessingTimeTrigger()

    def is_event_time(self) -> bool:
        """No."""
        return False

    @abstractmethod
    def _gap_of(self, element: T) -> int:
        """The gap after a record."""


class EventTimeSessionWindows(_EventTimeSessions[T]):
    """Sessions of one gap, by the timestamps of records."""

    def __init__(self, session_gap: int | Length) -> None:
        self._session_gap = _checked(session_gap, self)

    @staticmethod
    def with_gap(size: Length) -> "EventTimeSessionWindows[Any]":
        """Sessions that end after a gap of ``size``."""
        return EventTimeSessionWindows(millis_of(size, "EventTimeSessionWindows.with_gap()"))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicEventTimeSessionWindows[Any]":
        """Sessions whose gap depends on the record."""
        return DynamicEventTimeSessionWindows(extractor)

    def _gap_of(self, element: T) -> int:
        return self._session_gap

    def __repr__(self) -> str:
        return f"EventTimeSessionWindows({self._session_gap})"


class ProcessingTimeSessionWindows(_ProcessingTimeSessions[T]):
    """Sessions of one gap, by the clock."""

    def __init__(self, session_gap: int | Length) -> None:
        self._session_gap = _checked(session_gap, self)

    @staticmethod
    def with_gap(size: Length) -> "ProcessingTimeSessionWindows[Any]":
        """Sessions that end after a gap of ``size``."""
        return ProcessingTimeSessionWindows(millis_of(size, "ProcessingTimeSessionWindows.with_gap()"))

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicProcessingTimeSessionWindows[Any]":
        """Sessions whose gap depends on the record."""
        return DynamicProcessingTimeSessionWindows(extractor)

    def _gap_of(self, element: T) -> int:
        return self._session_gap

    def __repr__(self) -> str:
        return f"ProcessingTimeSessionWindows({self._session_gap})"


class DynamicEventTimeSessionWindows(_EventTimeSessions[T]):
    """Sessions whose gap depends on the record, by the timestamps of records."""

    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor) -> None:
        self._session_window_time_gap_extractor = session_window_time_gap_extractor

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicEventTimeSessionWindows[Any]":
        """Sessions whose gap ``extractor`` takes from the record."""
        return DynamicEventTimeSessionWindows(extractor)

    def _gap_of(self, element: T) -> int:
        return _extracted(self._session_window_time_gap_extractor, element)

    def __repr__(self) -> str:
        return f"DynamicEventTimeSessionWindows({self._session_window_time_gap_extractor!r})"


class DynamicProcessingTimeSessionWindows(_ProcessingTimeSessions[T]):
    """Sessions whose gap depends on the record, by the clock."""

    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor) -> None:
        self._session_window_time_gap_extractor = session_window_time_gap_extractor

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicProcessingTimeSessionWindows[Any]":
        """Sessions whose gap ``extractor`` takes from the record."""
        return DynamicProcessingTimeSessionWindows(extractor)

    def _gap_of(self, element: T) -> int:
        return _extracted(self._session_window_time_gap_extractor, element)

    def __repr__(self) -> str:
        return f"DynamicProcessingTimeSessionWindows({self._session_window_time_gap_extractor!r})"


def _checked(gap: int | Length, assigner: object) -> int:
    gap = millis_of(gap, type(assigner).__name__, takes_number=True)
    if gap <= 0:
        raise JobGraphError(f"{type(assigner).__name__} needs a gap above 0, got {gap} ms")
    return gap


def _extracted(extractor: SessionWindowTimeGapExtractor, element: Any) -> int:
    gap = extractor.extract(element)
    if type(gap) is not int:
        gap = millis_of(gap, f"what {type(extractor).__name__}.extract() gives", takes_number=True)
    if gap <= 0:
        raise FlowletError(f"the gap of a session must be above 0, {type(extractor).__name__} gave {gap} ms")
    return gap
