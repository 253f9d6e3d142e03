"""Watermark generators: they derive watermarks from the timestamps seen so far.

Side:       pure.  A strategy makes a generator on the task's thread, which alone uses it.
Invariants: the watermark of a generator of this module never falls.  A record further behind than the bound is late.
Units:      timestamps in milliseconds, idleness in nanoseconds of a monotonic clock.
Source:     Flink ``WatermarkGenerator``, ``BoundedOutOfOrdernessWatermarks``, ``NoWatermarksGenerator``,
            ``WatermarksWithIdleness`` with its ``IdlenessTimer``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

from flowlet.errors import JobGraphError

__all__ = [
    "BoundedOutOfOrdernessWatermarks",
    "NoWatermarks",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarksWithIdleness",
]

_MIN_TIMESTAMP: Final = -(2**63)  # Flink's initial watermark, ``Long.MIN_VALUE``


class WatermarkOutput(Protocol):
    """The output that a generator emits watermarks into."""

    def emit_watermark(self, timestamp: int) -> None:
        """Promise that no record with a timestamp up to ``timestamp`` follows, and mark the stream as active.

        Ignored if ``timestamp`` is not above the last one.
        """

    def mark_idle(self) -> None:
        """Mark the stream as idle: consumers do not wait for its watermarks."""

    def mark_active(self) -> None:
        """Mark the stream as active: consumers wait for its watermarks again."""


class WatermarkGenerator(ABC):
    """Makes watermarks from the records of one subtask.

    If ``needs_events`` is False, it gets only the largest timestamp of each chunk, never ``on_event``, which saves the
    calls per record.
    """

    needs_events: bool = True

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Process one record; consumers get the record before anything that is emitted here."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit a watermark, if there is a new one; called once per auto watermark interval, and at the end of the
        input.
        """

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Process the largest timestamp of a chunk; called only if ``needs_events`` is False."""
        raise TypeError(f"a {type(self).__name__} needs every event")


class _FollowsTheLargest(WatermarkGenerator):
    """The base of generators that need only the largest timestamps."""

    needs_events = False

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Process a chunk of one record."""
        self.on_largest_timestamp(event_timestamp)


class BoundedOutOfOrdernessWatermarks(_FollowsTheLargest):
    """Emits the largest timestamp, less the bound, less 1 ms, because another record may have that same timestamp.

    ``max_out_of_orderness_ms``: how far a record may be behind the largest timestamp before it.
    """

    def __init__(self, max_out_of_orderness_ms: int) -> None:
        self._bound_ms = max_out_of_orderness_ms
        # So large that the first watermark does not fall below the smallest timestamp.
        self._largest = _MIN_TIMESTAMP + max_out_of_orderness_ms + 1

    def __repr__(self) -> str:
        return f"<BoundedOutOfOrdernessWatermarks by {self._bound_ms} ms, largest {self._largest}>"

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Keep the timestamp if it is the largest so far."""
        if timestamp > self._largest:
            self._largest = timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the watermark."""
        output.emit_watermark(self._largest - self._bound_ms - 1)


class NoWatermarks(_FollowsTheLargest):
    """Never emits a watermark."""

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Do nothing."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Do nothing."""


class WatermarksWithIdleness(WatermarkGenerator):
    """Another generator, whose stream becomes idle if there is no record for a while.

    Args:
        generator: called while there are records.
        idle_timeout_ns: > 0; rounded up to the interval of periodic calls.
        now_ns: a monotonic clock that stands still while slow consumers keep the task from reading its input: a
            back-pressured stream is not idle (FLINK-35886).

    Raises:
        JobGraphError: the timeout is not positive.
    """

    def __init__(self, generator: WatermarkGenerator, idle_timeout_ns: int, now_ns: Callable[[], int]) -> None:
        if idle_timeout_ns <= 0:
            raise JobGraphError(f"the idle timeout must be more than 0, got {idle_timeout_ns} ns")
        self._generator = generator
        self.needs_events = generator.needs_events
        self._idle_timeout_ns = idle_timeout_ns
        self._now_ns = now_ns
        self._is_active = False
        self._inactive_since_ns: int | None = None

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Pass the record to the other generator; the stream is active."""
        self._is_active = True
        self._generator.on_event(event, event_timestamp, output)

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Pass the timestamp to the other generator; the stream is active."""
        self._is_active = True
        self._generator.on_largest_timestamp(timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Mark the stream idle, or call the other generator."""
        if self._is_idle():
            output.mark_idle()
        else:
            self._generator.on_periodic_emit(output)

    def _is_idle(self) -> bool:
        """Whether no record has come for too long, counted from the first call without activity."""
        if self._is_active:
            self._is_active = False
            self._inactive_since_ns = None
            return False
        if self._inactive_since_ns is None:
            self._inactive_since_ns = self._now_ns()
            return False
        return self._now_ns() - self._inactive_since_ns > self._idle_timeout_ns
