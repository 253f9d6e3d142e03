"""The timers of one name of one operator: per key and namespace, for event time and processing time.

Hot path, per timer: one dictionary access and one heap operation to register, the same to fire.

Side:       task.
Invariants: one timer per time domain, timestamp, key and namespace, however often it was added.  A timer fires once,
            with its key as the current key.  At most one callback is registered with the clock, for the earliest
            processing time timer.  The watermark only rises.
Units:      timestamps in milliseconds.
Source:     Flink ``InternalTimerServiceImpl``; FLINK-20217: a long run of timers lets mails pass.  Flink
            ``TimerHeapInternalTimer``, ``HeapPriorityQueueSet``, ``KeyGroupedInternalPriorityQueue``: Flink keeps one
            set per key group; here the key groups are computed when a snapshot is taken.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from flowlet.keys.exact_keys import key_group
from flowlet.records import MIN_TIMESTAMP
from flowlet.timers.time_api import (
    NO_KEY,
    KeyContext,
    ProcessingTimeService,
    Timer,
    TimerHandle,
    TimerQueue,
    Triggerable,
)
from netstack.late import dataclass

BUDGET_NS: Final = 10_000_000  # as of a slice of records


@dataclass(frozen=True, slots=True)
class KeyGroupTimers:
    """The timers of one service for one key group; nobody changes it later."""

    event_time: tuple[Timer, ...] = ()
    processing_time: tuple[Timer, ...] = ()


def never() -> bool:
    """Return False: the loop is not to be interrupted."""
    return False


class KeyedTimerService:
    """Keeps the timers of one subtask's keys; task thread only.

    Args:
        name: the service's.
        triggerable: is called for each timer that fires.
        key_context: holds the key for which a timer is registered; set to the timer's key while it fires.
        clock: processing time.
        key_groups: this subtask's.
        max_parallelism: the number of key groups.
        should_interrupt: whether a run of processing time timers must let mails pass.
        clock_ns: of a monotonic clock, after ``BUDGET_NS`` of which it pauses, too: so its results leave the task.
    """

    def __init__(
        self,
        name: str,
        triggerable: Triggerable,
        *,
        key_context: KeyContext,
        clock: ProcessingTimeService,
        key_groups: range,
        max_parallelism: int,
        should_interrupt: Callable[[], bool] = never,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = name
        self._triggerable = triggerable
        self._key_context = key_context
        self._clock = clock
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._should_interrupt = should_interrupt
        self._clock_ns = clock_ns
        self._event_time = TimerQueue()
        self._processing_time = TimerQueue()
        self._watermark = MIN_TIMESTAMP
        self._clock_timer: TimerHandle | None = None
        self._clock_timer_ms = 0  # when _clock_timer fires
        self._is_closed = False
        self.num_fired_timers = 0  # Written by the task thread; read anywhere, one pass stale is fine.

    def __repr__(self) -> str:
        event, processing = len(self._event_time), len(self._processing_time)
        return (
            f"<KeyedTimerService {self.name} at {self._watermark}, {event} event time and {processing} processing "
            "time timers>"
        )

    def current_processing_time(self) -> int:
        """The time of the wall clock."""
        return self._clock.current_time_ms()

    def current_watermark(self) -> int:
        """The last watermark that reached the operator; -2**63 before the first."""
        return self._watermark

    @property
    def num_event_time_timers(self) -> int:
        """The number of timers that wait for the watermark."""
        return len(self._event_time)

    @property
    def num_processing_time_timers(self) -> int:
        """The number of timers that wait for the clock."""
        return len(self._processing_time)

    # -- the current key's timers

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key; a timer in the past fires with the next watermark."""
        self._event_time.add(self._timer(namespace, timestamp))

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key; a timer in the past fires with the next mails."""
        if self._processing_time.add(self._timer(namespace, timestamp)):
            self._watch_clock()

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one."""
        self._event_time.remove(self._timer(namespace, timestamp))

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Delete a timer of the current key, if there is one.  A callback of the clock for it does nothing."""
        self._processing_time.remove(self._timer(namespace, timestamp))

    def _timer(self, namespace: Any, timestamp: int) -> Timer:
        key = self._key_context.current_key
        if key is NO_KEY:
            raise RuntimeError(f"timer service {self.name}: there is no current key; use timers only on a keyed stream")
        return Timer(timestamp, key, namespace)

    # -- firing

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """Fire all event time timers up to and including ``timestamp``, even those that are registered meanwhile; may
        stop after a timer: False if due timers are left.

        Fires at least one timer, so repeated calls come to an end.
        """
        self._watermark = max(self._watermark, timestamp)
        while (timer := self._event_time.pop_until(timestamp)) is not None:
            self._fire(timer, self._triggerable.on_event_time)
            if should_stop():
                due = self._event_time.next_timestamp()
                return due is None or due > timestamp
        return True

    def _on_clock(self, timestamp_ms: int) -> None:
        self._clock_timer = None
        end_ns = self._clock_ns() + BUDGET_NS
        while (timer := self._processing_time.pop_until(timestamp_ms)) is not None:
            self._fire(timer, self._triggerable.on_processing_time)
            if self._should_interrupt() or self._clock_ns() >= end_ns:
                break  # _watch_clock registers the rest, which is due at once: a mail behind those that wait
        self._watch_clock()

    def _fire(self, timer: Timer, trigger: Callable[[Timer], None]) -> None:
        self.num_fired_timers += 1
        # The key is restored: a timer's mail may run while an operator yields inside a record, whose key must not
        # change.
        before = self._key_context.current_key
        self._key_context.current_key = timer.key
        try:
            trigger(timer)
        finally:
            self._key_context.current_key = before

    def _watch_clock(self) -> None:
        """Register a callback with the clock for the earliest timer."""
        due = self._processing_time.next_timestamp()
        if due is None or self._is_closed:
            return
        if self._clock_timer is not None:
            if self._clock_timer_ms <= due:
                return
            self._clock_timer.cancel()
        self._clock_timer_ms = due
        self._clock_timer = self._clock.register_timer(due, self._on_clock)

    # -- state

    def snapshot(self) -> dict[int, KeyGroupTimers]:
        """All timers by key group."""
        event_time = self._event_time.by_key_group(self._max_parallelism)
        processing_time = self._processing_time.by_key_group(self._max_parallelism)
        return {
            group: KeyGroupTimers(tuple(event_time.get(group, ())), tuple(processing_time.get(group, ())))
            for group in sorted({*event_time, *processing_time})
        }

    def restore(self, groups: Mapping[int, KeyGroupTimers]) -> None:
        """Take over timers of this subtask's key groups from snapshots.

        Raises:
            ValueError: a key group, or the key of a timer, belongs to another subtask.
        """
        for group, timers in groups.items():
            if group not in self._key_groups:
                raise ValueError(f"timer service {self.name}: key group {group} is not in {self._key_groups}")
            self._check_group(group, (*timers.event_time, *timers.processing_time))
            self._event_time.extend(timers.event_time)
            self._processing_time.extend(timers.processing_time)
        self._watch_clock()

    def _check_group(self, group: int, timers: Iterable[Timer]) -> None:
        for timer in timers:
            if (found := key_group(timer.key, self._max_parallelism)) != group:
                raise ValueError(f"timer service {self.name}: {timer} belongs to key group {found}, not {group}")

    def close(self) -> None:
        """Cancel the callback of the clock: no processing time timer fires any more."""
        self._is_closed = True
        if self._clock_timer is not None:
            self._clock_timer.cancel()

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        self._event_time.check_invariants()
        self._processing_time.check_invariants()
        if len(self._processing_time) and not self._is_closed:
            due = self._processing_time.next_timestamp()
            assert due is not None
            assert self._clock_timer is not None, "processing time timers without a timer of the clock"
            assert self._clock_timer_ms <= due, "the clock calls too late"
