"""Tests of ``HybridSplitEnumerator``: no reader gets ahead of the others by more than a source."""

import msgspec
import pytest

from flowlet.errors import StateRestoreError
from flowlet.messages.control_messages import AddSplits
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.enumerators import HybridSplitEnumerator, enumerator_for
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

A, B = PlannedSplit("a", b""), PlannedSplit("b", b"")
TWO = HybridSplits((PlannedSplits((A, B), is_on_demand=True), NumberRange(0, 7)))


def discovered(num_readers: int, splits: HybridSplits = TWO) -> HybridSplitEnumerator:
    enumerator = HybridSplitEnumerator(splits)
    enumerator.discover(num_readers)
    return enumerator


def after(enumerator: SplitEnumerator, num_readers: int) -> HybridSplitEnumerator:
    """Return the enumerator that is restored from a snapshot."""
    restored = HybridSplitEnumerator(TWO)
    restored.restore(enumerator.snapshot(), num_readers)
    return restored


def test_the_next_source_begins_when_all_readers_have_finished_the_one_before() -> None:
    enumerator = discovered(2)

    first = [enumerator.next_splits(reader) for reader in (0, 0, 0, 1, 0)]

    assert first == [[HybridSplit(0, A)], [HybridSplit(0, B)], [HybridSplit(0)], [HybridSplit(0)], []]
    assert (enumerator.is_discovered, enumerator.has_next_source) == (True, True)
    assert enumerator.next_splits(1) == []
    assert (enumerator.is_discovered, enumerator.has_next_source) == (False, False)
    enumerator.restore(enumerator.snapshot(), 1)
    assert [enumerator.next_splits(0), enumerator.next_splits(0)] == [[HybridSplit(1, NumberSplit(0, 7))], []]
    assert (enumerator.is_discovered, enumerator.has_next_source) == (True, False)


def test_a_reader_that_asks_on_counts_once() -> None:
    enumerator = discovered(2)

    for _ in range(9):
        enumerator.next_splits(0)

    assert enumerator.is_discovered


def test_a_restored_one_has_what_was_not_assigned_and_asks_every_reader_again() -> None:
    before = discovered(1)
    before.next_splits(0)

    restored = after(before, 2)

    asked = [restored.next_splits(reader) for reader in (1, 1, 0, 1)]
    assert asked == [[HybridSplit(0, B)], [HybridSplit(0)], [HybridSplit(0)], []]
    restored = after(restored, 2)
    assert [restored.next_splits(reader) for reader in (1, 0)] == [[HybridSplit(0)], [HybridSplit(0)]]


def test_the_position_in_a_later_source_is_kept() -> None:
    before = discovered(1)
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


def test_the_job_manager_makes_the_enumerator_of_plain_data() -> None:
    enumerator = enumerator_for(msgspec.msgpack.decode(msgspec.msgpack.encode(TWO), type=HybridSplits))

    assert isinstance(enumerator, HybridSplitEnumerator)
    assert enumerator.split_set == TWO
    assert enumerator.find_new() == []
    order = AddSplits(bytes(40), [HybridSplit(0, A), HybridSplit(1)], 0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=AddSplits) == order
    assert [(split.split_id, split.size_bytes) for split in (HybridSplit(1, NumberSplit(0, 7)), HybridSplit(1))] == [
        ("1: up to 7", 7),
        ("1: end", 0),
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"\xff", "the sources of a hybrid source in a checkpoint cannot be read"),
        (msgspec.msgpack.encode((2, 0, None)), "have version 2, this flowlet reads version 1"),
        (msgspec.msgpack.encode((1, 2, None)), "is at its source 2 in the checkpoint, and has 2 now"),
    ],
)
def test_a_state_that_cannot_be_read_is_refused(state: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        discovered(1).restore(state, 1)
