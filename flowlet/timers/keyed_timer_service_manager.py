"""All timer services of one operator, and the watermarks that fire their timers.

The timers of BATCH mode: nothing fires before the input's end, and then one key after the other.

Side:       task.
Invariants: at the end of a key the watermark is ``MAX_TIMESTAMP``: first its event time timers fire, then those of the
            clock, whatever the clock shows.  Between keys the watermark is ``MIN_TIMESTAMP``, as while records are
            processed.  a watermark is passed on after all timers up to it have fired.  Whoever finishes the operator
            waits until ``is_interrupted`` is false, so no timer is left then.
Units:      timestamps in milliseconds.
Source:     Flink ``BatchExecutionInternalTimeService``.  Where the input is sorted by key, a key ends where the next
            one begins.  Where it is not, every key ends with the input, in the order of their oldest timers.  Flink
            ``InternalTimeServiceManagerImpl``, ``MailboxWatermarkProcessor`` (FLINK-20217: timers must let barriers
            pass).  Unlike there each watermark is passed on, with its own timers before it: so interruptions, which are
            left to chance, change no result.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowlet.keys.exact_keys import exact_key
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.records import IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark, WatermarkStatus
from flowlet.timers.keyed_timer_service import BUDGET_NS, KeyedTimerService, KeyGroupTimers, never
from flowlet.timers.time_api import KeyContext, ProcessingTimeService, Timer, TimerQueue, Triggerable, WatermarkOutput
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

    def _fire_each(self, queue: TimerQueue, timers: Iterable[Timer], trigger: Callable[[Timer], None]) -> None:
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


TimersByKeyGroup = Mapping[int, Mapping[str, KeyGroupTimers]]


class KeyedTimerServiceManager:
    """Makes the timer services of one operator and advances them together; task thread only.

    Life cycle: ``restore`` before the first ``timer_service``; ``close`` at the end.

    Args:
        key_context: the operator's.
        clock: the operator's.
        key_groups: this subtask's.
        max_parallelism: the number of key groups.
        should_interrupt: see ``KeyedTimerService``.
        executor: the operator's; None: watermarks are never interrupted.
        clock_ns: of a monotonic clock, after ``BUDGET_NS`` of which timers are interrupted, too: the task looks for a
            barrier.
        is_batch: every service is a ``BatchTimerService``.
        has_records_behind: whether records follow the present watermark that cannot wait for a mail.
    """

    def __init__(
        self,
        key_context: KeyContext,
        clock: ProcessingTimeService,
        key_groups: range,
        max_parallelism: int,
        *,
        should_interrupt: Callable[[], bool] = never,
        executor: MailboxExecutor | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        is_batch: bool = False,
        has_records_behind: Callable[[], bool] = never,
    ) -> None:
        self._has_records_behind = has_records_behind
        self._clock_ns = clock_ns
        self._is_batch = is_batch
        self._key_context = key_context
        self._clock = clock
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._should_interrupt = should_interrupt
        self._executor = executor
        self._services: dict[str, KeyedTimerService] = {}
        self._restored: dict[str, dict[int, KeyGroupTimers]] = {}  # for services that were not made yet
        self._output: WatermarkOutput | None = None  # set with the first watermark that can fire timers
        self._end_ns = 0
        # Watermarks whose timers have not all fired; few: no record passes meanwhile.
        self._targets: deque[int] = deque()
        self._emitted = MIN_TIMESTAMP
        self.is_interrupted = False
        """Whether timers up to the last watermark are left, which a mail will fire."""
        self._has_left_rest = False
        self._is_idle_next = False  # whether the input became idle while timers were left

    def __repr__(self) -> str:
        return f"<KeyedTimerServiceManager of {list(self._services.values())!r}>"

    @property
    def num_fired_timers(self) -> int:
        """The number of timers fired so far; any thread, one pass stale."""
        return sum(service.num_fired_timers for service in list(self._services.values()))

    def timer_service(self, name: str, triggerable: Triggerable, *, is_batch: bool = False) -> KeyedTimerService:
        """The service of that name, made at the first call with its restored timers; ``is_batch``: a
        ``BatchTimerService``.
        """
        if name not in self._services:
            service = (BatchTimerService if is_batch or self._is_batch else KeyedTimerService)(
                name,
                triggerable,
                key_context=self._key_context,
                clock=self._clock,
                key_groups=self._key_groups,
                max_parallelism=self._max_parallelism,
                should_interrupt=self._should_interrupt,
                clock_ns=self._clock_ns,
            )
            service.restore(self._restored.pop(name, {}))
            self._services[name] = service
        return self._services[name]

    @property
    def is_used(self) -> bool:
        """Whether a service was made."""
        return bool(self._services)

    def end_keys(self) -> None:
        """Fire all timers of services in BATCH mode: no more records of the keys so far follow."""
        for service in self._services.values():
            if isinstance(service, BatchTimerService):
                service.end_keys()

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        """Fire the timers up to a watermark, then pass it on; mails may interrupt, then the rest follows in a mail.

        The task lets no record pass before all timers have fired (``is_interrupted``); a barrier may.
        """
        if self._output is None and not self._services:
            output.emit_watermark(watermark)
            return
        self._output = output
        target = max(self._emitted, watermark.timestamp)  # one that comes again fires what was set up to it in between
        if not self._targets or target > self._targets[-1]:
            self._targets.append(target)
        if not self.is_interrupted or self._has_records_behind():
            self._go_on(output)

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        """Pass a status on behind the watermarks that came before it: consumers drop those of an idle input."""
        if not self.is_interrupted:
            output.emit_watermark_status(status)
        else:
            self._is_idle_next = status.is_idle  # "active" only cancels an "idle" that was not passed on yet

    def leave_rest(self) -> None:
        """Fire no more of the timers that mails have interrupted: they stay for the snapshot that follows."""
        if self._output is not None:
            self._has_left_rest = True
            self.is_interrupted = False

    def _go_on(self, output: WatermarkOutput) -> None:
        self._end_ns = self._clock_ns() + BUDGET_NS
        should_stop = never if self._executor is None or self._has_records_behind() else self._should_stop
        while self._targets:
            target = self._targets[0]
            if not self.try_advance_watermark(target, should_stop):
                if (drain := getattr(output, "drain", None)) is not None:
                    drain()  # the results so far, which else would wait for the watermark
                if not self.is_interrupted:
                    assert self._executor is not None, "only an operator with an executor is interrupted"
                    self.is_interrupted = True
                    # Deferrable: yields of operators do not run it.
                    self._executor.execute(self._on_mail, "timers up to %s", target, options=MailOptions.DEFERRABLE)
                return
            self._targets.popleft()
            if target > self._emitted:
                self._emitted = target
                output.emit_watermark(Watermark(target))
        if self._is_idle_next:
            self._is_idle_next = False
            output.emit_watermark_status(IDLE)

    def _should_stop(self) -> bool:
        return self._should_interrupt() or self._clock_ns() >= self._end_ns

    def _on_mail(self) -> None:
        if not self._has_left_rest:
            assert self._output is not None, "a watermark was interrupted"
            self.is_interrupted = False
            self._go_on(self._output)

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """Fire the event time timers of every service up to ``timestamp``; False if due ones are left."""
        return all(service.try_advance_watermark(timestamp, should_stop) for service in self._services.values())

    def snapshot(self) -> TimersByKeyGroup:
        """All timers by key group and name of the service, also those restored for services that were never made."""
        groups: dict[int, dict[str, KeyGroupTimers]] = {}
        by_name = self._restored | {name: service.snapshot() for name, service in self._services.items()}
        for name, timers in by_name.items():
            for group, of_group in timers.items():
                groups.setdefault(group, {})[name] = of_group
        return groups

    def restore(self, groups: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over this subtask's timers from a snapshot, which may hold those of other subtasks.

        Raises:
            RuntimeError: a service was made already.
        """
        if self._services:
            raise RuntimeError(f"timers must be restored before the first timer_service(): {self!r}")
        for group in self._key_groups:
            for name, timers in groups.get(group, {}).items():
                self._restored.setdefault(name, {})[group] = timers

    def close(self) -> None:
        """Cancel the clock's callbacks: no processing time timer fires any more."""
        for service in self._services.values():
            service.close()
