"""Operators with two inputs, or more.

Side:       task.
Invariants: the combined watermark only rises; it is the smallest among the inputs that are not idle; the operator is idle exactly when all
            its inputs are, and says so once.
Source:     Flink ``TwoInputStreamOperator``, ``MultipleInputStreamOperator``, ``AbstractInput``, ``CombinedWatermarkStatus``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from flowlet.operators.base import Input, StreamOperator
from flowlet.records import ACTIVE, IDLE, MIN_TIMESTAMP, Chunk, LatencyMarker, Watermark, WatermarkStatus


class CombinedWatermark:
    """The watermarks and statuses of several inputs as one."""

    __slots__ = ("_idle", "_watermarks", "is_idle", "timestamp")

    def __init__(self, num_inputs: int) -> None:
        self._watermarks = [MIN_TIMESTAMP] * num_inputs
        self._idle = [False] * num_inputs
        self.timestamp = MIN_TIMESTAMP
        self.is_idle = False

    def __repr__(self) -> str:
        return f"<CombinedWatermark {self.timestamp} of {self._watermarks}, idle {self._idle}>"

    def update_watermark(self, index: int, timestamp: int) -> bool:
        """Apply a watermark of one input, which makes it active; whether the combined one rose."""
        self._idle[index] = False
        self._watermarks[index] = max(timestamp, self._watermarks[index])
        return self._advance()

    def update_status(self, index: int, *, is_idle: bool) -> bool:
        """Apply a status of one input; whether the combined watermark rose."""
        self._idle[index] = is_idle
        return self._advance()

    def update_is_idle(self) -> bool:
        """Whether the combined status changed since this was last asked."""
        was_idle, self.is_idle = self.is_idle, all(self._idle)
        return was_idle != self.is_idle

    def _advance(self) -> bool:
        active = [timestamp for timestamp, is_idle in zip(self._watermarks, self._idle, strict=True) if not is_idle]
        if not active or min(active) <= self.timestamp:
            return False
        self.timestamp = min(active)
        return True


class OperatorInput:
    """One input of an operator with several.

    Args:
        operator: gets what the input gets.
        input_id: from 1.
    """

    __slots__ = ("_input_id", "_operator")

    def __init__(self, operator: "MultipleInputStreamOperator", input_id: int) -> None:
        self._operator = operator
        self._input_id = input_id

    def process_chunk(self, chunk: Chunk) -> None:
        """Hand over records."""
        self._operator.process_input_chunk(self._input_id, chunk)

    def process_watermark(self, watermark: Watermark) -> None:
        """Hand over a watermark."""
        self._operator.process_input_watermark(self._input_id, watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Hand over a status."""
        self._operator.process_input_watermark_status(self._input_id, status)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """Hand over a marker."""
        self._operator.process_latency_marker(marker)


class MultipleInputStreamOperator(StreamOperator, ABC):
    """An operator with ``num_inputs`` inputs, counted from 1."""

    num_inputs: int

    @abstractmethod
    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """Records of one input, in its order."""

    def inputs(self) -> Sequence[Input]:
        """One per input; the same objects at each call."""
        if not hasattr(self, "_inputs"):
            self._inputs = tuple(OperatorInput(self, number + 1) for number in range(self.num_inputs))
            self._combined = CombinedWatermark(self.num_inputs)
        return self._inputs

    def process_input_watermark(self, input_id: int, watermark: Watermark) -> None:
        """A watermark of one input; what all together have reached is processed as the operator's."""
        if self._combined.update_watermark(input_id - 1, watermark.timestamp):
            self.process_watermark(Watermark(self._combined.timestamp))

    def process_input_watermark_status(self, input_id: int, status: WatermarkStatus) -> None:
        """A status of one input; an idle one does not hold back the others."""
        if self._combined.update_status(input_id - 1, is_idle=status.is_idle):
            self.process_watermark(Watermark(self._combined.timestamp))
        if self._combined.update_is_idle():
            self.process_watermark_status(IDLE if self._combined.is_idle else ACTIVE)


class TwoInputStreamOperator(MultipleInputStreamOperator, ABC):
    """An operator with a first and a second input."""

    num_inputs = 2

    @abstractmethod
    def process_chunk1(self, chunk: Chunk) -> None:
        """Records of the first input."""

    @abstractmethod
    def process_chunk2(self, chunk: Chunk) -> None:
        """Records of the second input."""

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """To ``process_chunk1`` or ``process_chunk2``."""
        if input_id == 1:
            self.process_chunk1(chunk)
        else:
            self.process_chunk2(chunk)
