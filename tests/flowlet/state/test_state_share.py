"""``StateShare``: what a subtask takes over of the state of the former ones."""

import pytest

from flowlet.state.state_snapshots import StateShare


def shares(parallelism: int, former_parallelism: int = 2) -> list[StateShare]:
    return [StateShare(subtask, parallelism, 8, former_parallelism) for subtask in range(parallelism)]


@pytest.mark.parametrize(
    ("items", "dealt"),
    [
        ("abcdefg", ["adg", "be", "cf"]),
        ("ab", ["a", "b", ""]),
        ("", ["", "", ""]),
    ],
    ids=["more items than subtasks", "fewer", "none"],
)
def test_each_item_is_dealt_to_exactly_one_subtask(items: str, dealt: list[str]) -> None:
    """Round robin: the subtasks have equally many, but for one."""
    assert ["".join(share.dealt(items)) for share in shares(3)] == dealt


def test_each_key_group_belongs_to_exactly_one_subtask() -> None:
    assert [list(share.key_groups) for share in shares(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_subtask_is_the_same_if_no_number_changed_and_none_had_finished() -> None:
    assert shares(2)[1].is_the_same
    assert not shares(3)[1].is_the_same
    assert not StateShare(1, 2, 8, 2, frozenset({0})).is_the_same
