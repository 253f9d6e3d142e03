"""All timer services of one operator, and the way of a watermark past their timers.

Side:       task.
Invariants: a watermark is passed on after every timer up to it has fired; the last one is never interrupted, so that nothing is left when
            the operator finishes.
Units:      timestamps in milliseconds.
Source:     Flink ``InternalTimeServiceManagerImpl``, ``MailboxWatermarkProcessor`` (FLINK-20217: timers must let barriers pass).  While
            timers are interrupted again and again, the watermarks in between are passed on, so that consumers do not stand still; Flink's
            output watermark waited for the last timer.
"""

from collections.abc import Callable, Mapping

from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.records import IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark, WatermarkStatus
from flowlet.timers.keyed_timer_service import KeyedTimerService, KeyGroupTimers, never
from flowlet.timers.time_api import KeyContext, ProcessingTimeService, Triggerable, WatermarkOutput

TimersByKeyGroup = Mapping[int, Mapping[str, KeyGroupTimers]]


class KeyedTimerServiceManager:
    """Makes the timer services of one operator and advances them together.

    Threading: task thread.
    Life cycle: ``restore`` before the first ``timer_service``; ``close`` at the end.

    Args:
        key_context: of the operator.
        clock: of the operator.
        key_groups: those of this subtask.
        max_parallelism: number of key groups.
        should_interrupt: see ``KeyedTimerService``.
        executor: of the operator; None: a watermark is never interrupted.
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
    ) -> None:
        self._key_context = key_context
        self._clock = clock
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._should_interrupt = should_interrupt
        self._executor = executor
        self._watermarks: MailboxWatermarkProcessor | None = None  # made for the first watermark that may have timers
        self._services: dict[str, KeyedTimerService] = {}
        self._restored: dict[str, dict[int, KeyGroupTimers]] = {}  # of services that nobody has asked for yet

    def __repr__(self) -> str:
        return f"<KeyedTimerServiceManager of {list(self._services.values())!r}>"

    @property
    def num_fired_timers(self) -> int:
        """Timers fired so far; any thread, one pass stale."""
        return sum(service.num_fired_timers for service in list(self._services.values()))

    def timer_service(self, name: str, triggerable: Triggerable) -> KeyedTimerService:
        """The service of that name, made at the first call, with the timers that were restored for it."""
        if name not in self._services:
            service = KeyedTimerService(
                name,
                triggerable,
                key_context=self._key_context,
                clock=self._clock,
                key_groups=self._key_groups,
                max_parallelism=self._max_parallelism,
                should_interrupt=self._should_interrupt,
            )
            service.restore(self._restored.pop(name, {}))
            self._services[name] = service
        return self._services[name]

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        """Fire the timers up to a watermark, then pass it on; mails in a hurry may come in between, and then the rest follows later."""
        if self._watermarks is None and not self._services:
            output.emit_watermark(watermark)
        else:
            self._processor(output).emit_watermark(watermark)

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        """Pass a status on, behind the watermarks that came before it."""
        if self._watermarks is None:
            output.emit_watermark_status(status)
        else:
            self._watermarks.emit_watermark_status(status)

    def _processor(self, output: WatermarkOutput) -> "MailboxWatermarkProcessor":
        if self._watermarks is None:
            self._watermarks = MailboxWatermarkProcessor(output, self, self._executor, self._should_interrupt)
        return self._watermarks

    def advance_watermark(self, timestamp: int) -> None:
        """Fire every event time timer up to and including ``timestamp``; called before the watermark is passed on."""
        for service in self._services.values():
            service.advance_watermark(timestamp)

    def try_advance_watermark(self, timestamp: int, should_stop: Callable[[], bool]) -> bool:
        """As ``advance_watermark``, but may stop after a timer; False when timers are left that are due."""
        return all(service.try_advance_watermark(timestamp, should_stop) for service in self._services.values())

    def completed_until(self, timestamp: int) -> int:
        """The largest time up to ``timestamp`` before and at which no event time timer is left in any service."""
        return min((service.completed_until(timestamp) for service in self._services.values()), default=timestamp)

    def snapshot(self) -> TimersByKeyGroup:
        """All timers: by key group, then by name of the service; also those that were restored and never asked for."""
        groups: dict[int, dict[str, KeyGroupTimers]] = {}
        by_name = self._restored | {name: service.snapshot() for name, service in self._services.items()}
        for name, timers in by_name.items():
            for group, of_group in timers.items():
                groups.setdefault(group, {})[name] = of_group
        return groups

    def restore(self, groups: TimersByKeyGroup) -> None:
        """Take over the timers of this subtask's key groups out of a snapshot, which may hold those of other subtasks too.

        Raises:
            RuntimeError: a service was made already.
        """
        if self._services:
            raise RuntimeError(f"timers are restored before services are made: {self!r}")
        for group in self._key_groups:
            for name, timers in groups.get(group, {}).items():
                self._restored.setdefault(name, {})[group] = timers

    def close(self) -> None:
        """Fire nothing by the clock any more."""
        for service in self._services.values():
            service.close()


class MailboxWatermarkProcessor:
    """Passes watermarks on once their timers have fired, and lets mails that cannot wait pass between two timers.

    Records that arrive before all timers have fired are processed before the rest of them, as in Flink: their own watermark is later.
    "Idle" waits for the watermarks before it: consumers drop the watermark of an input that is idle.

    Threading: task thread.

    Args:
        output: gets the watermarks.
        timers: of the operator.
        executor: of the operator; the rest of the timers comes back as a deferrable mail, which yields of operators do not run.
            None: nothing is interrupted.
        should_interrupt: whether a mail waits that is in a hurry (a barrier).
    """

    def __init__(
        self,
        output: WatermarkOutput,
        timers: KeyedTimerServiceManager,
        executor: MailboxExecutor | None,
        should_interrupt: Callable[[], bool],
    ) -> None:
        self._output = output
        self._timers = timers
        self._executor = executor
        self._should_interrupt = should_interrupt
        self._target = MIN_TIMESTAMP
        self._emitted = MIN_TIMESTAMP
        self._is_mailed = False
        self._is_idle_next = False  # the input became idle while timers were left

    def __repr__(self) -> str:
        return f"<MailboxWatermarkProcessor at {self._emitted} on the way to {self._target}>"

    def emit_watermark(self, watermark: Watermark) -> None:
        """Fire its timers and pass it on; if it is interrupted, the rest follows by mail."""
        self._target = max(self._target, watermark.timestamp)
        self._go_on()

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on once the watermarks before it are through."""
        if not self._is_mailed:
            self._output.emit_watermark_status(status)
        else:
            self._is_idle_next = status.is_idle  # "active" only takes back an "idle" that nobody has heard of yet

    def _go_on(self) -> None:
        should_stop = never if self._executor is None or self._target == MAX_TIMESTAMP else self._should_interrupt
        is_complete = self._timers.try_advance_watermark(self._target, should_stop)
        reached = self._target if is_complete else self._timers.completed_until(self._target)
        if reached > self._emitted:
            self._emitted = reached
            self._output.emit_watermark(Watermark(reached))
        if is_complete:
            self._emit_idle()
        elif not self._is_mailed:
            assert self._executor is not None, "it was interrupted"
            self._is_mailed = True
            self._executor.execute(self._on_mail, "timers up to %s", self._target, options=MailOptions.DEFERRABLE)

    def _emit_idle(self) -> None:
        if self._is_idle_next:
            self._is_idle_next = False
            self._output.emit_watermark_status(IDLE)

    def _on_mail(self) -> None:
        self._is_mailed = False
        self._go_on()
