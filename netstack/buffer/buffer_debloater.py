"""How big buffers should be, so that what is on its way can be consumed in a given time.

Side:       pure.  One gate's numbers, on its task thread.
Invariants: min_bytes <= announced size <= max_bytes; a size is announced only if it differs from the last one, by the threshold or because
            it is the least or the greatest.
Units:      sizes in bytes, throughput in bytes per second, times in milliseconds.
Source:     Flink ``ThroughputCalculator``, ``BufferSizeEMA``, ``BufferDebloater`` (FLIP-183), with the defaults of ``TaskManagerOptions``.
Absent:     the timer (Flink asks every 200 ms) and the counting of buffers in use: the caller's.
"""

import math
from typing import Final

MIN_BUFFER_SIZE_BYTES: Final = 256  # Flink's taskmanager.memory.min-segment-size
STARTING_BUFFER_SIZE_BYTES: Final = 1024  # Flink's taskmanager.memory.starting-segment-size
DEBLOAT_PERIOD_MS: Final = 200
DEBLOAT_TARGET_MS: Final = 1000
DEBLOAT_THRESHOLD_PERCENT: Final = 25
DEBLOAT_SAMPLES: Final = 20
_MS_PER_S: Final = 1000


class ThroughputCalculator:
    """Bytes per second of the time in which there was something to do.

    Threading: one thread.  The caller passes the time, which it has at hand anyway.
    """

    __slots__ = ("_measured_ms", "_num_bytes", "_since_ms", "_throughput")

    def __init__(self) -> None:
        self._num_bytes = 0
        self._measured_ms = 0
        self._since_ms: int | None = None  # None while the measurement is paused
        self._throughput = 0

    def add_bytes(self, num_bytes: int, now_ms: int) -> None:
        """Count what came in; resumes a paused measurement."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._num_bytes += num_bytes

    def pause(self, now_ms: int) -> None:
        """From now on there is nothing to do, so the time does not count; the second call does nothing."""
        if self._since_ms is not None:
            self._measured_ms += now_ms - self._since_ms
        self._since_ms = None

    def resume(self, now_ms: int) -> None:
        """From now on the time counts; the second call does nothing."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def calculate(self, now_ms: int) -> int:
        """The throughput since the last call; what that said if no time was measured."""
        if self._since_ms is not None:
            self._measured_ms += now_ms - self._since_ms
            self._since_ms = now_ms
        if self._measured_ms > 0:
            self._throughput = int(self._num_bytes / self._measured_ms * _MS_PER_S)
        self._num_bytes = self._measured_ms = 0
        return self._throughput


class BufferSizeEMA:
    """A moving average of the wanted buffer size, which at most doubles what it aims at: it grows as slowly as it shrinks."""

    __slots__ = ("_alpha", "_max_bytes", "_min_bytes", "_size_bytes")

    def __init__(self, max_bytes: int, min_bytes: int, num_samples: int, starting_bytes: int | None = None) -> None:
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._alpha = 2.0 / (num_samples + 1)
        self._size_bytes = float(max_bytes if starting_bytes is None else starting_bytes)

    def calculate(self, total_bytes: int, num_buffers: int) -> int:
        """The average after one more sample: ``total_bytes`` shared by ``num_buffers`` buffers.

        Raises:
            ValueError: a negative total, or no buffers.
        """
        if total_bytes < 0 or num_buffers < 1:
            raise ValueError(f"{total_bytes} bytes in {num_buffers} buffers")
        # Without the limit one sample could go from the least to the greatest size, while the way down takes many.
        wanted = min(total_bytes / num_buffers, 2.0 * self._size_bytes)
        size = self._size_bytes + self._alpha * (wanted - self._size_bytes)
        self._size_bytes = max(self._min_bytes, min(size, self._max_bytes))
        return math.floor(self._size_bytes + 0.5)  # Java rounds halves up


class BufferDebloater:
    """Says when a gate's producers shall be told a new buffer size.

    Threading: one thread.
    """

    __slots__ = ("_ema", "_last_bytes", "_max_bytes", "_min_bytes", "_target_ms", "_threshold", "_time_to_consume_ms")

    def __init__(
        self,
        *,
        max_bytes: int,
        min_bytes: int = MIN_BUFFER_SIZE_BYTES,
        starting_bytes: int | None = None,
        target_ms: int = DEBLOAT_TARGET_MS,
        threshold_percent: int = DEBLOAT_THRESHOLD_PERCENT,
        num_samples: int = DEBLOAT_SAMPLES,
    ) -> None:
        """``starting_bytes`` is what the producers begin with; None: ``max_bytes``."""
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._target_ms = target_ms
        self._threshold = threshold_percent / 100.0
        self._last_bytes = max_bytes if starting_bytes is None else starting_bytes
        self._ema = BufferSizeEMA(max_bytes, min_bytes, num_samples, starting_bytes)
        self._time_to_consume_ms = 0

    def __repr__(self) -> str:
        return f"<BufferDebloater {self._last_bytes} bytes, {self._time_to_consume_ms} ms to consume what is in use>"

    @property
    def last_buffer_size_bytes(self) -> int:
        """What was announced last (Flink's gauge ``debloatedBufferSize``)."""
        return self._last_bytes

    @property
    def estimated_time_to_consume_buffers_ms(self) -> int:
        """How long the buffers in use would take at the last throughput (Flink's gauge of that name)."""
        return self._time_to_consume_ms

    def recalculate(self, throughput: int, num_buffers_in_use: int) -> int | None:
        """The size to announce now, or None if the last one is good enough."""
        num_buffers = max(1, num_buffers_in_use)
        size = self._ema.calculate(throughput * self._target_ms // _MS_PER_S, num_buffers)
        self._time_to_consume_ms = size * num_buffers * _MS_PER_S // max(1, throughput)
        if self.is_close_to_last(size):
            return None
        self._last_bytes = size
        return size

    def is_close_to_last(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` is not worth telling: equal, or within the threshold and neither the least nor the greatest."""
        if size_bytes == self._last_bytes:
            return True
        if size_bytes <= self._min_bytes or size_bytes >= self._max_bytes:
            return False
        return abs(size_bytes - self._last_bytes) < int(self._last_bytes * self._threshold)
