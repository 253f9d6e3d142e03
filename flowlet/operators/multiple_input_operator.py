"""Operators with two inputs, or more; which of them is read next.

Side:       task.
Invariants: the combined watermark only rises; it is the smallest among the inputs that are neither idle nor finished;
            the operator is idle exactly when no input is active and not all have finished, and says so once.  Inputs
            with data take turns.  Each end is reported once.
Source:     Flink ``TwoInputStreamOperator``, ``MultipleInputStreamOperator``, ``AbstractInput``; at most 63 inputs.
            What the inputs say is combined as what the channels of one input say: in Flink's
            ``CombinedWatermarkStatus`` an input that has finished beside an idle one pushes the watermark to infinity
            (FLINK-38477).  Flink ``MultipleInputSelectionHandler``, ``InputSelection.fairSelectNextIndex``, which does
            not check the other inputs when the last one to end was stopped without draining; here both kinds of end
            are treated alike.
Absent:     Flink's ``InputSelectable``: no operator here chooses its inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from flowlet.chain.stream_operator import Input, StreamOperator
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve
from netstack.late import dataclass

MAX_INPUTS: Final = 63


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """One input of an operator with several.

    Args:
        operator: gets what the input gets.
        input_id: from 1.
    """

    _operator: "MultipleInputStreamOperator"
    _input_id: int

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


class InputStatus(Enum):
    """What a call of ``process_input`` leaves behind."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_DATA = auto()  # reported once: all channels had their end of data, and are to be drained
    STOPPED = auto()  # as END_OF_DATA, but without draining
    END_OF_INPUT = auto()  # all partitions ended


_ENDS_OF_DATA: Final = (InputStatus.END_OF_DATA, InputStatus.STOPPED)


class MultipleInputSelectionHandler:
    """Tracks what each of 1 to 63 inputs still has; counts inputs from 0.

    Task thread only.
    """

    def __init__(self, num_inputs: int) -> None:
        if not 1 <= num_inputs <= MAX_INPUTS:
            raise ValueError(f"an operator has 1 to {MAX_INPUTS} inputs, got {num_inputs}")
        self._num_inputs = num_inputs
        every = (1 << num_inputs) - 1
        self._available = every  # inputs that may have data; cleared when a read finds none
        self._unfinished = every  # inputs before END_OF_INPUT
        self._with_data = every  # inputs before END_OF_DATA
        self._drains = True
        self._is_end_reported = False

    def __repr__(self) -> str:
        masks = f"available {self._available:b}, with data {self._with_data:b}, open {self._unfinished:b}"
        return f"<MultipleInputSelectionHandler of {self._num_inputs}: {masks}>"

    @property
    def are_all_inputs_finished(self) -> bool:
        """Whether all partitions of all inputs have ended."""
        return not self._unfinished

    @property
    def drains(self) -> bool:
        """Whether all inputs that ended so far are to be drained."""
        return self._drains

    def is_unfinished(self, index: int) -> bool:
        """Whether a partition of the input has not ended."""
        return bool(self._unfinished & (1 << index))

    def is_available(self, index: int) -> bool:
        """Whether the input may have data."""
        return bool(self._available & (1 << index))

    def set_available(self, index: int) -> None:
        """Note that the input may have data."""
        self._available |= (1 << index) & self._unfinished

    def select_next(self, last: int) -> int | None:
        """The first input after ``last`` that may have data; None if there is none."""
        candidates = self._unfinished & self._available
        if not candidates:
            return None
        behind = candidates >> (last + 1) << (last + 1)
        first = behind or candidates
        return (first & -first).bit_length() - 1

    def update(self, index: int, status: InputStatus) -> InputStatus:
        """Note the status of one input; returns the status of all inputs together."""
        bit = 1 << index
        match status:
            case InputStatus.MORE_AVAILABLE:
                self._available |= bit
            case InputStatus.NOTHING_AVAILABLE:
                self._available &= ~bit
            case InputStatus.END_OF_DATA | InputStatus.STOPPED:
                self._with_data &= ~bit
                self._drains = self._drains and status is InputStatus.END_OF_DATA
            case InputStatus.END_OF_INPUT:
                self._unfinished &= ~bit
                self._available &= ~bit
        if status in _ENDS_OF_DATA and not self._with_data and not self._is_end_reported:
            self._is_end_reported = True
            return InputStatus.END_OF_DATA if self._drains else InputStatus.STOPPED
        if not self._unfinished:
            return InputStatus.END_OF_INPUT
        return InputStatus.MORE_AVAILABLE if self._available & self._unfinished else InputStatus.NOTHING_AVAILABLE
