"""Tests of ``PlannedSplitEnumerator``: the splits of a user's source that readers get."""

import msgspec
import pytest

from flowlet.errors import StateRestoreError
from flowlet.splits.enumerators import PlannedSplitEnumerator, enumerator_for
from flowlet.splits.split_kinds import PlannedSplit, PlannedSplits

SPLITS = tuple(PlannedSplit(name, name.encode()) for name in "abcde")


def discovered(num_readers: int, *, is_on_demand: bool = False) -> PlannedSplitEnumerator:
    enumerator = PlannedSplitEnumerator(PlannedSplits(SPLITS, is_on_demand))
    enumerator.discover(num_readers)
    return enumerator


def names(splits: list[PlannedSplit]) -> str:
    return "".join(split.split_id for split in splits)


def test_each_reader_gets_its_share_at_once() -> None:
    enumerator = discovered(2)

    assert names(enumerator.next_splits(1)) == "bd"
    assert names(enumerator.next_splits(0)) == "ace"
    assert names(enumerator.next_splits(0)) == ""


def test_a_reader_that_asks_more_often_gets_more() -> None:
    enumerator = discovered(2, is_on_demand=True)

    assert [names(enumerator.next_splits(reader)) for reader in (1, 1, 0, 1, 1, 0)] == ["a", "b", "c", "d", "e", ""]


@pytest.mark.parametrize("is_on_demand", [True, False])
def test_a_snapshot_has_what_is_not_assigned(is_on_demand: bool) -> None:
    before = discovered(2, is_on_demand=is_on_demand)
    taken = names(before.next_splits(0))
    after = PlannedSplitEnumerator(PlannedSplits((), is_on_demand))

    after.restore(before.snapshot(), 1)
    left = ""
    while found := names(after.next_splits(0)):
        left += found

    assert sorted(taken + left) == list("abcde")


def test_the_job_manager_makes_the_enumerator_of_plain_data() -> None:
    planned = PlannedSplits(SPLITS)
    enumerator = enumerator_for(planned)

    assert isinstance(enumerator, PlannedSplitEnumerator)
    assert enumerator.split_set == planned
    assert (enumerator.waiting_bytes, enumerator.discovery_interval_ms, enumerator.find_new()) == (0, None, [])
    assert SPLITS[0].size_bytes == 0


@pytest.mark.parametrize("state", [b"\xff", msgspec.msgpack.encode((2, []))])
def test_a_state_that_cannot_be_read_is_refused(state: bytes) -> None:
    with pytest.raises(StateRestoreError, match="the splits of a source in a checkpoint"):
        discovered(1).restore(state, 1)
