"""The clock and the timers as operators see them.

Side:       task.  Protocols and values; the task that runs the operator provides the implementations.
Invariants: callbacks run on the task's thread, never for a timer that was cancelled or deleted before it fired.
Units:      timestamps and delays in milliseconds, processing time since the epoch.
Source:     Flink ``ProcessingTimeService``, ``InternalTimerService``, ``InternalTimer``, ``Triggerable``,
            ``KeyContext``, ``InternalTimeServiceManager``.
"""

from collections.abc import Callable, Mapping
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


class InternalTimerService(Protocol):
    """The timers of one name of one operator, per key and namespace; to register an existing timer changes nothing."""

    def current_processing_time(self) -> int:
        """The time of the wall clock."""

    def current_watermark(self) -> int:
        """The last watermark that reached the operator."""

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key."""

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key."""

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one."""

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one."""


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


class InternalTimeServiceManager(Protocol):
    """The timer services of one operator, by name.

    One implementer: ``KeyedTimerServiceManager`` imports this module, which therefore cannot import it.
    """

    def timer_service(self, name: str, triggerable: Triggerable, *, is_batch: bool = False) -> InternalTimerService:
        """The service of that name, made at the first call; ``is_batch``: its timers fire at the end of the input, key
        by key.
        """

    @property
    def is_used(self) -> bool:
        """Whether a service was made."""

    def end_keys(self) -> None:
        """Fire all timers of services in BATCH mode, of one key after the other: no more records of
        these keys follow.
        """

    def snapshot(self) -> Mapping[int, Mapping[str, object]]:
        """All timers: key group -> name of the service -> timers; nobody changes it later."""

    def restore(self, groups: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over the timers of this subtask's key groups; call before the first ``timer_service``."""

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        """Fire all event time timers up to and including a watermark, then pass it on; a mail may do the last part
        later.
        """

    @property
    def is_interrupted(self) -> bool:
        """Whether timers up to the last watermark are left, which a mail will fire."""

    def leave_rest(self) -> None:
        """Fire no more of these: they stay for the snapshot that follows."""

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        """Pass a status on behind the watermarks that came before it."""
