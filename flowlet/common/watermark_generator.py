"""Watermark generators: what the timestamps seen so far say about those to come.

Side:       pure.  A generator is made from a strategy on the task's thread and lives there.
Invariants: the watermark of a generator of this module never falls; a record behind it by more than the bound is late.
Units:      timestamps in milliseconds, idleness in nanoseconds of a clock that is never set.
Source:     Flink ``WatermarkGenerator``, ``BoundedOutOfOrdernessWatermarks``, ``NoWatermarksGenerator``, ``WatermarksWithIdleness`` with
            its ``IdlenessTimer``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Protocol

from flowlet.errors import JobGraphError

__all__ = ["BoundedOutOfOrdernessWatermarks", "NoWatermarks", "WatermarkGenerator", "WatermarkOutput", "WatermarksWithIdleness"]

_MIN_TIMESTAMP: Final = -(2**63)  # Flink begins with ``Long.MIN_VALUE``


class WatermarkOutput(Protocol):
    """Where a generator says what it knows."""

    def emit_watermark(self, timestamp: int) -> None:
        """No record at or before ``timestamp`` comes any more, and the stream is active; ignored if it is no progress."""

    def mark_idle(self) -> None:
        """Consumers shall not wait for this stream's watermarks."""

    def mark_active(self) -> None:
        """Consumers shall wait for this stream's watermarks again."""


class WatermarkGenerator(ABC):
    """Follows the records of one subtask.

    A generator whose ``needs_events`` is False is given the largest timestamp of each chunk, and never ``on_event``: that is all that the
    generators of this module look at, and it costs nothing per record.
    """

    @property
    def needs_events(self) -> bool:
        """Whether ``on_event`` is called with each record."""
        return True

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Look at one record, which consumers get before whatever is emitted here."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called once per auto watermark interval, and when the input ends."""

    def on_largest_timestamp(self, timestamp: int) -> None:
        """A chunk went by; only if ``needs_events`` is False."""
        raise TypeError(f"a {type(self).__name__} needs every event")


class _FollowsTheLargest(WatermarkGenerator):
    """What the generators have in common that do not need every event."""

    @property
    def needs_events(self) -> bool:
        """No."""
        return False

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """As a chunk of one record."""
        self.on_largest_timestamp(event_timestamp)


class BoundedOutOfOrdernessWatermarks(_FollowsTheLargest):
    """The largest timestamp, less the bound, less one millisecond: another record may have the very same timestamp.

    Args:
        max_out_of_orderness_ms: how far a record may lie behind the largest timestamp before it.
    """

    def __init__(self, max_out_of_orderness_ms: int) -> None:
        self._bound_ms = max_out_of_orderness_ms
        # The first watermark must not fall below the smallest timestamp.
        self._largest = _MIN_TIMESTAMP + max_out_of_orderness_ms + 1

    def __repr__(self) -> str:
        return f"<BoundedOutOfOrdernessWatermarks by {self._bound_ms} ms, largest {self._largest}>"

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Remember it if it is larger than all before."""
        if timestamp > self._largest:
            self._largest = timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit what is known."""
        output.emit_watermark(self._largest - self._bound_ms - 1)


class NoWatermarks(_FollowsTheLargest):
    """Never says anything."""

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Ignore it."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing."""


class _IdlenessTimer:
    """Whether nothing happened for too long; the time runs from the first look that found nothing new."""

    def __init__(self, max_idle_ns: int, now_ns: Callable[[], int]) -> None:
        self._max_idle_ns = max_idle_ns
        self._now_ns = now_ns
        self._is_active = False
        self._inactive_since_ns: int | None = None

    def activity(self) -> None:
        self._is_active = True

    def check_if_idle(self) -> bool:
        if self._is_active:
            self._is_active = False
            self._inactive_since_ns = None
            return False
        if self._inactive_since_ns is None:
            self._inactive_since_ns = self._now_ns()
            return False
        return self._now_ns() - self._inactive_since_ns > self._max_idle_ns


class WatermarksWithIdleness(WatermarkGenerator):
    """Another generator, and idleness once it saw no record for a while.

    Args:
        generator: asked as long as there are records.
        idle_timeout_ns: > 0; measured between periodic calls, so that it is rounded up to their interval.
        now_ns: a clock that only moves on, and stands still while the task cannot read its input because its consumers are slow: a
            stream under backpressure is not idle (FLINK-35886).

    Raises:
        JobGraphError: the timeout is not positive.
    """

    def __init__(self, generator: WatermarkGenerator, idle_timeout_ns: int, now_ns: Callable[[], int]) -> None:
        if idle_timeout_ns <= 0:
            raise JobGraphError(f"the idle timeout must be more than 0, got {idle_timeout_ns} ns")
        self._generator = generator
        self._timer = _IdlenessTimer(idle_timeout_ns, now_ns)

    @property
    def needs_events(self) -> bool:
        """As the other generator."""
        return self._generator.needs_events

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Show it to the other generator; the stream is not idle."""
        self._timer.activity()
        self._generator.on_event(event, event_timestamp, output)

    def on_largest_timestamp(self, timestamp: int) -> None:
        """Show it to the other generator; the stream is not idle."""
        self._timer.activity()
        self._generator.on_largest_timestamp(timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Say that the stream is idle, or let the other generator speak."""
        if self._timer.check_if_idle():
            output.mark_idle()
        else:
            self._generator.on_periodic_emit(output)
