"""The partitions that are found, their first offsets, and the readers that get them; the brokers are a table."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors.kafka.split import KafkaBrokers, KafkaSplitEnumerator, Partition
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import KafkaSplit, KafkaTopics, OffsetKind, OffsetRule

EARLIEST, LATEST = OffsetRule(OffsetKind.EARLIEST), OffsetRule(OffsetKind.LATEST)


class Table(KafkaBrokers):
    """Partitions with their first offset and the one behind the last."""

    def __init__(self, edges: dict[Partition, tuple[int, int]], committed: dict[Partition, int] | None = None) -> None:
        self.found = edges
        self.group = dict(committed or {})
        self.closed = 0

    def partitions(self, topics: KafkaTopics) -> list[Partition]:
        return sorted(self.found)

    def edges(self, partitions: Sequence[Partition], kind: OffsetKind) -> dict[Partition, int]:
        return {each: self.found[each][0 if kind is OffsetKind.EARLIEST else 1] for each in partitions}

    def at_time(self, partitions: Sequence[Partition], timestamp_ms: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, timestamp_ms)

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {each: self.group[each] for each in partitions if each in self.group}

    def close(self) -> None:
        self.closed += 1


def topics(start: OffsetRule = EARLIEST, stop: OffsetRule | None = None, interval_ms: int | None = None) -> KafkaTopics:
    return KafkaTopics(
        {"bootstrap.servers": "a:1", "group.id": "g", "sasl.password": "secret"},
        start,
        topics=("t",),
        stop=stop,
        discovery_interval_ms=interval_ms,
    )


def discovered(table: Table, topics: KafkaTopics, num_readers: int = 1) -> KafkaSplitEnumerator:
    enumerator = KafkaSplitEnumerator(topics, lambda _: table)
    enumerator.discover(num_readers)
    return enumerator


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (EARLIEST, [3, 5]),
        (LATEST, [9, 8]),
        (OffsetRule(OffsetKind.TIMESTAMP, timestamp_ms=7), [7, 7]),
        (OffsetRule(OffsetKind.OFFSETS, offsets=(("t", 1, 6),), fallback=OffsetKind.LATEST), [9, 6]),
        (OffsetRule(OffsetKind.COMMITTED, fallback=OffsetKind.EARLIEST), [4, 5]),
    ],
)
def test_offsets_are_numbers_when_a_partition_is_found(rule: OffsetRule, expected: list[int]) -> None:
    """Offsets become numbers for the start as for the end."""
    table = Table({("t", 0): (3, 9), ("t", 1): (5, 8)}, {("t", 0): 4})

    starts = discovered(table, topics(rule)).next_splits(0)
    stops = discovered(table, topics(EARLIEST, rule)).next_splits(0)

    assert [split.offset for split in starts] == expected
    assert [split.stop for split in stops] == expected
    assert table.closed == 2


def test_a_partition_without_a_committed_offset_is_named() -> None:
    with pytest.raises(FlowletError, match=r"group 'g' has committed no offset for t-0 at a:1; say where to begin"):
        discovered(Table({("t", 0): (0, 1)}), topics(OffsetRule(OffsetKind.COMMITTED)))


@given(st.integers(1, 9), st.integers(1, 12))
def test_each_partition_has_one_reader_and_those_of_a_topic_go_round(num_readers: int, num_partitions: int) -> None:
    enumerator = discovered(Table({("t", number): (0, 1) for number in range(num_partitions)}), topics(), num_readers)

    shares = [[split.partition for split in enumerator.next_splits(reader)] for reader in range(num_readers)]

    assert sorted(number for share in shares for number in share) == list(range(num_partitions))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [enumerator.next_splits(reader) for reader in range(num_readers)] == [[]] * num_readers


def test_a_new_partition_is_read_from_its_beginning() -> None:
    """A new partition is read once, however often it is found, whatever the start of the others is."""
    table = Table({("t", 0): (0, 9)})
    enumerator = discovered(table, topics(LATEST, interval_ms=1_000))
    enumerator.next_splits(0)
    table.found[("t", 1)] = (2, 7)

    for _ in range(2):
        enumerator.add_found(enumerator.find_new())
    again = KafkaSplitEnumerator(topics(), lambda _: table)
    again.restore(enumerator.snapshot(), 1)
    again.add_found(again.find_new())

    assert enumerator.next_splits(0) == again.next_splits(0) == [KafkaSplit("t", 1, 2)]
    assert enumerator.discovery_interval_ms == 1_000


def test_a_search_changes_nothing_before_its_result_is_added() -> None:
    table = Table({("t", 0): (0, 9)})
    enumerator = discovered(table, topics(LATEST))
    before = enumerator.snapshot()
    table.found[("t", 1)] = (2, 7)

    enumerator.find_new()

    assert enumerator.snapshot() == before


def test_a_restored_enumerator_has_what_was_not_assigned() -> None:
    """The number of readers may change, and no broker is asked."""
    before = discovered(Table({("t", number): (number, 9) for number in range(4)}), topics(stop=LATEST), 2)
    assigned = before.next_splits(0)

    after = KafkaSplitEnumerator(topics())
    after.restore(before.snapshot(), 3)

    left = [split for reader in range(3) for split in after.next_splits(reader)]
    assert sorted([*assigned, *left], key=lambda split: split.partition) == [
        KafkaSplit("t", number, number, 9) for number in range(4)
    ]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"\xc1", "cannot be read"),
        (msgspec.msgpack.encode((2, [], [])), "have version 2, this flowlet reads version 1"),
    ],
)
def test_a_state_that_is_no_state_is_refused(state: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        KafkaSplitEnumerator(topics()).restore(state, 1)


def test_the_description_travels_and_hides_passwords() -> None:
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(topics(stop=LATEST)), type=KafkaTopics)

    enumerator = enumerator_for(found)
    assert isinstance(enumerator, KafkaSplitEnumerator)
    assert enumerator.split_set == topics(stop=LATEST)
    assert repr(found) == "<KafkaTopics t at a:1>"
    assert "secret" not in repr(enumerator_for(found))
