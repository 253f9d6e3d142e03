"""Clock and timers as operators see them.

Side:       task.  Protocols and frozen facts only; whoever runs the operator brings the implementations.
Invariants: every callback runs on the task's thread; a timer that was cancelled or deleted before it fired is never heard of.
Units:      timestamps and delays in milliseconds, processing time since the epoch.
Source:     Flink ``ProcessingTimeService``, ``InternalTimerService``, ``InternalTimer``, ``Triggerable``, ``KeyContext``.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

from flowlet.records import LatencyMarker, Watermark, WatermarkStatus


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY  # not None, which is a key


class KeyContext:
    """The key of the record, or of the timer, that is being processed; ``NO_KEY`` where the stream has none.

    Threading: task thread only.
    """

    __slots__ = ("current_key",)

    def __init__(self) -> None:
        self.current_key: Any = NO_KEY

    def __repr__(self) -> str:
        return f"<KeyContext at {self.current_key!r}>"


class TimerHandle(Protocol):
    """A timer that can still be called off."""

    def cancel(self) -> None:
        """Do not fire, unless the callback has begun."""


class ProcessingTimeService(Protocol):
    """The clock of a task; its timers fire as mails of the operator that registered them."""

    def current_time_ms(self) -> int:
        """Now."""

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], None]) -> TimerHandle:
        """Have ``callback(timestamp_ms)`` called once the clock shows more than ``timestamp_ms``."""

    def schedule_with_fixed_delay(self, callback: Callable[[int], None], *, initial_delay_ms: int, period_ms: int) -> TimerHandle:
        """Have ``callback(now)`` called again and again, ``period_ms`` after the call before it has ended."""


@runtime_checkable
class RelativeClock(Protocol):
    """What a processing time service may also be: a clock to measure idleness with."""

    def relative_time_ns(self) -> int:
        """Nanoseconds of a clock that is never set, and stands still while the consumers hold the task back."""


class InternalTimer(Protocol):
    """A timer that fires now."""

    @property
    def timestamp(self) -> int:
        """When it was to fire."""

    @property
    def key(self) -> Any:
        """The key under which it was registered."""

    @property
    def namespace(self) -> Any:
        """Such as a window; None where there is only one."""


class Triggerable(Protocol):
    """What is told of timers; the key context is set to the timer's key before each call."""

    def on_event_time(self, timer: InternalTimer) -> None:
        """The watermark reached the timer."""

    def on_processing_time(self, timer: InternalTimer) -> None:
        """The clock reached the timer."""


class InternalTimerService(Protocol):
    """Timers of one name of one operator, per key and namespace; a timer that exists already is not registered twice."""

    def current_processing_time(self) -> int:
        """Now."""

    def current_watermark(self) -> int:
        """The last watermark that reached the operator."""

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """For the current key."""

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """For the current key."""

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Of the current key; nothing if there is none."""

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Of the current key; nothing if there is none."""


class LatencyReporter(Protocol):
    """Keeps how long records took from their sources."""

    def report(self, marker: LatencyMarker, now_ms: int) -> None:
        """A marker arrived."""


class WatermarkOutput(Protocol):
    """The part of an operator's output that event time needs."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark to every consumer."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status to every consumer."""


class InternalTimeServiceManager(Protocol):
    """The timer services of one operator, by name."""

    def timer_service(self, name: str, triggerable: Triggerable) -> InternalTimerService:
        """The service of that name, made at the first call."""

    def snapshot(self) -> Mapping[int, Mapping[str, object]]:
        """All timers by key group and name of the service; nobody changes it any more."""

    def restore(self, groups: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over the timers of this subtask's key groups; before the first ``timer_service``."""

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        """Fire every event time timer up to and including a watermark, then pass it on; the last part may follow later, in a mail."""

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        """Pass a status on, behind the watermarks that came before it."""
