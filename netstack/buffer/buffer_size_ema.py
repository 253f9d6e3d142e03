"""The moving average of the buffer size that a gate wants.

Side:   pure.  One gate's numbers, on its task thread.
Units:  sizes in bytes.
Source: Flink ``BufferSizeEMA`` (FLIP-183).
"""

import math


class BufferSizeEMA:
    """A moving average of the wanted buffer size, which at most doubles what it aims at: it grows as slowly as it
    shrinks.
    """

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
