"""Leads data from the gates of a task to the inputs of its head, if that has several.

Hot path.  As ``input_processor``; choosing an input costs a few integer operations per ``process_input``.
Side:       task.
Invariants: inputs with data take turns, so none starves; each turn is as many buffers as the caller allows.
Source:     Flink ``StreamMultipleInputProcessor``; ``StreamTwoInputProcessor`` is the same with two inputs.
"""

from collections.abc import Callable, Iterator, Sequence

from flowlet.io.input_processor import InputProcessor
from flowlet.operators.multiple_input_operator import InputStatus, MultipleInputSelectionHandler


class MultipleInputProcessor:
    """Reads several inputs in turns; task thread only, except ``current_watermark``.

    ``inputs`` has one processor per input of the head; ``selection`` knows which of them have data.
    """

    def __init__(self, inputs: Sequence[InputProcessor], selection: MultipleInputSelectionHandler) -> None:
        self._inputs = tuple(inputs)
        self._selection = selection
        self._last = len(self._inputs) - 1

    def __repr__(self) -> str:
        return f"<MultipleInputProcessor of {list(self._inputs)!r}, {self._selection!r}>"

    @property
    def current_watermark(self) -> int:
        """The lowest watermark of the inputs in milliseconds; any thread."""
        return min(each.current_watermark for each in self._inputs)

    @property
    def waiting_for(self) -> str:
        """What the task waits for if there is no input, in words."""
        return "; ".join(
            f"input {index + 1}: {each.waiting_for}"
            for index, each in enumerate(self._inputs)
            if self._selection.is_unfinished(index)
        )

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """As ``InputProcessor.process_input``, on the input whose turn it is."""
        return self._process(lambda each: each.process_input(max_buffers, should_stop), InputStatus.NOTHING_AVAILABLE)

    def process_events(self) -> InputStatus:
        """As ``InputProcessor.process_events``, on the input whose turn it is."""
        return self._process(InputProcessor.process_events, InputStatus.MORE_AVAILABLE)

    def _process(
        self, process: Callable[[InputProcessor], InputStatus], status_without_input: InputStatus
    ) -> InputStatus:
        if self._selection.are_all_inputs_finished:
            return InputStatus.END_OF_INPUT
        self._look_for_available()
        index = self._selection.select_next(self._last)
        if index is None:
            return status_without_input
        self._last = index
        return self._selection.update(index, process(self._inputs[index]))

    @property
    def is_available(self) -> bool:
        """Whether ``process_input`` would find something."""
        return any(each.is_available for each in self._unfinished())

    @property
    def has_rest(self) -> bool:
        """As ``InputProcessor.has_rest``, of the inputs that have not ended."""
        return any(each.has_rest for each in self._unfinished())

    @property
    def next_is_event(self) -> bool:
        """Whether the next ``process_input`` certainly finds an event, whichever input it reads."""
        available = [each for each in self._unfinished() if each.is_available]
        return bool(available) and all(each.next_is_event for each in available)

    def _unfinished(self) -> Iterator[InputProcessor]:
        return (each for index, each in enumerate(self._inputs) if self._selection.is_unfinished(index))

    def advance_to_end_of_event_time(self) -> None:
        """As ``InputProcessor.advance_to_end_of_event_time``, for every input."""
        for each in self._inputs:
            each.advance_to_end_of_event_time()

    def close(self) -> None:
        """As ``InputProcessor.close``, for every input."""
        for each in self._inputs:
            each.close()

    def watch(self, on_available: Callable[[], None]) -> None:
        """As ``InputProcessor.watch``, for the inputs that have not ended."""
        for each in self._unfinished():
            each.watch(on_available)

    def _look_for_available(self) -> None:
        for index, each in enumerate(self._inputs):
            if not self._selection.is_available(index) and each.is_available:
                self._selection.set_available(index)
