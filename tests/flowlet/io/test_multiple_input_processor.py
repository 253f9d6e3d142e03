"""Source: Flink ``MultipleInputSelectionHandlerTest``."""

from collections.abc import Callable

import pytest

from flowlet.chain.stream_operator import InputStatus
from flowlet.io.input_processor import InputProcessor, MultipleInputProcessor

MORE, NOTHING = InputStatus.MORE_AVAILABLE, InputStatus.NOTHING_AVAILABLE
END_OF_DATA, STOPPED, END_OF_INPUT = InputStatus.END_OF_DATA, InputStatus.STOPPED, InputStatus.END_OF_INPUT


class Scripted(InputProcessor):
    """One input with the elements and statuses of the test."""

    def __init__(self, number: int, order: list[int]) -> None:
        self.number = number
        self.order = order
        self.has_data = True
        self.status = MORE

    @property
    def is_available(self) -> bool:
        return self.has_data

    def process_input(self, max_buffers: int, should_stop: Callable[[], bool]) -> InputStatus:
        self.order.append(self.number)
        self.has_data = self.has_data and self.status is not NOTHING
        return self.status


class Rig:
    def __init__(self, num_inputs: int) -> None:
        self.order: list[int] = []
        self.inputs = [Scripted(number, self.order) for number in range(num_inputs)]
        self.processor = MultipleInputProcessor(self.inputs)

    def process(self) -> InputStatus:
        return self.processor.process_input(1, lambda: False)

    def say(self, number: int, status: InputStatus) -> InputStatus:
        """Return the status of all inputs together when it is the turn of this one."""
        self.inputs[number].status = status
        self.processor._last = number - 1
        return self.process()


def test_63_inputs_take_turns() -> None:
    rig = Rig(63)

    for _ in range(64):
        assert rig.process() is MORE

    assert rig.order == [*range(63), 0]


@pytest.mark.parametrize(
    ("last", "available", "expected"),
    [(0, {1, 2}, [1]), (1, {1, 2}, [2]), (2, {1, 2}, [1]), (1, {0}, [0]), (0, {0}, [0]), (0, set(), [])],
)
def test_the_next_input_is_the_first_available_one_behind_the_last(
    last: int, available: set[int], expected: list[int]
) -> None:
    rig = Rig(3)
    rig.say(last, MORE)
    for each in rig.inputs:
        each.has_data = each.number in available

    assert rig.process() is (MORE if expected else NOTHING)
    assert rig.order[1:] == expected


def test_an_input_without_data_is_read_again_once_it_has_some() -> None:
    rig = Rig(2)

    assert [rig.say(1, NOTHING), rig.say(0, NOTHING)] == [MORE, NOTHING]
    assert rig.process() is NOTHING
    rig.inputs[0].has_data, rig.inputs[0].status = True, MORE
    assert rig.process() is MORE
    assert rig.order == [1, 0, 0]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([(0, END_OF_DATA), (1, END_OF_DATA)], [MORE, END_OF_DATA]),
        ([(0, STOPPED), (1, END_OF_DATA)], [MORE, STOPPED]),
        ([(0, END_OF_DATA), (1, STOPPED)], [MORE, STOPPED]),
        ([(0, STOPPED), (1, STOPPED)], [MORE, STOPPED]),
        (
            [(0, END_OF_DATA), (0, END_OF_INPUT), (1, END_OF_DATA), (1, END_OF_INPUT)],
            [MORE, MORE, END_OF_DATA, END_OF_INPUT],
        ),
        ([(0, END_OF_DATA), (1, NOTHING), (0, END_OF_INPUT)], [MORE, MORE, NOTHING]),
    ],
)
def test_the_end_is_reported_once_all_inputs_are_there(
    statuses: list[tuple[int, InputStatus]], expected: list[InputStatus]
) -> None:
    """Drained only if every input is; whichever stops last."""
    rig = Rig(2)

    assert [rig.say(number, status) for number, status in statuses] == expected


def test_an_input_without_data_is_read_to_the_end_of_its_partitions() -> None:
    rig = Rig(2)
    rig.say(0, END_OF_DATA)

    assert rig.say(0, END_OF_INPUT) is MORE
    assert [rig.process(), rig.process()] == [MORE, MORE]
    assert rig.order == [0, 0, 1, 1]


def test_the_partitions_of_all_inputs_are_read_to_their_end_when_all_data_has_ended() -> None:
    rig = Rig(2)
    rig.say(0, END_OF_DATA)
    rig.say(1, END_OF_DATA)

    assert [rig.say(0, END_OF_INPUT), rig.say(1, END_OF_INPUT), rig.process()] == [MORE, END_OF_INPUT, END_OF_INPUT]
    assert rig.order == [0, 1, 0, 1]
