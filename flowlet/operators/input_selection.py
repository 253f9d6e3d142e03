"""What an operator with several inputs says about which of them it wants to read.

Side:   pure.
Source: Flink ``InputSelection``, ``InputSelectable``; at most 63 inputs.
"""

from typing import Final, Protocol, runtime_checkable

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
    """

    def next_selection(self) -> InputSelection:
        """The inputs from which the next record may come."""
