"""Chooses which of several inputs is read next.

Side:       task.
Invariants: only selected inputs are read, and inputs whose data has ended (until their partitions end).  Selected
            inputs with data take turns.  Each end is reported once.
Source:     Flink ``MultipleInputSelectionHandler``, ``InputSelection.fairSelectNextIndex``.  Flink does not check the
            other inputs when the last one to end was stopped without draining; here both kinds of end are treated
            alike.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from flowlet.errors import FlowletError
from flowlet.operators.multiple_input_operator import ALL, MAX_INPUTS, InputSelection


class InputStatus(Enum):
    """What a call of ``process_input`` leaves behind."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_DATA = auto()  # reported once: all channels had their end of data, and are to be drained
    STOPPED = auto()  # as END_OF_DATA, but without draining
    END_OF_INPUT = auto()  # all partitions ended


_ENDS_OF_DATA: Final = (InputStatus.END_OF_DATA, InputStatus.STOPPED)


class MultipleInputSelectionHandler:
    """Tracks what each of 1 to 63 inputs still has; counts inputs from 0, where selections count from 1.

    Task thread only.

    ``next_selection`` asks the operator which inputs it wants; None: it wants all.
    """

    def __init__(self, num_inputs: int, next_selection: Callable[[], InputSelection] | None = None) -> None:
        if not 1 <= num_inputs <= MAX_INPUTS:
            raise ValueError(f"an operator has 1 to {MAX_INPUTS} inputs, got {num_inputs}")
        self._num_inputs = num_inputs
        self._next_selection = next_selection
        self._all = (1 << num_inputs) - 1
        self._selected = self._all
        self._available = self._all  # inputs that may have data; cleared when a read finds none
        self._unfinished = self._all  # inputs before END_OF_INPUT
        self._with_data = self._all  # inputs before END_OF_DATA
        self._drains = True
        self._is_end_reported = False

    def __repr__(self) -> str:
        masks = (
            f"selected {self._selected:b}, available {self._available:b}, with data {self._with_data:b}, open "
            f"{self._unfinished:b}"
        )
        return f"<MultipleInputSelectionHandler of {self._num_inputs}: {masks}>"

    @property
    def are_all_inputs_finished(self) -> bool:
        """Whether all partitions of all inputs have ended."""
        return not self._unfinished

    @property
    def drains(self) -> bool:
        """Whether all inputs that ended so far are to be drained."""
        return self._drains

    def is_selected(self, index: int) -> bool:
        """Whether the input may be read."""
        return bool(self._selected & self._unfinished & (1 << index))

    def is_available(self, index: int) -> bool:
        """Whether the input may have data."""
        return bool(self._available & (1 << index))

    def set_available(self, index: int) -> None:
        """Note that the input may have data."""
        self._available |= (1 << index) & self._unfinished

    def next_selection(self) -> None:
        """Ask the operator for its next selection; once per record."""
        if self._next_selection is None or not self._with_data:
            self._selected = self._all
            return
        # The operator cannot select an input whose data has ended, but the ends of its partitions must be read.
        ended = self._all & ~self._with_data
        self._selected = self._next_selection().mask & self._all | ended

    def select_next(self, last: int) -> int | None:
        """The first selected input after ``last`` that may have data; None if there is none.

        Raises:
            FlowletError: the operator selects only inputs that have ended, so it would wait for ever.
        """
        candidates = self._selected & self._unfinished
        if not candidates & self._with_data and self._with_data:
            raise FlowletError(
                "an operator selects only inputs that have ended; select inputs that still have data, or all of them"
            )
        candidates &= self._available
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
        self.next_selection()
        return self._overall(status)

    def _overall(self, status: InputStatus) -> InputStatus:
        if status in _ENDS_OF_DATA and not self._with_data and not self._is_end_reported:
            self._is_end_reported = True
            return InputStatus.END_OF_DATA if self._drains else InputStatus.STOPPED
        if not self._unfinished:
            return InputStatus.END_OF_INPUT
        if self._available & self._selected & self._unfinished:
            return InputStatus.MORE_AVAILABLE
        return InputStatus.NOTHING_AVAILABLE


__all__ = ["ALL", "InputSelection", "InputStatus", "MultipleInputSelectionHandler"]
