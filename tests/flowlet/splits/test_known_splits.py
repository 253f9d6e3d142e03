"""Tests of ``flowlet.splits.enumerators``: the numbers that readers get."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import StateRestoreError
from flowlet.messages.control_messages import AddSplits
from flowlet.splits.enumerator import LEAST_SPLIT, NumberSplitEnumerator
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import NumberRange, NumberSplit


def discovered(start: int, end: int, num_readers: int) -> NumberSplitEnumerator:
    enumerator = NumberSplitEnumerator(NumberRange(start, end))
    enumerator.discover(num_readers)
    return enumerator


def all_splits(enumerator: NumberSplitEnumerator) -> list[NumberSplit]:
    found = []
    while splits := enumerator.next_splits(0):
        found += splits
    return found


def test_a_single_reader_gets_everything_at_once() -> None:
    enumerator = discovered(-5, 10**9, 1)

    assert enumerator.next_splits(0) == [NumberSplit(-5, 10**9)]
    assert enumerator.next_splits(0) == []
    assert enumerator.waiting_bytes == 0


def test_a_reader_gets_half_of_its_fair_share_of_what_is_left() -> None:
    enumerator = discovered(0, 1_000_000, 2)

    assert [enumerator.next_splits(reader) for reader in (1, 1, 0)] == [
        [NumberSplit(0, 250_000)],
        [NumberSplit(250_000, 437_500)],
        [NumberSplit(437_500, 578_125)],
    ]
    assert enumerator.waiting_bytes == 421_875


@pytest.mark.parametrize(
    ("num_numbers", "least"), [(100_000, LEAST_SPLIT), (192 * 10_000, 10_000), (2**62, -(-(2**62) // 192))]
)
def test_the_last_splits_of_many_numbers_are_small(num_numbers: int, least: int) -> None:
    """The last splits for three readers are small, although the number of splits stays low."""
    sizes = [split.size_bytes for split in all_splits(discovered(0, num_numbers, 3))]

    assert min(sizes[:-1]) == least
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) < 40, "few questions"


def test_the_last_splits_of_few_numbers_are_an_eighth_of_a_share() -> None:
    """Several readers have something to do even if each record takes long."""
    assert [split.size_bytes for split in all_splits(discovered(0, 32, 2))] == [8, 6, 5, 4, 3, 2, 2, 2]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 100_000), st.integers(1, 9))
def test_every_number_is_assigned_once_in_order(start: int, length: int, num_readers: int) -> None:
    end = min(start + length, 2**63)

    splits = all_splits(discovered(start, end, num_readers))

    edges = [start, *(split.end for split in splits)]
    assert [(split.start, split.end) for split in splits] == list(pairwise(edges))
    assert edges[-1] == end
    assert len({split.split_id for split in splits}) == len(splits)


def test_all_numbers_of_64_bits_can_be_sent_and_kept() -> None:
    numbers = NumberRange(-(2**63), 2**63)
    enumerator = discovered(numbers.start, numbers.end, 2)
    order = AddSplits(bytes(40), list(enumerator.next_splits(0)), enumerator.waiting_bytes)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=AddSplits) == order
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=NumberRange) == numbers
    other = NumberSplitEnumerator(numbers)
    other.restore(enumerator.snapshot(), 2)
    assert all_splits(other) == all_splits(enumerator)


def test_a_restored_one_goes_on_with_other_readers_whatever_the_program_says_now() -> None:
    before = discovered(0, 100, 4)
    (taken,) = before.next_splits(3)
    after = NumberSplitEnumerator(NumberRange(0, 7))

    after.restore(before.snapshot(), 1)

    assert after.next_splits(0) == [NumberSplit(taken.end, 100)]


def test_the_job_manager_makes_the_enumerator_of_plain_data() -> None:
    numbers = NumberRange(1, 3)
    enumerator = enumerator_for(numbers)

    assert isinstance(enumerator, NumberSplitEnumerator)
    assert enumerator.split_set == numbers
    assert (enumerator.discovery_interval_ms, enumerator.find_new()) == (None, [])


@pytest.mark.parametrize("state", [b"\xff", msgspec.msgpack.encode((2, 0, 1))])
def test_a_state_that_cannot_be_read_is_refused(state: bytes) -> None:
    with pytest.raises(StateRestoreError, match="the numbers of a source in a checkpoint"):
        discovered(0, 1, 1).restore(state, 1)
