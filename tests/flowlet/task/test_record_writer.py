import operator
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Broadcast, Forward, Global, KeyGroups, Partitioner, Rebalance
from flowlet.keys import key_group, operator_index
from flowlet.records import ACTIVE, IDLE, Chunk, Watermark
from flowlet.task import record_writer
from flowlet.task.record_writer import MAX_PENDING_RECORDS, MAX_ROUTES, KeyGroupsRecordWriter, RecordWriter, create_record_writer
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import LocalNetwork, SubpartitionReader


def identity(record: Any) -> Any:
    return record


class Rig:
    """A writer, its partition, and a reader per channel."""

    def __init__(
        self, network: LocalNetwork, partitioner: Partitioner, num_channels: int, *, buffer_timeout_ms: int = -1, max_buffers: int = 2_000
    ) -> None:
        self.partition: ResultPartition = network.partition(num_channels, max_buffers)
        self.num_written = 0
        self.writer: RecordWriter = create_record_writer(
            self.partition,
            partitioner,
            buffer_timeout_ms=buffer_timeout_ms,
            subtask=5,
            on_written=self._count,
            rng=random.Random(3),
        )
        self.readers = [SubpartitionReader(network.manager, self.partition, index) for index in range(num_channels)]

    def _count(self) -> None:
        self.num_written += 1

    def collect(self, *values: Any) -> None:
        self.writer.collect(Chunk(list(values)))

    def values(self) -> list[list[object]]:
        """All that arrived at each channel so far."""
        self.writer.flush_pending()
        self.partition.flush_all()
        return [reader.read_values() for reader in self.readers]

    def elements(self, channel: int = 0) -> list[object]:
        self.writer.flush_pending()
        self.partition.flush_all()
        return list(self.readers[channel].read())


@pytest.fixture
def network() -> Iterator[LocalNetwork]:
    with LocalNetwork(num_segments=4_000) as made:
        yield made


Make = Callable[..., Rig]


@pytest.fixture
def make(network: LocalNetwork) -> Make:
    return lambda partitioner, num_channels=1, **options: Rig(network, partitioner, num_channels, **options)


def channel_of(key: object, num_channels: int, max_parallelism: int = 128) -> int:
    return operator_index(key_group(key, max_parallelism), max_parallelism, num_channels)


def by_channel(values: list[Any], num_channels: int, key: Callable[[Any], Any] = identity) -> list[list[Any]]:
    """The reference: one record at a time."""
    channels: list[list[Any]] = [[] for _ in range(num_channels)]
    for value in values:
        channels[channel_of(key(value), num_channels)].append(value)
    return channels


class TestKeyGroups:
    def test_records_go_where_flink_sends_them(self, make: Make) -> None:
        """The golden table: subtask of 4 at 128 key groups."""
        rig = make(KeyGroups(identity), 4)
        golden = {"": 2, "a": 2, "b": 0, "key": 2, "hello": 1, "world": 2, "flink": 3, "apache": 3, "user-42": 0, "水位线": 1, "😀": 1}

        rig.collect(*golden)

        assert {value: channel for channel, values in enumerate(rig.values()) for value in values} == golden

    def test_max_parallelism_is_the_consumers(self, make: Make) -> None:
        rig = make(KeyGroups(identity, max_parallelism=4096), 3)
        values = [f"k{number}" for number in range(100)]

        rig.collect(*values)

        expected: list[list[str]] = [[], [], []]
        for value in values:
            expected[channel_of(value, 3, 4096)].append(value)
        assert rig.values() == expected

    def test_records_of_a_key_keep_their_order(self, make: Make) -> None:
        """Over several chunks and flushes; the selector sees whole records."""
        rig = make(KeyGroups(lambda record: record[0]), 3)
        records = [(f"k{number % 7}", number) for number in range(1_000)]

        for start in range(0, 1_000, 90):
            rig.collect(*records[start : start + 90])
            if start % 180 == 0:
                rig.writer.flush_pending()

        assert rig.values() == by_channel(records, 3, lambda record: record[0])

    def test_keys_that_are_equal_but_not_the_same_have_their_own_channels(self, make: Make) -> None:
        """1, 1.0 and True; 0.0 and -0.0; also inside tuples, also one after the other through the same writer."""
        rig = make(KeyGroups(identity), 16)
        keys = [1, 1.0, True, 0, 0.0, -0.0, False, (1, "a"), (1.0, "a"), (True, "a")]

        for key in keys:
            rig.collect(key)
        rig.collect(*keys)

        found = [[repr(value) for value in values] for values in rig.values()]
        assert found == [[repr(value) for value in values] for values in by_channel(keys + keys, 16)]

    @pytest.mark.parametrize("keys", [["a", 1, b"a", "b"], ["a", 1.5, "b"], [b"x", b"y"], [10**30, 5]])
    def test_mixed_types_of_keys(self, make: Make, keys: list[Any]) -> None:
        rig = make(KeyGroups(identity), 4)

        rig.collect(*keys)

        assert rig.values() == by_channel(keys, 4)

    def test_a_key_without_a_stable_hash_is_refused(self, make: Make) -> None:
        """The error names the record, its cause the type."""
        rig = make(KeyGroups(lambda record: record["id"]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect({"id": 1}, {"id": [2]}, {"id": [3]})

        assert caught.value.record_preview == "{'id': [2]}"
        assert isinstance(caught.value.__cause__, KeyTypeError)
        assert "list" in str(caught.value.__cause__)

    @pytest.mark.parametrize("selector", [lambda record: record[0], operator.itemgetter(0)])
    def test_the_first_field_is_the_first_field_of_anything(self, make: Make, selector: Callable[[Any], Any]) -> None:
        """Tuples, and whatever else has one."""
        rig = make(KeyGroups(selector), 3)
        records: list[Any] = [("a", 1), ("b", 2), ("key", 3)]

        rig.collect(*records)
        rig.collect(*records, ["a", 4], "hello")

        expected = by_channel([*records, *records, ["a", 4], "hello"], 3, lambda record: record[0])
        assert rig.values() == expected

    def test_a_record_without_a_first_field_is_named(self, make: Make) -> None:
        rig = make(KeyGroups(lambda record: record[0]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect(("a",), (), ("b",))

        assert caught.value.record_preview == "()"
        assert isinstance(caught.value.__cause__, IndexError)

    def test_a_failing_key_selector_names_the_record(self, make: Make) -> None:
        """And keeps the user's exception as the cause."""
        rig = make(KeyGroups(lambda record: record["id"]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect({"id": 1}, {"name": "x"}, {"id": 2})

        assert caught.value.operator == "key_by"
        assert caught.value.subtask == 5
        assert caught.value.record_preview == "{'name': 'x'}"
        assert isinstance(caught.value.__cause__, KeyError)

    def test_the_routes_are_bounded(self, make: Make) -> None:
        """More keys than the bound: everything still arrives, in order, and the dictionary stays small."""
        rig = make(KeyGroups(identity), 2)
        values = [f"k{number % (MAX_ROUTES + 500)}" for number in range(2 * MAX_ROUTES)]
        arrived: list[list[object]] = [[], []]

        for start in range(0, len(values), 2_000):
            rig.collect(*values[start : start + 2_000])
            for channel, part in enumerate(rig.values()):
                arrived[channel] += part

        assert isinstance(rig.writer, KeyGroupsRecordWriter)
        assert len(rig.writer._routes) <= MAX_ROUTES
        assert arrived == by_channel(values, 2)

    def test_one_channel_needs_no_keys(self, make: Make) -> None:
        """The selector is not even called."""
        rig = make(KeyGroups(lambda record: 1 // 0), 1)

        rig.collect(1, 2)

        assert rig.values() == [[1, 2]]

    def test_timestamps_travel_with_their_records(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        values = [f"k{number}" for number in range(50)]

        rig.writer.collect(Chunk(list(values), list(range(50))))

        for channel, expected in enumerate(by_channel(values, 2)):
            assert rig.elements(channel) == [Chunk(expected, [int(str(value)[1:]) for value in expected])]

    def test_timestamps_travel_with_records_of_any_key_type(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        values = [number / 2 for number in range(20)]

        rig.writer.collect(Chunk(list(values), list(range(20))))

        for channel, expected in enumerate(by_channel(values, 2)):
            assert rig.elements(channel) == [Chunk(expected, [int(value * 2) for value in expected])]

    @settings(max_examples=50)
    @given(
        chunks=st.lists(st.lists(st.one_of(st.text(max_size=3), st.integers(-3, 3), st.binary(max_size=2), st.booleans()), max_size=20)),
        num_channels=st.integers(1, 5),
    )
    def test_any_chunks_of_any_keys_arrive_as_one_record_at_a_time_would(self, chunks: list[list[Any]], num_channels: int) -> None:
        """Chunking changes neither channel nor order."""
        with LocalNetwork(num_segments=200) as network:
            rig = Rig(network, KeyGroups(identity), num_channels, max_buffers=100)

            for chunk in chunks:
                rig.collect(*chunk)

            expected = by_channel([value for chunk in chunks for value in chunk], num_channels)
            assert repr(rig.values()) == repr(expected)


class TestRebalance:
    def test_records_take_turns_from_a_random_channel_on(self, make: Make) -> None:
        """Record j goes to channel start + j, whatever the chunks."""
        rig = make(Rebalance(), 3)
        start = random.Random(3).randrange(3)
        sizes = [1, 2, 7, 3, 10, 1]
        values = list(range(sum(sizes)))

        position = 0
        for size in sizes:
            rig.collect(*values[position : position + size])
            position += size

        assert rig.values() == [values[(channel - start) % 3 :: 3] for channel in range(3)]

    def test_timestamps_travel_with_their_records(self, make: Make) -> None:
        rig = make(Rebalance(), 2)

        rig.writer.collect(Chunk(list("abcd"), [1, 2, 3, 4]))

        start = random.Random(3).randrange(2)
        assert rig.elements(start) == [Chunk(["a", "c"], [1, 3])]
        assert rig.elements(1 - start) == [Chunk(["b", "d"], [2, 4])]

    def test_writers_start_at_different_channels(self, network: LocalNetwork) -> None:
        """Otherwise every producer would send its first record to channel 0."""
        starts = set()
        for seed in range(20):
            writer = create_record_writer(network.partition(4), Rebalance(), buffer_timeout_ms=-1, subtask=0, rng=random.Random(seed))
            starts.add(writer._next_channel)  # type: ignore[attr-defined]  # of the rebalancing writer

        assert starts == {0, 1, 2, 3}


class TestOthers:
    @pytest.mark.parametrize("partitioner", [Forward(), Rebalance(), Broadcast(), Global()])
    def test_one_channel_gets_everything_in_order(self, make: Make, partitioner: Partitioner) -> None:
        rig = make(partitioner)

        rig.collect(1, 2)
        rig.collect(3)

        assert rig.values() == [[1, 2, 3]]

    def test_global_uses_the_first_channel(self, make: Make) -> None:
        """Watermarks reach all."""
        rig = make(Global(), 3)

        rig.collect(1, 2)
        rig.writer.emit_watermark(Watermark(7))

        assert rig.elements(0) == [Chunk([1, 2]), Watermark(7)]
        assert rig.elements(1) == rig.elements(2) == [Watermark(7)]

    def test_broadcast_sends_the_same_bytes_to_every_channel(self, make: Make) -> None:
        rig = make(Broadcast(), 3)

        rig.collect("a", "b")
        rig.writer.emit_watermark(Watermark(7))

        assert [rig.elements(channel) for channel in range(3)] == [[Chunk(["a", "b"]), Watermark(7)]] * 3
        assert rig.readers[0].raw == rig.readers[1].raw == rig.readers[2].raw

    def test_the_values_of_a_chunk_are_not_shared_with_its_sender(self, make: Make) -> None:
        """A list that the sender keeps is neither cleared nor appended to."""
        rig = make(Forward())
        values = [1, 2]

        rig.writer.collect(Chunk(values))
        rig.collect(3)
        rig.writer.flush_pending()

        assert values == [1, 2]


class TestPending:
    def test_nothing_is_written_before_it_must(self, make: Make) -> None:
        rig = make(Forward())

        rig.collect(1, 2)
        rig.collect(3)
        rig.partition.flush_all()

        assert rig.readers[0].read() == []
        assert rig.elements() == [Chunk([1, 2, 3])]

    def test_an_empty_chunk_leaves_no_trace(self, make: Make) -> None:
        rig = make(Forward())

        rig.collect()

        assert rig.elements() == []
        assert rig.num_written == 0

    def test_a_long_list_is_written_early(self, make: Make) -> None:
        """More than the limit on one channel: that channel is written, the others wait."""
        rig = make(KeyGroups(identity), 2)
        many, few = ("a", "b") if channel_of("a", 2) == 0 else ("b", "a")

        rig.collect(few)
        for _ in range(2):
            rig.collect(*[many] * MAX_PENDING_RECORDS)
        rig.partition.flush_all()

        assert rig.readers[channel_of(many, 2)].read_values() == [many] * (2 * MAX_PENDING_RECORDS)
        assert rig.readers[channel_of(few, 2)].read() == []

    @pytest.mark.parametrize("timestamps", [None, list(range(10_000))])
    def test_a_long_chunk_is_cut(self, make: Make, timestamps: list[int] | None) -> None:
        """No element has more than twice the limit."""
        rig = make(Forward())

        rig.writer.collect(Chunk(list(range(10_000)), timestamps))

        chunks = [element for element in rig.elements() if isinstance(element, Chunk)]
        assert max(map(len, chunks)) <= 2 * MAX_PENDING_RECORDS
        assert [value for chunk in chunks for value in chunk.values] == list(range(10_000))
        if timestamps is not None:
            assert [timestamp for chunk in chunks for timestamp in chunk.timestamps or ()] == timestamps

    @pytest.mark.parametrize("timestamps", [None, list(range(9))])
    def test_a_large_element_is_cut(self, make: Make, monkeypatch: pytest.MonkeyPatch, timestamps: list[int] | None) -> None:
        """Down to single records, which go as they are."""
        monkeypatch.setattr(record_writer, "MAX_ELEMENT_BYTES", 400)
        rig = make(Forward())
        values = [f"{number}" * 200 for number in range(9)]

        rig.writer.collect(Chunk(list(values), timestamps))

        chunks = [element for element in rig.elements() if isinstance(element, Chunk)]
        assert len(chunks) >= 5
        assert [value for chunk in chunks for value in chunk.values] == values
        assert [chunk.timestamps is None for chunk in chunks] == [timestamps is None] * len(chunks)

    def test_records_with_and_without_timestamps_keep_their_order(self, make: Make) -> None:
        rig = make(Forward())

        rig.collect(1)
        rig.writer.collect(Chunk([2, 3], [20, 30]))
        rig.collect(4)

        assert rig.elements() == [Chunk([1]), Chunk([2, 3], [20, 30]), Chunk([4])]

    def test_a_routed_list_is_usable_after_every_flush(self, make: Make) -> None:
        """The routes hold bound appends of lists that must never be replaced."""
        rig = make(KeyGroups(identity), 2)

        for _ in range(3):
            rig.collect("a", "b")
            rig.writer.flush_pending()

        assert rig.values() == by_channel(["a", "b"] * 3, 2)


class TestControl:
    def test_a_watermark_comes_behind_the_records_before_it(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)

        rig.collect("a", "b", "key", "hello")
        rig.writer.emit_watermark(Watermark(5))

        for channel in range(2):
            assert rig.elements(channel)[-1] == Watermark(5)

    def test_no_watermark_passes_while_idle(self, make: Make) -> None:
        rig = make(Forward())

        rig.writer.emit_watermark_status(IDLE)
        rig.writer.emit_watermark(Watermark(5))
        rig.writer.emit_watermark_status(ACTIVE)
        rig.writer.emit_watermark(Watermark(6))

        assert rig.elements() == [IDLE, ACTIVE, Watermark(6)]

    def test_a_status_is_announced_once(self, make: Make) -> None:
        """Every channel starts active."""
        rig = make(Rebalance(), 2)

        for status in (ACTIVE, IDLE, IDLE):
            rig.writer.emit_watermark_status(status)

        assert rig.elements(0) == rig.elements(1) == [IDLE]


class TestBufferTimeout:
    def test_zero_flushes_with_every_flush_pending_that_wrote(self, make: Make) -> None:
        rig = make(Forward(), buffer_timeout_ms=0)

        rig.collect(1)
        rig.writer.flush_pending()

        assert rig.readers[0].num_notifications == 1
        assert rig.readers[0].read() == [Chunk([1])]
        rig.writer.flush_pending()
        assert rig.readers[0].num_notifications == 1

    def test_minus_one_never_flushes(self, make: Make) -> None:
        rig = make(Forward(), buffer_timeout_ms=-1)

        rig.collect(1)
        rig.writer.flush_pending()

        assert rig.readers[0].num_notifications == 0
        assert rig.num_written == 0

    def test_a_timeout_is_announced_before_and_after_the_write(self, make: Make) -> None:
        """Before, because the write may block; after, because a timer may have fired in between."""
        rig = make(Forward(), buffer_timeout_ms=100)

        rig.collect(1)
        assert rig.num_written == 0
        rig.writer.flush_pending()

        assert rig.num_written == 2
        assert rig.readers[0].num_notifications == 0
        rig.writer.flush_pending()
        assert rig.num_written == 2

    def test_a_watermark_counts_as_written(self, make: Make) -> None:
        rig = make(Forward(), buffer_timeout_ms=0)

        rig.writer.emit_watermark(Watermark(1))
        rig.writer.flush_pending()

        assert rig.readers[0].read() == [Watermark(1)]


def test_a_writer_shows_what_is_pending(make: Make) -> None:
    rig = make(Rebalance(), 2)

    rig.collect(1, 2, 3)

    assert "3 records pending" in repr(rig.writer)
