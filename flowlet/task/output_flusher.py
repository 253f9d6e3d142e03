"""Makes written records visible within the buffer timeout.

Side:       shared.  Armed by the task thread, fires on the loop thread.
Invariants: the timer is armed whenever bytes were written that no flush has seen; at most one timer is armed; an idle task arms none.
Units:      milliseconds.
Source:     Flink ``OutputFlusher``.  Flink's runs every timeout whether or not anything was written; this one is armed by the first write,
            which flushes as early and costs an idle task nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class Cancellable(Protocol):
    """A timer that was scheduled."""

    def cancel(self) -> object:
        """Do not fire; without effect when it has fired."""


class Flushable(Protocol):
    """Something with buffered bytes (a result partition)."""

    def flush_all(self) -> None:
        """Make them visible to readers; any thread."""


ScheduleTimer = Callable[[float, Callable[[], None]], Cancellable]


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

    def __repr__(self) -> str:
        return f"<OutputFlusher every {self._timeout_s * 1000:g} ms, {'armed' if self._is_armed else 'at rest'}>"

    def arm(self) -> None:
        """Bytes were written: flush them within the timeout."""
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
            self._on_error(error)
