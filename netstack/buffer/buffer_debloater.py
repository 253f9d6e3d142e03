"""How big buffers should be, so that what is on its way can be consumed in a given time.

Side:       pure.  One gate's numbers, on its task thread.
Invariants: min_bytes <= announced size <= max_bytes; a size is announced only if it is new, and differs from the last one by the threshold
            or is min_bytes or max_bytes.
Units:      sizes in bytes, throughput in bytes per second, times in milliseconds.
Source:     Flink ``BufferDebloater`` (FLIP-183), with the defaults of ``TaskManagerOptions``.
Absent:     the timer (Flink asks every 200 ms) and the counting of buffers in use: the caller's.
"""

from typing import Final

from netstack.buffer.buffer_size_ema import BufferSizeEMA
from netstack.buffer.throughput_calculator import MS_PER_S

MIN_BUFFER_SIZE_BYTES: Final = 256  # Flink's taskmanager.memory.min-segment-size
STARTING_BUFFER_SIZE_BYTES: Final = 1024  # Flink's taskmanager.memory.starting-segment-size
DEBLOAT_PERIOD_MS: Final = 200
DEBLOAT_TARGET_MS: Final = 1000
DEBLOAT_THRESHOLD_PERCENT: Final = 25
DEBLOAT_SAMPLES: Final = 20


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
        size = self._ema.calculate(throughput * self._target_ms // MS_PER_S, num_buffers)
        self._time_to_consume_ms = size * num_buffers * MS_PER_S // max(1, throughput)
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
