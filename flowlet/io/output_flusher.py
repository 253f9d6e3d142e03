"""Makes written records visible within the buffer timeout.

Side:       shared.  Armed by the task thread, fires on the loop thread.
Invariants: the timer is armed whenever bytes were written that no flush has seen; at most one timer is armed for each timeout; an idle task
            arms none.  After a flush that failed, the next write fails too.
Units:      milliseconds.
Source:     Flink ``OutputFlusher``, ``RecordWriter.checkErroneous``.  Flink's flusher runs every timeout, written or not;
            this one is armed by the first write, which flushes as early and costs an idle task nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from netstack.timers import Cancellable, ScheduleTimer


class Flushable(Protocol):
    """Something with buffered bytes (a result partition)."""

    def flush_all(self) -> None:
        """Make them visible to readers; any thread."""


class OutputFlusher:
    """Flushes a task's partitions some time after the first unflushed write.

    Threading: ``arm`` and ``close`` on the task thread; the timer fires on the loop thread.

    Args:
        targets: what to flush.
        timeout_ms: > 0.
        schedule_timer: runs a callable on the loop thread after so many seconds; may be called from any thread.
        on_error: told when a flush failed; on the loop thread.
    """

    def __init__(
        self, targets: Sequence[Flushable], timeout_ms: int, schedule_timer: ScheduleTimer, on_error: Callable[[Exception], None]
    ) -> None:
        if timeout_ms <= 0:
            raise ValueError(f"a flusher needs a timeout above 0 ms, got {timeout_ms}")
        self._targets = tuple(targets)
        self._timeout_s = timeout_ms / 1000
        self._schedule_timer = schedule_timer
        self._on_error = on_error
        self._is_armed = False  # Set by the task thread, cleared by the loop thread before it flushes.
        self._is_closed = False  # Written by the task thread; a timer that misses it flushes once more, which is harmless.
        self._timer: Cancellable | None = None  # Written by the task thread.
        self._error: Exception | None = None  # Written by the loop thread, once; read by the task thread.

    def __repr__(self) -> str:
        return f"<OutputFlusher every {self._timeout_s * 1000:g} ms, {'armed' if self._is_armed else 'at rest'}>"

    def arm(self) -> None:
        """Bytes were written: flush them within the timeout.

        Raises:
            Exception: what an earlier flush raised.
        """
        if self._error is not None:
            raise self._error
        if self._is_armed or self._is_closed:
            return
        self._is_armed = True
        self._timer = self._schedule_timer(self._timeout_s, self._fire)

    def close(self) -> None:
        """Flush no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        # Cleared first: a write that this flush does not see finds the flag clear and arms again.
        self._is_armed = False
        if self._is_closed:
            return
        try:
            for target in self._targets:
                target.flush_all()
        except Exception as error:  # noqa: BLE001 - top of the loop: the task that owns the output fails, the loop goes on
            if self._error is None:
                self._error = error
            self._on_error(error)


class OutputFlushers:
    """The flushers of one task: one for each timeout that its outputs have.

    Threading: the task thread.

    Args:
        outputs: what to flush, and its buffer timeout in milliseconds; 0 and -1 need no flusher.
        schedule_timer: see ``OutputFlusher``.
        on_error: see ``OutputFlusher``.
    """

    def __init__(
        self, outputs: Iterable[tuple[Flushable, int]], schedule_timer: ScheduleTimer, on_error: Callable[[Exception], None]
    ) -> None:
        targets: dict[int, list[Flushable]] = {}
        for target, timeout_ms in outputs:
            if timeout_ms > 0:
                targets.setdefault(timeout_ms, []).append(target)
        self._flushers = {
            timeout_ms: OutputFlusher(each, timeout_ms, schedule_timer, on_error) for timeout_ms, each in sorted(targets.items())
        }

    def __repr__(self) -> str:
        return f"<OutputFlushers {list(self._flushers.values())!r}>"

    def arm_of(self, timeout_ms: int) -> Callable[[], None] | None:
        """What a writer of an output with this timeout calls when it wrote; None if it need not."""
        flusher = self._flushers.get(timeout_ms)
        return None if flusher is None else flusher.arm

    def close(self) -> None:
        """Flush no more."""
        for flusher in self._flushers.values():
            flusher.close()
