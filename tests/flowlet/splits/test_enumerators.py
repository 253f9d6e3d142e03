"""Tests of ``flowlet.splits.enumerators``: the numbers and splits that readers get; of sources in turn, none gets ahead
of the others by more than a source.
"""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import StateRestoreError
from flowlet.messages.control_messages import AddSplits
from flowlet.splits.enumerator import LEAST_SPLIT, NumberSplitEnumerator, SplitEnumerator
from flowlet.splits.enumerators import HybridSplitEnumerator, PlannedSplitEnumerator, enumerator_for
from flowlet.splits.split_kinds import (
    HybridSplit,
    HybridSplits,
    KafkaTopics,
    NumberRange,
    NumberSplit,
    OffsetKind,
    OffsetRule,
    PlannedSplit,
    PlannedSplits,
)

SPLITS = tuple(PlannedSplit(name, name.encode()) for name in "abcde")
A, B = PlannedSplit("a", b""), PlannedSplit("b", b"")
TWO = HybridSplits((PlannedSplits((A, B), is_on_demand=True), NumberRange(0, 7)))
NUMBERS = "the numbers of a source in a checkpoint"
PLANNED = "the splits of a source in a checkpoint"
HYBRID = "the sources of a hybrid source in a checkpoint"


def numbered(start: int, end: int, num_readers: int) -> NumberSplitEnumerator:
    enumerator = NumberSplitEnumerator(NumberRange(start, end))
    enumerator.discover(num_readers)
    return enumerator


def all_splits(enumerator: NumberSplitEnumerator) -> list[NumberSplit]:
    found = []
    while splits := enumerator.next_splits(0):
        found += splits
    return found


def test_a_single_reader_gets_everything_at_once() -> None:
    enumerator = numbered(-5, 10**9, 1)

    assert enumerator.next_splits(0) == [NumberSplit(-5, 10**9)]
    assert enumerator.next_splits(0) == []
    assert enumerator.waiting_bytes == 0


def test_a_reader_gets_half_of_its_fair_share_of_what_is_left() -> None:
    enumerator = numbered(0, 1_000_000, 2)

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
    sizes = [split.size_bytes for split in all_splits(numbered(0, num_numbers, 3))]

    assert min(sizes[:-1]) == least
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) < 40, "few questions"


def test_the_last_splits_of_few_numbers_are_an_eighth_of_a_share() -> None:
    """Several readers have something to do even if each record takes long."""
    assert [split.size_bytes for split in all_splits(numbered(0, 32, 2))] == [8, 6, 5, 4, 3, 2, 2, 2]


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 100_000), st.integers(1, 9))
def test_every_number_is_assigned_once_in_order(start: int, length: int, num_readers: int) -> None:
    end = min(start + length, 2**63)

    splits = all_splits(numbered(start, end, num_readers))

    edges = [start, *(split.end for split in splits)]
    assert [(split.start, split.end) for split in splits] == list(pairwise(edges))
    assert edges[-1] == end
    assert len({split.split_id for split in splits}) == len(splits)


def test_all_numbers_of_64_bits_can_be_sent_and_kept() -> None:
    numbers = NumberRange(-(2**63), 2**63)
    enumerator = numbered(numbers.start, numbers.end, 2)
    order = AddSplits(bytes(40), list(enumerator.next_splits(0)), enumerator.waiting_bytes)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=AddSplits) == order
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=NumberRange) == numbers
    other = NumberSplitEnumerator(numbers)
    other.restore(enumerator.snapshot(), 2)
    assert all_splits(other) == all_splits(enumerator)


def test_a_restored_one_goes_on_with_other_readers_whatever_the_program_says_now() -> None:
    before = numbered(0, 100, 4)
    (taken,) = before.next_splits(3)
    after = NumberSplitEnumerator(NumberRange(0, 7))

    after.restore(before.snapshot(), 1)

    assert after.next_splits(0) == [NumberSplit(taken.end, 100)]


@pytest.mark.parametrize(
    ("splits", "kind"),
    [
        (NumberRange(1, 3), NumberSplitEnumerator),
        (PlannedSplits(SPLITS), PlannedSplitEnumerator),
        (TWO, HybridSplitEnumerator),
    ],
    ids=["numbers", "planned splits", "a hybrid source"],
)
def test_the_job_manager_makes_the_enumerator_of_plain_data(splits: Any, kind: type[SplitEnumerator]) -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(splits), type=type(splits))
    enumerator: Any = enumerator_for(sent)

    assert enumerator.split_set == splits
    assert type(enumerator) is kind
    assert (enumerator.discovery_interval_ms, list(enumerator.find_new())) == (None, [])


def test_splits_of_hybrid_and_planned_sources_have_ids_and_sizes_and_can_be_sent() -> None:
    order = AddSplits(bytes(40), [HybridSplit(0, A), HybridSplit(1)], 0)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=AddSplits) == order
    assert (A.size_bytes, planned(1).waiting_bytes) == (0, 0)
    assert [(split.split_id, split.size_bytes) for split in (HybridSplit(1, NumberSplit(0, 7)), HybridSplit(1))] == [
        ("1: up to 7", 7),
        ("1: end", 0),
    ]


@pytest.mark.parametrize(
    ("enumerator", "state", "message"),
    [
        pytest.param(NumberSplitEnumerator(NumberRange(0, 1)), b"\xff", NUMBERS, id="no numbers"),
        pytest.param(
            NumberSplitEnumerator(NumberRange(0, 1)),
            msgspec.msgpack.encode((2, 0, 1)),
            NUMBERS,
            id="newer numbers",
        ),
        pytest.param(PlannedSplitEnumerator(PlannedSplits(())), b"\xff", PLANNED, id="no splits"),
        pytest.param(
            PlannedSplitEnumerator(PlannedSplits(())),
            msgspec.msgpack.encode((2, [])),
            PLANNED,
            id="newer splits",
        ),
        pytest.param(HybridSplitEnumerator(TWO), b"\xff", HYBRID, id="no sources"),
        pytest.param(
            HybridSplitEnumerator(TWO),
            msgspec.msgpack.encode((2, 0, None)),
            "have version 2, this flowlet reads version 1",
            id="newer sources",
        ),
        pytest.param(
            HybridSplitEnumerator(TWO),
            msgspec.msgpack.encode((1, 2, None)),
            "is at its source 2 in the checkpoint, and has 2 now",
            id="fewer sources",
        ),
    ],
)
def test_a_state_that_cannot_be_read_is_refused(enumerator: SplitEnumerator, state: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        enumerator.restore(state, 1)


def planned(num_readers: int, *, is_on_demand: bool = False) -> PlannedSplitEnumerator:
    enumerator = PlannedSplitEnumerator(PlannedSplits(SPLITS, is_on_demand))
    enumerator.discover(num_readers)
    return enumerator


def names(splits: list[PlannedSplit]) -> str:
    return "".join(split.split_id for split in splits)


def test_each_reader_gets_its_share_at_once() -> None:
    enumerator = planned(2)

    assert names(enumerator.next_splits(1)) == "bd"
    assert names(enumerator.next_splits(0)) == "ace"
    assert names(enumerator.next_splits(0)) == ""


def test_a_reader_that_asks_more_often_gets_more() -> None:
    enumerator = planned(2, is_on_demand=True)

    assert [names(enumerator.next_splits(reader)) for reader in (1, 1, 0, 1, 1, 0)] == ["a", "b", "c", "d", "e", ""]


@pytest.mark.parametrize("is_on_demand", [True, False])
def test_a_snapshot_has_what_is_not_assigned(is_on_demand: bool) -> None:
    before = planned(2, is_on_demand=is_on_demand)
    taken = names(before.next_splits(0))
    after = PlannedSplitEnumerator(PlannedSplits((), is_on_demand))

    after.restore(before.snapshot(), 1)
    left = ""
    while found := names(after.next_splits(0)):
        left += found

    assert sorted(taken + left) == list("abcde")


def hybrid(num_readers: int, splits: HybridSplits = TWO) -> HybridSplitEnumerator:
    enumerator = HybridSplitEnumerator(splits)
    enumerator.discover(num_readers)
    return enumerator


def after(enumerator: SplitEnumerator, num_readers: int) -> HybridSplitEnumerator:
    """Return the enumerator that is restored from a snapshot."""
    restored = HybridSplitEnumerator(TWO)
    restored.restore(enumerator.snapshot(), num_readers)
    return restored


def test_the_next_source_begins_when_all_readers_have_finished_the_one_before() -> None:
    enumerator = hybrid(2)

    first = [enumerator.next_splits(reader) for reader in (0, 0, 0, 1, 0)]

    assert first == [[HybridSplit(0, A)], [HybridSplit(0, B)], [HybridSplit(0)], [HybridSplit(0)], []]
    assert (enumerator.is_discovered, enumerator.has_next_source) == (True, True)
    assert enumerator.next_splits(1) == []
    assert (enumerator.is_discovered, enumerator.has_next_source) == (False, False)
    enumerator.restore(enumerator.snapshot(), 1)
    assert [enumerator.next_splits(0), enumerator.next_splits(0)] == [[HybridSplit(1, NumberSplit(0, 7))], []]
    assert (enumerator.is_discovered, enumerator.has_next_source) == (True, False)


def test_a_reader_that_asks_on_counts_once() -> None:
    enumerator = hybrid(2)

    for _ in range(9):
        enumerator.next_splits(0)

    assert enumerator.is_discovered


def test_a_restored_one_has_what_was_not_assigned_and_asks_every_reader_again() -> None:
    before = hybrid(1)
    before.next_splits(0)

    restored = after(before, 2)

    asked = [restored.next_splits(reader) for reader in (1, 1, 0, 1)]
    assert asked == [[HybridSplit(0, B)], [HybridSplit(0)], [HybridSplit(0)], []]
    restored = after(restored, 2)
    assert [restored.next_splits(reader) for reader in (1, 0)] == [[HybridSplit(0)], [HybridSplit(0)]]


def test_the_position_in_a_later_source_is_kept() -> None:
    before = hybrid(1)
    for _ in range(4):
        before.next_splits(0)
    before = after(before, 2)
    before.next_splits(1)

    restored = after(before, 1)

    assert restored.waiting_bytes == 5
    assert restored.next_splits(0) == [HybridSplit(1, NumberSplit(2, 7))]


def test_only_the_last_source_is_looked_at_again() -> None:
    rule = OffsetRule(OffsetKind.EARLIEST)
    topics = KafkaTopics({}, rule, ("t",), discovery_interval_ms=100)

    assert HybridSplitEnumerator(HybridSplits((topics, NumberRange(0, 1)))).discovery_interval_ms is None
    assert HybridSplitEnumerator(HybridSplits((topics,))).discovery_interval_ms == 100
