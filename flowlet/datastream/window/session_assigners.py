"""Sessions: windows that end after a gap without records.

Side:   pure.
Units:  milliseconds.
Source: PyFlink ``pyflink.datastream.window``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Self

from flowlet.common.time import Length, millis_of
from flowlet.datastream.user_functions.argument_checks import T
from flowlet.datastream.window.window_assigners import (
    EventTimeWindowAssigner,
    MergingWindowAssigner,
    ProcessingTimeWindowAssigner,
    TimeWindowAssigner,
)
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
    """Gives the gap after which the session of a record ends."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """The gap in milliseconds, above 0."""


class _Sessions(TimeWindowAssigner[T], MergingWindowAssigner[T, TimeWindow]):
    """Gives each record a window of the gap's length; windows that touch each other become one."""

    def merge_windows(
        self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
    ) -> None:
        """Merge windows that touch each other."""
        TimeWindow.merge_windows(windows, callback)


class _SessionsOfOneGap(_Sessions[T]):
    def __init__(self, session_gap: int | Length) -> None:
        name = type(self).__name__
        gap = millis_of(session_gap, name, takes_number=True)
        if gap <= 0:
            raise JobGraphError(f"{name} needs a gap above 0, got {gap} ms")
        self._session_gap = gap

    @classmethod
    def with_gap(cls, size: Length) -> Self:
        """Sessions that end after a gap of ``size``."""
        return cls(millis_of(size, f"{cls.__name__}.with_gap()"))

    def _windows_of(self, element: T, timestamp: int) -> list[TimeWindow]:
        return [TimeWindow(timestamp, timestamp + self._session_gap)]


class _DynamicSessions(_Sessions[T]):
    def __init__(self, session_window_time_gap_extractor: SessionWindowTimeGapExtractor) -> None:
        self._session_window_time_gap_extractor = session_window_time_gap_extractor

    @classmethod
    def with_dynamic_gap(cls, extractor: SessionWindowTimeGapExtractor) -> Self:
        """Sessions whose gap ``extractor`` takes from the record."""
        return cls(extractor)

    def _windows_of(self, element: T, timestamp: int) -> list[TimeWindow]:
        extractor = self._session_window_time_gap_extractor
        gap = extractor.extract(element)
        if type(gap) is not int:
            gap = millis_of(gap, f"what {type(extractor).__name__}.extract() gives", takes_number=True)
        if gap <= 0:
            raise FlowletError(f"the gap of a session must be above 0, {type(extractor).__name__} gave {gap} ms")
        return [TimeWindow(timestamp, timestamp + gap)]


class EventTimeSessionWindows(EventTimeWindowAssigner[T], _SessionsOfOneGap[T]):
    """Sessions of one gap, by the timestamps of records."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicEventTimeSessionWindows[Any]":
        """Sessions whose gap depends on the record."""
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(ProcessingTimeWindowAssigner[T], _SessionsOfOneGap[T]):
    """Sessions of one gap, by the clock."""

    @staticmethod
    def with_dynamic_gap(extractor: SessionWindowTimeGapExtractor) -> "DynamicProcessingTimeSessionWindows[Any]":
        """Sessions whose gap depends on the record."""
        return DynamicProcessingTimeSessionWindows(extractor)


class DynamicEventTimeSessionWindows(EventTimeWindowAssigner[T], _DynamicSessions[T]):
    """Sessions whose gap depends on the record, by the timestamps of records."""


class DynamicProcessingTimeSessionWindows(ProcessingTimeWindowAssigner[T], _DynamicSessions[T]):
    """Sessions whose gap depends on the record, by the clock."""
