"""The clock and the timers as operators see them.

``KeyedTimerService``: the timers of one name of one operator, per key and namespace, for event time and processing
time.  ``KeyedTimerServiceManager``: all timer services of one operator, and the watermarks that fire their timers.

``TimerQueue``: timers in the order in which they fire.

``BatchTimerService``: the timers of BATCH mode, which fire at the input's end, one key after the other.

Hot path, per timer: one dictionary access and one heap operation to register, and as much to fire.

Side:       task.  The task that runs the operator provides the implementations of the protocols.
Invariants: one timer per time domain, timestamp, key and namespace, however often it was added.  A timer fires once,
            with its key as the current key.  At most one callback is registered with the clock, for the earliest
            processing time timer.  The watermark only rises, and is passed on after all timers up to it have fired.
            The task finishes the operator only when ``is_interrupted`` is false, so no timer is left then.  At the end
            of a key of BATCH mode the watermark is ``MAX_TIMESTAMP``: first its event time timers fire, then those of
            the clock, whatever the clock shows.  Between keys, and while records are processed, the watermark is
            ``MIN_TIMESTAMP``.  Callbacks run on the task's thread, never for a timer that was cancelled or deleted
            before it fired.  The heap of a queue holds all live timers, and hardly more deleted ones.
Units:      timestamps and delays in milliseconds, processing time since the epoch.
Source:     Flink ``ProcessingTimeService``, ``InternalTimer``, ``Triggerable``, ``KeyContext``.  Flink
            ``InternalTimerServiceImpl``; FLINK-20217: a long run of timers lets mails pass, and barriers.  Flink
            ``TimerHeapInternalTimer``, ``HeapPriorityQueueSet``, ``KeyGroupedInternalPriorityQueue``: Flink keeps one
            set per key group; here the key groups are computed when a snapshot is taken.  Flink
            ``BatchExecutionInternalTimeService``: where the input is sorted by key, a key ends where the next one
            begins; where it is not, every key ends with the input, in the order of their oldest timers.  Flink
            ``InternalTimeServiceManagerImpl``, ``MailboxWatermarkProcessor``; unlike there each watermark is passed on
            behind its own timers: so interruptions, which come by chance, change no result.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, Protocol

from flowlet.keys.exact_keys import exact_key, key_group
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.records import IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark, WatermarkStatus
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import Cancellable


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Final = _NoKey.NO_KEY  # not None, which is a valid key


class KeyContext:
    """Holds the key of the record or timer at hand, ``NO_KEY`` if the stream has none; task thread only."""

    __slots__ = ("current_key",)

    def __init__(self) -> None:
        self.current_key: Any = NO_KEY

    def __repr__(self) -> str:
        return f"<KeyContext at {self.current_key!r}>"


class ProcessingTimeService(Protocol):
    """The clock of a task, and timers that fire as mails of the operator that registered them."""

    def current_time_ms(self) -> int:
        """The time of the wall clock, in milliseconds since 1970."""

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], None]) -> Cancellable:
        """Call ``callback(timestamp_ms)`` once the clock shows more than ``timestamp_ms``."""

    def schedule_with_fixed_delay(
        self, callback: Callable[[int], None], *, initial_delay_ms: int, period_ms: int
    ) -> Cancellable:
        """Call ``callback(now)`` repeatedly, each time ``period_ms`` after the end of the last call."""

    def relative_time_ns(self) -> int:
        """Nanoseconds of a monotonic clock that stands still while consumers hold the task back; for idleness."""


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one key; ``namespace`` is hashable, for example a window, or None."""

    timestamp: int
    key: Any
    namespace: Any


# A smaller heap is not worth a search for deleted timers.  Not measured.
_MIN_COMPACTION: Final = 64

_Identity = tuple[int, Any, Any]


class TimerQueue:
    """A heap of timers without duplicates; timers of equal timestamps come out in the order of their adding."""

    __slots__ = ("_heap", "_live", "_order")

    def __init__(self) -> None:
        self._live: dict[_Identity, Timer] = {}
        self._heap: list[tuple[int, int, _Identity, Timer]] = []
        self._order = count()

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)}, next {self.next_timestamp()}>"

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Timer]:
        return iter(list(self._live.values()))

    def add(self, timer: Timer) -> bool:
        """Add a timer; False if it was there already.

        Raises KeyTypeError if its key is of a type that cannot be a key.
        """
        identity = (timer.timestamp, exact_key(timer.key), timer.namespace)
        if identity in self._live:
            return False
        self._live[identity] = timer
        # The number decides between equal timestamps: identities need not be comparable.
        heappush(self._heap, (timer.timestamp, next(self._order), identity, timer))
        return True

    def remove(self, timer: Timer) -> bool:
        """Remove a timer; False if it was not there."""
        if self._live.pop((timer.timestamp, exact_key(timer.key), timer.namespace), None) is None:
            return False
        # Deleted timers stay in the heap until they are due, maybe in years: without a bound it grows for ever.
        if len(self._heap) > 2 * len(self._live) + _MIN_COMPACTION:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
            heapify(self._heap)
        return True

    def next_timestamp(self) -> int | None:
        """The timestamp of the next timer; None if there is none."""
        heap = self._heap
        while heap:
            timestamp, _, identity, timer = heap[0]
            # By identity: a timer that was deleted and added again has two entries, of which the newer one counts.
            if self._live.get(identity) is timer:
                return timestamp
            heappop(heap)
        return None

    def pop_until(self, timestamp: int) -> Timer | None:
        """Remove and return the next timer if its timestamp is at most ``timestamp``."""
        due = self.next_timestamp()
        if due is None or due > timestamp:
            return None
        _, _, identity, timer = heappop(self._heap)
        del self._live[identity]
        return timer

    def by_key_group(self, max_parallelism: int) -> dict[int, list[Timer]]:
        """All timers by the key group of their key."""
        groups: dict[int, list[Timer]] = {}
        for timer in self._live.values():
            groups.setdefault(key_group(timer.key, max_parallelism), []).append(timer)
        return groups

    def extend(self, timers: Iterable[Timer]) -> None:
        """Add all timers."""
        for timer in timers:
            self.add(timer)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        live = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
        assert len(live) == len(self._live), "a live timer is not in the heap"
        assert len(self._heap) <= 2 * len(self._live) + _MIN_COMPACTION + 1, "too many deleted timers in the heap"


class Triggerable(Protocol):
    """Is called when timers fire; the current key is then the timer's."""

    def on_event_time(self, timer: Timer) -> None:
        """Act on a timer that the watermark has reached."""

    def on_processing_time(self, timer: Timer) -> None:
        """Act on a timer that the clock has reached."""


class WatermarkOutput(Protocol):
    """The part of an operator's output that takes watermarks."""

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Pass a watermark or a status to every consumer."""


_log = LogLines(__name__)
BUDGET_NS: Final = 10_000_000  # as much as a slice of records has


@dataclass(frozen=True, slots=True)
class KeyGroupTimers:
    """The timers of one service for one key group; it never changes."""

    event_time: tuple[Timer, ...] = ()
    processing_time: tuple[Timer, ...] = ()


def never() -> bool:
    """Return False: the loop is not to be interrupted."""
    return False


@dataclass(eq=False)
class KeyedTimerService:
    """Keeps the timers of one subtask's keys; task thread only.

    Args:
        name: of the service.
        triggerable: called for each timer that fires.
        key_context: holds the key for which a timer is registered; set to the timer's key while it fires.
        clock: processing time.
        manager: of the operator's services.
    """

    name: str
    triggerable: Triggerable
    key_context: KeyContext
    clock: ProcessingTimeService
    manager: "KeyedTimerServiceManager"
    _event_time: TimerQueue = field(init=False, default_factory=TimerQueue)
    _processing_time: TimerQueue = field(init=False, default_factory=TimerQueue)
    _watermark: int = field(init=False, default=MIN_TIMESTAMP)
    _clock_timer: Cancellable | None = field(init=False, default=None)
    _clock_timer_ms: int = field(init=False, default=0)  # when _clock_timer fires
    _is_closed: bool = field(init=False, default=False)

    def __repr__(self) -> str:
        event, processing = len(self._event_time), len(self._processing_time)
        return (
            f"<KeyedTimerService {self.name} at {self._watermark}, {event} event time and {processing} processing "
            "time timers>"
        )

    def current_processing_time(self) -> int:
        """The time of the wall clock."""
        return self.clock.current_time_ms()

    def current_watermark(self) -> int:
        """The last watermark that reached the operator; -2**63 before the first."""
        return self._watermark

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
        key = self.key_context.current_key
        if key is NO_KEY:
            raise RuntimeError(f"timer service {self.name}: there is no current key; use timers only on a keyed stream")
        return Timer(timestamp, key, namespace)

    # -- firing

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """Fire all event time timers up to and including ``timestamp``, even timers that are registered meanwhile.

        Stops after a timer if ``should_stop``; returns False if due timers are left.  Each call fires at least one
        timer, so repeated calls come to an end.
        """
        self._watermark = max(self._watermark, timestamp)
        while (timer := self._event_time.pop_until(timestamp)) is not None:
            self._fire(timer, self.triggerable.on_event_time)
            if should_stop():
                due = self._event_time.next_timestamp()
                return due is None or due > timestamp
        return True

    def _on_clock(self, timestamp_ms: int) -> None:
        # First: a timer that is registered while others fire must get a callback of its own.
        self._clock_timer = None
        manager = self.manager
        end_ns = manager.clock_ns() + BUDGET_NS
        while (timer := self._processing_time.pop_until(timestamp_ms)) is not None:
            self._fire(timer, self.triggerable.on_processing_time)
            if manager.should_interrupt() or manager.clock_ns() >= end_ns:
                break  # _watch_clock registers the rest, which is due at once: its mail runs behind those that wait
        self._watch_clock()

    def _fire(self, timer: Timer, trigger: Callable[[Timer], None]) -> None:
        # The key is restored: a timer's mail may run while an operator yields inside a record, whose key must not
        # change.
        before = self.key_context.current_key
        self.key_context.current_key = timer.key
        try:
            trigger(timer)
        finally:
            self.key_context.current_key = before

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
        self._clock_timer = self.clock.register_timer(due, self._on_clock)

    # -- state

    def snapshot(self) -> dict[int, KeyGroupTimers]:
        """All timers by key group."""
        event_time = self._event_time.by_key_group(self.manager.max_parallelism)
        processing_time = self._processing_time.by_key_group(self.manager.max_parallelism)
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
            if group not in self.manager.key_groups:
                raise ValueError(f"timer service {self.name}: key group {group} is not in {self.manager.key_groups}")
            self._check_group(group, (*timers.event_time, *timers.processing_time))
            self._event_time.extend(timers.event_time)
            self._processing_time.extend(timers.processing_time)
        self._watch_clock()

    def _check_group(self, group: int, timers: Iterable[Timer]) -> None:
        for timer in timers:
            if (found := key_group(timer.key, self.manager.max_parallelism)) != group:
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
        """Fire all timers, key by key, at the end of the input; earlier watermarks fire none."""
        if timestamp == MAX_TIMESTAMP:
            self._fire_all()
        return True

    def end_keys(self) -> None:
        """Fire all timers, key by key, as no more records of these keys follow."""
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
            self._fire_each(self._event_time, event_time.get(key, ()), self.triggerable.on_event_time)
            self._fire_each(self._processing_time, processing_time.get(key, ()), self.triggerable.on_processing_time)
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


@dataclass(eq=False)
class KeyedTimerServiceManager:
    """Makes the timer services of one operator and advances them together; task thread only.

    Life cycle: ``restore`` before the first ``timer_service``; ``close`` at the end.

    Args:
        key_context: the operator's.
        clock: the operator's.
        key_groups: this subtask's.
        max_parallelism: the number of key groups.
        should_interrupt: whether a run of timers must let mails pass.
        executor: the operator's; None: watermarks are never interrupted.
        clock_ns: a monotonic clock; timers are also interrupted after ``BUDGET_NS``, so that the task looks for a
            barrier.
        is_batch: whether every service is a ``BatchTimerService``.
        has_records_behind: whether records that cannot wait for a mail follow the present watermark.
    """

    key_context: KeyContext
    clock: ProcessingTimeService
    key_groups: range
    max_parallelism: int
    should_interrupt: Callable[[], bool] = never
    executor: MailboxExecutor | None = None
    clock_ns: Callable[[], int] = time.monotonic_ns
    is_batch: bool = False
    has_records_behind: Callable[[], bool] = never
    # Whether timers up to the last watermark are left, which a mail will fire.
    is_interrupted: bool = field(init=False, default=False)
    _services: dict[str, KeyedTimerService] = field(init=False, default_factory=dict)
    # Timers of services that were not made yet.
    _restored: dict[str, dict[int, KeyGroupTimers]] = field(init=False, default_factory=dict)
    # Set with the first watermark that can fire timers.
    _output: WatermarkOutput | None = field(init=False, default=None)
    _end_ns: int = field(init=False, default=0)
    # Watermarks whose timers have not all fired; few: no record passes meanwhile.
    _targets: deque[int] = field(init=False, default_factory=deque)
    _emitted: int = field(init=False, default=MIN_TIMESTAMP)
    _has_left_rest: bool = field(init=False, default=False)
    _is_idle_next: bool = field(init=False, default=False)  # whether the input became idle while timers were left

    def __repr__(self) -> str:
        return f"<KeyedTimerServiceManager of {list(self._services.values())!r}>"

    def timer_service(self, name: str, triggerable: Triggerable, *, is_batch: bool = False) -> KeyedTimerService:
        """The service of a name, made at the first call with its restored timers.

        ``is_batch``: make it a ``BatchTimerService``.
        """
        if name not in self._services:
            kind = BatchTimerService if is_batch or self.is_batch else KeyedTimerService
            service = kind(name, triggerable, self.key_context, self.clock, self)
            service.restore(self._restored.pop(name, {}))
            self._services[name] = service
        return self._services[name]

    @property
    def is_used(self) -> bool:
        """Whether a service was made."""
        return bool(self._services)

    def end_keys(self) -> None:
        """Fire all timers of services in BATCH mode, as no more records of the keys so far follow."""
        for service in self._services.values():
            if isinstance(service, BatchTimerService):
                service.end_keys()

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        """Fire the timers up to a watermark, then pass it on; a waiting mail may interrupt it: another does the rest.

        The task lets no record pass before all timers have fired (``is_interrupted``); a barrier may.
        """
        if self._output is None and not self._services:
            output.emit_control(watermark)
            return
        self._output = output
        target = max(self._emitted, watermark.timestamp)  # a repeated watermark fires timers that were registered since
        if not self._targets or target > self._targets[-1]:
            self._targets.append(target)
        if not self.is_interrupted or self.has_records_behind():
            self._go_on(output)

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        """Pass a status on behind the watermarks that came before it."""
        if not self.is_interrupted:
            output.emit_control(status)
        else:
            self._is_idle_next = status.is_idle  # "active" only cancels an "idle" that was not passed on yet

    def leave_rest(self) -> None:
        """Leave the timers that mails have interrupted to the snapshot that follows, and fire no more of them."""
        if self._output is not None:
            # The mail that waits still runs, and must find that it has nothing to do.
            self._has_left_rest = True
            self.is_interrupted = False

    def _go_on(self, output: WatermarkOutput) -> None:
        self._end_ns = self.clock_ns() + BUDGET_NS
        should_stop = never if self.executor is None or self.has_records_behind() else self._should_stop
        while self._targets:
            target = self._targets[0]
            if not self.try_advance_watermark(target, should_stop):
                if (drain := getattr(output, "drain", None)) is not None:
                    drain()  # the results so far, which else would wait for the watermark
                if not self.is_interrupted:
                    assert self.executor is not None, "only an operator with an executor is interrupted"
                    self.is_interrupted = True
                    # Deferrable: yields of operators do not run it.
                    self.executor.execute(self._on_mail, "timers up to %s", target, options=MailOptions.DEFERRABLE)
                return
            self._targets.popleft()
            if target > self._emitted:
                self._emitted = target
                output.emit_control(Watermark(target))
        # Behind all watermarks: consumers drop a watermark of an idle input.
        if self._is_idle_next:
            self._is_idle_next = False
            output.emit_control(IDLE)

    def _should_stop(self) -> bool:
        return self.should_interrupt() or self.clock_ns() >= self._end_ns

    def _on_mail(self) -> None:
        if not self._has_left_rest:
            assert self._output is not None, "a watermark was interrupted"
            self.is_interrupted = False
            self._go_on(self._output)

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """Fire the event time timers of every service up to ``timestamp``; False if due timers are left."""
        return all(service.try_advance_watermark(timestamp, should_stop) for service in self._services.values())

    def snapshot(self) -> TimersByKeyGroup:
        """All timers by key group and name of the service, also those restored for services that were never made."""
        groups: dict[int, dict[str, KeyGroupTimers]] = {}
        # Also of services that no operator has asked for yet: their timers must survive this run.
        by_name = self._restored | {name: service.snapshot() for name, service in self._services.items()}
        for name, timers in by_name.items():
            for group, of_group in timers.items():
                groups.setdefault(group, {})[name] = of_group
        return groups

    def restore(self, groups: Mapping[int, Mapping[str, Any]]) -> None:
        """Take over this subtask's timers from a snapshot, which may hold timers of other subtasks.

        Raises:
            RuntimeError: a service was made already.
        """
        if self._services:
            raise RuntimeError(f"timers must be restored before the first timer_service(): {self!r}")
        for group in self.key_groups:
            for name, timers in groups.get(group, {}).items():
                self._restored.setdefault(name, {})[group] = timers

    def close(self) -> None:
        """Cancel the clock's callbacks: no processing time timer fires any more."""
        for service in self._services.values():
            service.close()
