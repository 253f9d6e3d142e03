"""The clock and the timers as operators see them.

Side:       task.  Protocols and values; the task that runs the operator provides the implementations.
Invariants: callbacks run on the task's thread, never for a timer that was cancelled or deleted before it fired.
Units:      timestamps and delays in milliseconds, processing time since the epoch.
Source:     Flink ``ProcessingTimeService``, ``InternalTimer``, ``Triggerable``, ``KeyContext``.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

from flowlet.records import LatencyMarker, Watermark, WatermarkStatus
from netstack.late import dataclass


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY  # None would not do: it is a valid key


class KeyContext:
    """Holds the key of the record or timer that is being processed, ``NO_KEY`` if the stream has none; task thread
    only.
    """

    __slots__ = ("current_key",)

    def __init__(self) -> None:
        self.current_key: Any = NO_KEY

    def __repr__(self) -> str:
        return f"<KeyContext at {self.current_key!r}>"


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Do not fire, unless the callback has begun."""


class ProcessingTimeService(Protocol):
    """The clock of a task, and timers that fire as mails of the operator that registered them."""

    def current_time_ms(self) -> int:
        """The time of the wall clock."""

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], None]) -> TimerHandle:
        """Call ``callback(timestamp_ms)`` once the clock shows more than ``timestamp_ms``."""

    def schedule_with_fixed_delay(
        self, callback: Callable[[int], None], *, initial_delay_ms: int, period_ms: int
    ) -> TimerHandle:
        """Call ``callback(now)`` repeatedly, each time ``period_ms`` after the end of the last call."""


@runtime_checkable
class RelativeClock(Protocol):
    """A processing time service that can also measure idleness."""

    def relative_time_ns(self) -> int:
        """Nanoseconds of a monotonic clock that stands still while consumers hold the task back."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one key; ``namespace`` is hashable, for example a window, or None."""

    timestamp: int
    key: Any
    namespace: Any


class Triggerable(Protocol):
    """Is called when timers fire; the current key is then the timer's."""

    def on_event_time(self, timer: Timer) -> None:
        """The watermark reached the timer."""

    def on_processing_time(self, timer: Timer) -> None:
        """The clock reached the timer."""


class LatencyReporter(Protocol):
    """Records how long latency markers took from their sources."""

    def report(self, marker: LatencyMarker, now_ms: int) -> None:
        """Record a marker that arrived at ``now_ms``."""


class WatermarkOutput(Protocol):
    """The part of an operator's output that watermarks need."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark to every consumer."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status to every consumer."""
