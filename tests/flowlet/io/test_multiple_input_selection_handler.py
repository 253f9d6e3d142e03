"""Source: Flink ``MultipleInputSelectionHandlerTest``."""

import pytest

from flowlet.operators.multiple_input_operator import InputStatus, MultipleInputSelectionHandler

MORE, NOTHING = InputStatus.MORE_AVAILABLE, InputStatus.NOTHING_AVAILABLE
END_OF_DATA, STOPPED, END_OF_INPUT = InputStatus.END_OF_DATA, InputStatus.STOPPED, InputStatus.END_OF_INPUT


@pytest.mark.parametrize("num_inputs", [0, 64, 65])
def test_more_than_63_inputs_are_rejected(num_inputs: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 63 inputs, got {num_inputs}"):
        MultipleInputSelectionHandler(num_inputs)


def test_63_inputs_take_turns() -> None:
    made, last, order = MultipleInputSelectionHandler(63), 62, []

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
    made = MultipleInputSelectionHandler(3)
    for index in {0, 1, 2} - available:
        made.update(index, NOTHING)

    assert made.select_next(last) == expected


def test_an_input_without_data_is_read_again_once_somebody_says_so() -> None:
    made = MultipleInputSelectionHandler(2)

    assert [made.update(1, NOTHING), made.update(0, NOTHING)] == [MORE, NOTHING]
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
    made = MultipleInputSelectionHandler(2)

    assert [made.update(index, status) for index, status in statuses] == expected
    assert made.drains is (STOPPED not in {status for _, status in statuses})


def test_an_input_without_data_is_read_to_the_end_of_its_partitions() -> None:
    made = MultipleInputSelectionHandler(2)
    made.update(0, END_OF_DATA)

    assert made.is_unfinished(0)
    made.update(0, END_OF_INPUT)
    assert not made.is_unfinished(0)


def test_the_partitions_of_all_inputs_are_read_to_their_end_when_all_data_has_ended() -> None:
    made = MultipleInputSelectionHandler(2)
    made.update(0, END_OF_DATA)
    made.update(1, END_OF_DATA)

    assert [made.select_next(0), made.select_next(1)] == [1, 0]
    assert [made.update(0, END_OF_INPUT), made.update(1, END_OF_INPUT)] == [MORE, END_OF_INPUT]
    assert made.are_all_inputs_finished
