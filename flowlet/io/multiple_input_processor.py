"""Leads data from the gates of a task to the inputs of its head, if that has several.

Hot path.  As ``input_processor``; choosing an input costs one look at each that has nothing.
Side:       task.
Invariants: inputs with data take turns, so none starves; each turn is as many buffers as the caller allows.  Each end
            is reported once.
Source:     Flink ``StreamMultipleInputProcessor``; ``StreamTwoInputProcessor`` is the same with two inputs.  Flink
            ``MultipleInputSelectionHandler``, ``InputSelection.fairSelectNextIndex``, which does not check the other
            inputs when the last one to end was stopped without draining; here both kinds of end are treated alike.
"""

from collections.abc import Callable, Iterator, Sequence

from flowlet.chain.stream_operator import InputStatus
from flowlet.io.input_processor import InputProcessor


class MultipleInputProcessor:
    """Reads several inputs in turns; task thread only, except ``current_watermark``.

    ``inputs`` has one processor per input of the head.
    """

    def __init__(self, inputs: Sequence[InputProcessor]) -> None:
        self._inputs = tuple(inputs)
        self._last = len(self._inputs) - 1
        self._unfinished = set(range(len(self._inputs)))  # inputs before END_OF_INPUT
        self._with_data = set(self._unfinished)  # inputs before END_OF_DATA
        self._end = InputStatus.END_OF_DATA  # how the data of all inputs ends

    def __repr__(self) -> str:
        ends = f"data on {sorted(self._with_data)}, not ended {sorted(self._unfinished)}"
        return f"<{type(self).__name__} of {list(self._inputs)!r}, {ends}>"

    @property
    def current_watermark(self) -> int:
        """The lowest watermark of the inputs in milliseconds; any thread."""
        return min(each.current_watermark for each in self._inputs)

    @property
    def waiting_for(self) -> str:
        """What the task waits for if there is no input, in words."""
        return "; ".join(f"input {index + 1}: {self._inputs[index].waiting_for}" for index in sorted(self._unfinished))

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        """As ``InputProcessor.process_input``, on the input whose turn it is."""
        return self._process(lambda each: each.process_input(max_buffers, should_stop), InputStatus.NOTHING_AVAILABLE)

    def process_events(self) -> InputStatus:
        """As ``InputProcessor.process_events``, on the input whose turn it is."""
        return self._process(InputProcessor.process_events, InputStatus.MORE_AVAILABLE)

    def _process(
        self, process: Callable[[InputProcessor], InputStatus], status_without_input: InputStatus
    ) -> InputStatus:
        if not self._unfinished:
            return InputStatus.END_OF_INPUT
        num_inputs = len(self._inputs)
        for turn in range(1, num_inputs + 1):
            index = (self._last + turn) % num_inputs
            if self._is_awaited(index) and self._inputs[index].is_available:
                self._last = index
                return self._after(index, process(self._inputs[index]))
        return status_without_input

    def _after(self, index: int, status: InputStatus) -> InputStatus:
        """The status of all inputs together after that of one."""
        match status:
            case InputStatus.MORE_AVAILABLE:
                return status
            case InputStatus.END_OF_DATA | InputStatus.STOPPED:
                self._with_data.discard(index)
                if status is InputStatus.STOPPED:
                    self._end = status
                return InputStatus.MORE_AVAILABLE if self._with_data else self._end
            case InputStatus.END_OF_INPUT:
                self._unfinished.discard(index)
                if not self._unfinished:
                    return status
            case InputStatus.NOTHING_AVAILABLE:
                pass
        return InputStatus.MORE_AVAILABLE if self.is_available else InputStatus.NOTHING_AVAILABLE

    def _is_awaited(self, index: int) -> bool:
        """Whether the input is to be read now."""
        return index in self._unfinished

    def _awaited(self) -> Iterator[InputProcessor]:
        return (each for index, each in enumerate(self._inputs) if self._is_awaited(index))

    @property
    def is_available(self) -> bool:
        """Whether ``process_input`` would find something, including an end."""
        return any(each.is_available for each in self._awaited())

    @property
    def has_rest(self) -> bool:
        """As ``InputProcessor.has_rest``, of the inputs that have not ended."""
        return any(each.has_rest for each in self._awaited())

    @property
    def next_is_event(self) -> bool:
        """Whether the next ``process_input`` certainly finds an event, whichever input it reads."""
        available = [each for each in self._awaited() if each.is_available]
        return bool(available) and all(each.next_is_event for each in available)

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
        for each in self._awaited():
            each.watch(on_available)
