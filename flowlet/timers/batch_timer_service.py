"""The timers of BATCH mode: nothing fires before the input's end, and then one key after the other.

Side:       task.
Invariants: at the end of a key the watermark is ``MAX_TIMESTAMP``: first its event time timers fire, then those of the
            clock, whatever the clock shows.  Between keys the watermark is ``MIN_TIMESTAMP``, as while records are
            processed.
Units:      timestamps in milliseconds.
Source:     Flink ``BatchExecutionInternalTimeService``.  Where the input is sorted by key, a key ends where the next
            one begins.  Where it is not, every key ends with the input, in the order of their oldest timers.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flowlet.keys.exact_keys import exact_key
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from flowlet.timers.keyed_timer_service import KeyedTimerService
from flowlet.timers.time_api import InternalTimer
from flowlet.timers.timer_queue import Timer, TimerQueue
from netstack.log_lines import LogLines

_log = LogLines(__name__)


class BatchTimerService(KeyedTimerService):
    """A ``KeyedTimerService`` that waits for the end of the input; task thread only."""

    _has_warned = False

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key; at the key's end it is ignored with a warning, as in Flink."""
        if not self._is_at_end(timestamp):
            super().register_event_time_timer(namespace, timestamp)

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        """Register a timer for the current key; at the key's end it is ignored with a warning, as in Flink."""
        if not self._is_at_end(timestamp):
            super().register_processing_time_timer(namespace, timestamp)

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """Fire all timers, key by key, at the end of the input; earlier watermarks do nothing."""
        if timestamp == MAX_TIMESTAMP:
            self._fire_all()
        return True

    def end_keys(self) -> None:
        """Fire all timers, key by key: no more records of these keys follow."""
        if len(self._event_time) or len(self._processing_time):
            self._fire_all()

    def _is_at_end(self, timestamp: int) -> bool:
        if self._watermark != MAX_TIMESTAMP:
            return False
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a timer that was registered at the end of its key in BATCH mode is ignored",
                service=self.name,
                timestamp=timestamp,
            )
        return True

    def _fire_all(self) -> None:
        event_time, processing_time = _by_key(self._event_time), _by_key(self._processing_time)
        for key in event_time | processing_time:
            self._watermark = MAX_TIMESTAMP
            self._fire_each(self._event_time, event_time.get(key, ()), self._triggerable.on_event_time)
            self._fire_each(self._processing_time, processing_time.get(key, ()), self._triggerable.on_processing_time)
            self._watermark = MIN_TIMESTAMP

    def _fire_each(self, queue: TimerQueue, timers: Iterable[Timer], trigger: Callable[[InternalTimer], None]) -> None:
        for timer in sorted(timers, key=lambda each: each.timestamp):
            if queue.remove(timer):  # False: a timer before it has deleted it
                self._fire(timer, trigger)

    def _watch_clock(self) -> None:
        """Do nothing: the clock fires no timer."""


def _by_key(queue: TimerQueue) -> dict[Any, list[Timer]]:
    keys: dict[Any, list[Timer]] = {}
    for timer in queue:
        keys.setdefault(exact_key(timer.key), []).append(timer)
    return keys
