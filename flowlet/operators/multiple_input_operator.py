"""Operators with two inputs, or more.

What an operator with several inputs says about which of them it wants to read.

Side:       task.
Source:     Flink ``InputSelection``, ``InputSelectable``; at most 63 inputs.  Flink ``TwoInputStreamOperator``,
            ``MultipleInputStreamOperator``, ``AbstractInput``.  What the inputs say is combined as what the channels of
            one input say: in Flink's ``CombinedWatermarkStatus`` an input that has finished beside an idle one pushes
            the watermark to infinity (FLINK-38477).
Invariants: the combined watermark only rises; it is the smallest among the inputs that are neither idle nor finished;
            the operator is idle exactly when no input is active and not all have finished, and says so once.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

from flowlet.chain.stream_operator import Input, StreamOperator
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve
from netstack.late import dataclass

MAX_INPUTS: Final = 63


@dataclass(frozen=True, slots=True)
class InputSelection:
    """A set of inputs, one bit each, the first input in the lowest bit."""

    mask: int

    @staticmethod
    def of(*input_ids: int) -> "InputSelection":
        """The selection of the inputs given, which count from 1.

        Raises:
            ValueError: there is none, or one that no operator has.
        """
        if not input_ids or not all(1 <= input_id <= MAX_INPUTS for input_id in input_ids):
            raise ValueError(f"a selection needs inputs from 1 to {MAX_INPUTS}, got {input_ids}")
        return InputSelection(sum(1 << (input_id - 1) for input_id in set(input_ids)))

    def is_selected(self, input_id: int) -> bool:
        """Whether it contains the input."""
        return bool(self.mask >> (input_id - 1) & 1)


ALL: Final = InputSelection((1 << MAX_INPUTS) - 1)
FIRST: Final = InputSelection(1)
SECOND: Final = InputSelection(2)


@runtime_checkable
class InputSelectable(Protocol):
    """An operator that chooses its inputs; asked before the first record and after each one, so it gets chunks of one
    record.

    One implementer: ``MultipleInputSelectionHandler`` imports this module, which therefore cannot import it.
    """

    def next_selection(self) -> InputSelection:
        """The inputs from which the next record may come."""


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

    def process_some(self, chunk: Chunk) -> int:
        """Hand over records until a mail waits; returns how many."""
        return self._operator.process_input_some(self._input_id, chunk)

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

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """As ``StreamOperator.process_some``, for one input."""
        self.process_input_chunk(input_id, chunk)
        return len(chunk)

    def inputs(self) -> Sequence[Input]:
        """One per input; the same objects at each call."""
        if not hasattr(self, "_inputs"):
            self._inputs = tuple(OperatorInput(self, number + 1) for number in range(self.num_inputs))
            self._valve = StatusWatermarkValve(self.num_inputs)
        return self._inputs

    @property
    def combined_watermark(self) -> StatusWatermarkValve:
        """What the inputs together have reached; look only."""
        self.inputs()
        return self._valve

    def process_input_watermark(self, input_id: int, watermark: Watermark) -> None:
        """A watermark of one input; what all together have reached is processed as the operator's."""
        self._process_combined(self._valve.input_watermark(input_id - 1, watermark))

    def process_input_watermark_status(self, input_id: int, status: WatermarkStatus) -> None:
        """A status of one input; an idle one does not hold back the others."""
        self._process_combined(self._valve.input_status(input_id - 1, status))

    def _process_combined(self, combined: Sequence[Watermark | WatermarkStatus]) -> None:
        for element in combined:
            if isinstance(element, Watermark):
                self.process_watermark(element)
            else:
                self.process_watermark_status(element)


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
