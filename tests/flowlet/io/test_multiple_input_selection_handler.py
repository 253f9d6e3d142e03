"""Source: Flink ``MultipleInputSelectionHandlerTest``, ``InputSelectionTest``."""

import pytest

from flowlet.errors import FlowletError
from flowlet.operators.multiple_input_operator import (
    ALL,
    FIRST,
    SECOND,
    InputSelection,
    InputStatus,
    MultipleInputSelectionHandler,
)

MORE, NOTHING = InputStatus.MORE_AVAILABLE, InputStatus.NOTHING_AVAILABLE
END_OF_DATA, STOPPED, END_OF_INPUT = InputStatus.END_OF_DATA, InputStatus.STOPPED, InputStatus.END_OF_INPUT


def handler(num_inputs: int, *selections: InputSelection) -> MultipleInputSelectionHandler:
    """A handler; the selections are answered one after the other, the last one for ever."""
    if not selections:
        return MultipleInputSelectionHandler(num_inputs)
    answers = list(selections)
    made = MultipleInputSelectionHandler(num_inputs, lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    made.next_selection()
    return made


def test_a_selection_is_a_set_of_inputs_that_count_from_one() -> None:
    assert InputSelection.of(1, 3, 3).mask == 0b101
    assert (InputSelection.of(1), InputSelection.of(2)) == (FIRST, SECOND)
    assert [ALL.is_selected(number) for number in (1, 63)] == [True, True]
    assert not FIRST.is_selected(2)


@pytest.mark.parametrize("inputs", [(), (0,), (64,), (1, 64)])
def test_a_selection_of_no_input_or_of_one_that_cannot_be_is_refused(inputs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 63"):
        InputSelection.of(*inputs)


@pytest.mark.parametrize("num_inputs", [0, 64, 65])
def test_more_than_63_inputs_are_rejected(num_inputs: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 63 inputs, got {num_inputs}"):
        MultipleInputSelectionHandler(num_inputs)


def test_63_inputs_take_turns() -> None:
    made, last, order = handler(63), 62, []

    for _ in range(64):
        index = made.select_next(last)
        assert index is not None
        order.append(index)
        last = index

    assert order == [*range(63), 0]


@pytest.mark.parametrize(
    ("last", "available", "expected"),
    [(0, {1, 2}, 1), (1, {1, 2}, 2), (2, {1, 2}, 1), (1, {0}, 0), (0, {0}, 0), (0, set(), None)],
)
def test_the_next_input_is_the_first_available_one_behind_the_last(
    last: int, available: set[int], expected: int | None
) -> None:
    made = handler(3)
    for index in {0, 1, 2} - available:
        made.update(index, NOTHING)

    assert made.select_next(last) == expected


def test_only_what_the_operator_selects_is_read() -> None:
    made = handler(2, SECOND, FIRST)

    assert made.select_next(1) == 1
    assert made.update(1, MORE) is MORE
    assert made.select_next(1) == 0


def test_nothing_is_available_while_the_selected_input_has_nothing() -> None:
    """Although the other one does; it has again once somebody says so."""
    made = handler(2, FIRST)

    assert made.update(0, NOTHING) is NOTHING
    assert made.select_next(0) is None
    made.set_available(0)
    assert made.select_next(0) == 0


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
    made = handler(2)

    assert [made.update(index, status) for index, status in statuses] == expected
    assert made.drains is (STOPPED not in {status for _, status in statuses})


def test_the_partitions_of_an_input_without_data_are_read_to_their_end_whatever_is_selected() -> None:
    made = handler(2, SECOND)
    made.update(0, END_OF_DATA)

    assert made.is_selected(0)
    made.update(0, END_OF_INPUT)
    assert not made.is_selected(0)


def test_selecting_only_inputs_that_have_ended_is_an_error() -> None:
    made = handler(2, FIRST)
    made.update(0, END_OF_DATA)

    with pytest.raises(FlowletError, match="selects only inputs that have ended"):
        made.select_next(0)


def test_when_all_data_has_ended_the_selection_does_not_matter() -> None:
    made = handler(2, FIRST)
    made.update(0, END_OF_DATA)
    made.update(1, END_OF_DATA)

    assert [made.select_next(0), made.select_next(1)] == [1, 0]
    assert [made.update(0, END_OF_INPUT), made.update(1, END_OF_INPUT)] == [MORE, END_OF_INPUT]
    assert made.are_all_inputs_finished
