"""Makes written records visible to readers within the buffer timeout.

Side:       shared.  The task thread arms the timer; it fires on the loop thread.
Invariants: a timer is armed while written bytes are unflushed or the task works, at most one per timeout; an idle task
            arms none.  After a failed flush the next write raises the error.
Units:      milliseconds.
Source:     Flink ``OutputFlusher``, ``RecordWriter.checkErroneous``.  Flink flushes at every timeout, even if nothing
            was written.  Here the first write arms the timer: it flushes as early and costs an idle task nothing.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Protocol

from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable, ScheduleTimer


def _is_over() -> bool:
    return False


class Flushable(Protocol):
    """A result partition, or another object with buffered bytes."""

    def flush_all(self) -> None:
        """Make buffered bytes visible to readers; any thread."""


@dataclass(eq=False, slots=True)
class OutputFlusher:
    """Flushes partitions ``timeout_ms`` (> 0) after the first unflushed write.

    Threading: ``arm`` and ``close`` on the task thread; the timer fires on the loop thread.

    Args:
        targets: the partitions to flush.
        timeout_ms: milliseconds.
        schedule_timer: calls a function on the loop thread after a delay in seconds; may be called from any thread.
        on_error: gets the error of a failed flush, on the loop thread.
        on_time: called before each flush, on the loop thread: results that were not written yet are due, too.  Returns
            whether more results may come before the task arms the timer again; then the timer is armed at once.
    """

    _targets: Sequence[Flushable]
    _timeout_ms: int
    _schedule_timer: ScheduleTimer
    _on_error: Callable[[Exception], None]
    _on_time: Callable[[], bool] = _is_over
    _arming: threading.Lock = field(init=False, default_factory=threading.Lock)
    # Set under _arming, cleared by the loop thread before it flushes.
    _is_armed: bool = field(init=False, default=False)
    # Written by the task thread; a timer that misses it flushes once more, which is harmless.
    _is_closed: bool = field(init=False, default=False)
    _timer: Cancellable | None = field(init=False, default=None)  # Written by the thread that has armed it.
    # Written by the loop thread, once; read by the task thread.
    _error: Exception | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self._timeout_ms <= 0:
            raise ValueError(f"a flusher needs a timeout above 0 ms, got {self._timeout_ms}")

    def __repr__(self) -> str:
        return f"<OutputFlusher every {self._timeout_ms} ms, {'armed' if self._is_armed else 'at rest'}>"

    def arm(self) -> None:
        """Schedule a flush, because bytes were written; raises the error of an earlier flush."""
        if self._error is not None:
            raise self._error
        # Without the lock: a timer that fires just now clears the flag first, and then flushes the bytes as well.
        if not self._is_armed:
            self._start()

    def _start(self) -> None:
        # Two threads arm: the task, and the loop where results are still to come.
        with self._arming:
            if self._is_armed or self._is_closed:
                return
            self._is_armed = True
        self._timer = self._schedule_timer(self._timeout_ms / 1000, self._fire)

    def close(self) -> None:
        """Cancel the timer; nothing is flushed afterwards."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        # Cleared first: a write that this flush does not see finds the flag clear and arms again.
        self._is_armed = False
        if self._is_closed:
            return
        try:
            is_over = not self._on_time()
            for target in self._targets:
                target.flush_all()
            if not is_over:
                self._start()
        except Exception as error:  # noqa: BLE001 - top of the loop: the task that owns the output fails, the loop goes on
            if self._error is None:
                self._error = error
            self._on_error(error)


class OutputFlushers:
    """The flushers of one task, one for each timeout of its outputs; task thread only.

    ``outputs`` are the partitions with their buffer timeouts; 0 and -1 need no flusher.  The flusher with the shortest
    timeout calls ``on_time``; ``alarm_ms``, if it is not None, counts as a timeout, too.  See ``OutputFlusher`` for the
    other arguments.
    """

    def __init__(
        self,
        outputs: Iterable[tuple[Flushable, int]],
        schedule_timer: ScheduleTimer,
        on_error: Callable[[Exception], None],
        on_time: Callable[[], bool] = _is_over,
        alarm_ms: int | None = None,
    ) -> None:
        targets: dict[int, list[Flushable]] = {}
        for target, timeout_ms in outputs:
            if timeout_ms > 0:
                targets.setdefault(timeout_ms, []).append(target)
        if alarm_ms is not None:
            targets.setdefault(alarm_ms, [])
        shortest_ms = min(targets, default=0)
        self._flushers = {
            timeout_ms: OutputFlusher(
                each, timeout_ms, schedule_timer, on_error, on_time if timeout_ms == shortest_ms else _is_over
            )
            for timeout_ms, each in sorted(targets.items())
        }
        alarm = self._flushers.get(shortest_ms)
        self.arm_alarm: Callable[[], object] = _is_over if alarm is None else alarm.arm
        """Has ``on_time`` called after the shortest timeout, if no call is due before; raises the error of an earlier
        flush.
        """

    def __repr__(self) -> str:
        return f"<OutputFlushers {list(self._flushers.values())!r}>"

    def arm_of(self, timeout_ms: int) -> Callable[[], None] | None:
        """The function that a writer with this timeout calls after each write; None: it need not call any."""
        flusher = self._flushers.get(timeout_ms)
        return None if flusher is None else flusher.arm

    def close(self) -> None:
        """Cancel all timers; nothing is flushed afterwards."""
        for flusher in self._flushers.values():
            flusher.close()
