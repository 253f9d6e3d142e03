"""Promises of the writers that need not look at their records; for the others see ``test_keyed_record_writer``.

Source: Flink `RecordWriterTest`, `BroadcastRecordWriterTest`, `RebalancePartitionerTest`, `RescalePartitionerTest`,
`ShufflePartitionerTest`, `BroadcastPartitionerTest`, `GlobalPartitionerTest`, `ForwardPartitionerTest`.
"""

import random

import numpy as np
import pytest

from flowlet.columns import ArrayColumn, Columns, Shape, columns_of
from flowlet.graph.partitioner import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroups,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
)
from flowlet.io import record_writer
from flowlet.io.record_writer import MAX_PART_ROWS, MAX_PENDING_RECORDS, MAX_PENDING_ROWS_PER_LANE
from flowlet.records import ACTIVE, IDLE, Chunk, ControlElement, LatencyMarker, Watermark
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.wire.events import EndOfData, StopMode
from tests.flowlet.task.local_network import SEGMENT_BYTES
from tests.flowlet.task.writer_rig import Make, by_channel, channel_of, identity


def own_lane(record: tuple[int, str], num_channels: int) -> int:
    return record[0] * 7 % num_channels


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

    def test_writers_start_at_different_channels(self, make: Make) -> None:
        """Every producer would otherwise send its first record to channel 0."""
        starts = set()
        for seed in range(20):
            rig = make(Rebalance(), 4, rng=random.Random(seed), max_buffers=5)
            rig.collect("first")
            starts.add(rig.values().index(["first"]))

        assert starts == {0, 1, 2, 3}


class TestRescale:
    def test_records_take_turns_from_the_first_channel_on(self, make: Make) -> None:
        """The turns do not depend on the chunks; the channels are the few of a pointwise edge."""
        rig = make(Rescale(), 3)

        for start, end in ((0, 1), (1, 3), (3, 10), (10, 10), (10, 11)):
            rig.collect(*range(start, end))

        assert rig.values() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]


class TestShuffle:
    def test_every_record_goes_to_one_channel_and_all_channels_get_their_share(self, make: Make) -> None:
        """3,000 draws: a share is 1,000, and 150 off is more than five standard deviations."""
        rig = make(Shuffle(), 3)

        for start in range(0, 3_000, 1_000):
            rig.writer.collect(Chunk(list(range(start, start + 1_000)), list(range(start, start + 1_000))))

        chunks = [rig.chunks(channel) for channel in range(3)]
        shares = [[value for chunk in each for value in chunk.values] for each in chunks]
        assert [[stamp for chunk in each for stamp in chunk.timestamps or ()] for each in chunks] == shares
        assert all(share == sorted(share) and abs(len(share) - 1_000) < 150 for share in shares)
        assert sorted(value for share in shares for value in share) == list(range(3_000))


class TestOthers:
    @pytest.mark.parametrize("partitioner", [Forward(), Rebalance(), Rescale(), Shuffle(), Broadcast(), Global()])
    def test_one_channel_gets_everything_in_order(self, make: Make, partitioner: Partitioner) -> None:
        rig = make(partitioner)

        rig.collect(1, 2)
        rig.collect(3)

        assert rig.values() == [[1, 2, 3]]

    def test_global_uses_the_first_channel(self, make: Make) -> None:
        """Watermarks reach all channels."""
        rig = make(Global(), 3)

        rig.collect(1, 2)
        rig.writer.emit_control(Watermark(7))

        assert rig.elements(0) == [Chunk([1, 2]), Watermark(7)]
        assert rig.elements(1) == rig.elements(2) == [Watermark(7)]

    def test_broadcast_sends_the_same_bytes_to_every_channel(self, make: Make) -> None:
        rig = make(Broadcast(), 3)

        rig.collect("a", "b")
        rig.writer.emit_control(Watermark(7))

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
        """A channel with more records than the limit is written, the others wait."""
        rig = make(KeyGroups(identity), 2)
        many, few = (b"a", b"b") if channel_of(b"a", 2) == 0 else (b"b", b"a")

        rig.collect(few)
        for _ in range(MAX_PENDING_RECORDS // 20 + 1):
            rig.collect(*[many] * 20)
        rig.partition.flush_all()

        assert rig.readers[channel_of(many, 2)].read_values() == [many] * (MAX_PENDING_RECORDS + 20)
        assert rig.readers[channel_of(few, 2)].read() == []

    def test_long_columns_are_written_early(self, make: Make) -> None:
        """All lanes are written together: they are split only then."""
        rig = make(KeyGroups(identity), 2)

        for start in range(0, 3 * MAX_PENDING_ROWS_PER_LANE, 1_000):
            rig.collect(*range(start, start + 1_000))
        rig.partition.flush_all()

        arrived = sorted(value for reader in rig.readers for value in reader.read_values() if isinstance(value, int))
        assert arrived == list(range(2 * MAX_PENDING_ROWS_PER_LANE))

    @pytest.mark.parametrize(
        "partitioner", [Forward(), Rebalance(), Rescale(), Shuffle(), Broadcast(), Global(), Custom(own_lane, identity)]
    )
    @pytest.mark.parametrize("is_timed", [False, True])
    def test_lists_and_columns_take_the_same_way(self, make: Make, partitioner: Partitioner, is_timed: bool) -> None:
        """A record is where it would be if all came as lists, in any order of lists and columns."""
        chunks = [range(5), range(5, 45), range(45, 46), range(46, 90), range(90, 95)]
        arrived = []

        for in_columns in ([], [1, 3], [0, 1, 2, 3, 4]):
            rig = make(partitioner, 3)
            for index, numbers in enumerate(chunks):
                values, timestamps = [(number, "a") for number in numbers], list(numbers) if is_timed else None
                columns = columns_of(values)
                assert columns is not None
                rig.writer.collect(
                    Chunk.of_columns(columns, timestamps) if index in in_columns else Chunk(values, timestamps)
                )
            arrived.append(
                [
                    (value, chunk.timestamps and chunk.timestamps[index])
                    for channel in range(3)
                    for chunk in rig.chunks(channel)
                    for index, value in enumerate(chunk.values)
                ]
            )

        assert arrived[0] == arrived[1] == arrived[2]
        assert len(arrived[0]) == 95 * (3 if isinstance(partitioner, Broadcast) else 1)

    def test_columns_longer_than_a_part_are_cut(self, make: Make) -> None:
        rig = make(Forward())
        numbers = np.arange(2 * MAX_PART_ROWS + 5)

        rig.writer.collect(Chunk.of_columns(Columns(len(numbers), (ArrayColumn(numbers),), Shape.SCALAR), numbers))

        chunks = rig.chunks()
        assert [len(chunk) for chunk in chunks] == [MAX_PART_ROWS, MAX_PART_ROWS, 5]
        assert [value for chunk in chunks for value in chunk.values] == numbers.tolist()
        assert [value for chunk in chunks for value in chunk.timestamps or ()] == numbers.tolist()

    def test_large_columns_are_cut(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record_writer, "MAX_ELEMENT_BYTES", 400)
        rig = make(Forward())
        values = [(f"{number}" * 200, number) for number in range(9)]
        columns = columns_of(values)
        assert columns is not None

        rig.writer.collect(Chunk.of_columns(columns, list(range(9))))

        chunks = rig.chunks()
        assert len(chunks) >= 5
        assert [value for chunk in chunks for value in chunk.values] == values
        assert [value for chunk in chunks for value in chunk.timestamps or ()] == list(range(9))

    @pytest.mark.parametrize("timestamps", [None, list(range(10_000))])
    def test_a_long_chunk_is_cut(self, make: Make, timestamps: list[int] | None) -> None:
        """No element has more than twice the limit."""
        rig = make(Forward())

        rig.writer.collect(Chunk(list(range(10_000)), timestamps))

        chunks = rig.chunks()
        assert max(map(len, chunks)) <= 2 * MAX_PENDING_RECORDS
        assert [value for chunk in chunks for value in chunk.values] == list(range(10_000))
        if timestamps is not None:
            assert [timestamp for chunk in chunks for timestamp in chunk.timestamps or ()] == timestamps

    @pytest.mark.parametrize("timestamps", [None, list(range(9))])
    def test_a_large_element_is_cut(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, timestamps: list[int] | None
    ) -> None:
        """Down to single records, which go as they are."""
        monkeypatch.setattr(record_writer, "MAX_ELEMENT_BYTES", 400)
        rig = make(Forward())
        values = [f"{number}" * 200 for number in range(9)]

        rig.writer.collect(Chunk(list(values), timestamps))

        chunks = rig.chunks()
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
        rig.writer.emit_control(Watermark(5))

        for channel in range(2):
            assert rig.elements(channel)[-1] == Watermark(5)

    def test_no_watermark_passes_while_idle(self, make: Make) -> None:
        rig = make(Forward())

        rig.writer.emit_control(IDLE)
        rig.writer.emit_control(Watermark(5))
        rig.writer.emit_control(ACTIVE)
        rig.writer.emit_control(Watermark(6))

        assert rig.elements() == [IDLE, ACTIVE, Watermark(6)]

    def test_a_status_is_announced_once(self, make: Make) -> None:
        """Every channel starts active."""
        rig = make(Rebalance(), 2)

        for status in (ACTIVE, IDLE, IDLE):
            rig.writer.emit_control(status)

        assert rig.elements(0) == rig.elements(1) == [IDLE]


class Turns(random.Random):
    """Draws 0, 1, 2, ... in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = 0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        assert stop is None
        self.drawn += 1
        return (self.drawn - 1) % start


MARKER = LatencyMarker(17, b"o" * 16, 3)


class TestLatencyMarkers:
    @pytest.mark.parametrize(
        "partitioner", [Forward(), Rebalance(), Rescale(), Shuffle(), Broadcast(), KeyGroups(identity)]
    )
    def test_a_marker_comes_to_one_channel_behind_the_records_before_it(
        self, make: Make, partitioner: Partitioner
    ) -> None:
        """A marker is no watermark, so it is sent while the status is idle, too."""
        rig = make(partitioner, 3)

        rig.writer.emit_control(IDLE)
        rig.collect(*"abcdef")
        rig.writer.emit_control(MARKER)
        elements = [rig.elements(channel) for channel in range(3)]

        reached = [each for each in elements if MARKER in each]
        assert len(reached) == 1
        assert reached[0][-1] == MARKER
        assert all(element[0] == IDLE for element in elements)

    def test_every_channel_gets_its_share_of_markers(self, make: Make) -> None:
        """The channel of a marker is drawn anew each time."""
        rig = make(Broadcast(), 3, rng=random.Random(0))

        for _ in range(300):
            rig.writer.emit_control(MARKER)

        counts = [len(rig.elements(channel)) for channel in range(3)]
        assert sum(counts) == 300
        assert min(counts) > 60


class TestBroadcastBuffers:
    def test_all_channels_share_one_segment(self, make: Make) -> None:
        """The segment goes back when the last channel has read it."""
        rig = make(Broadcast(), 8, max_buffers=9)
        num_available_before = rig.network.pool.num_available

        rig.collect("a", "b")
        rig.writer.emit_control(Watermark(1))
        rig.writer.flush_pending()
        rig.partition.broadcast_event(EndOfData(StopMode.DRAIN))
        num_taken = num_available_before - rig.network.pool.num_available
        for reader in rig.readers[:7]:
            reader.read()

        assert num_taken <= 2  # one in use, one spare of the pool
        assert rig.partition.statistics().num_queued_buffers == 2  # data and event of the last
        assert rig.readers[7].read() == [Chunk(["a", "b"]), Watermark(1)]

    def test_broadcast_mixed_random_emit(self, make: Make) -> None:
        """A marker to one channel and a record to all, 8 times, take a buffer for each marker and one for each record
        that all share.
        """
        rig = make(Broadcast(), 8, rng=Turns())

        for number in range(8):
            rig.writer.emit_control(LatencyMarker(number, b"o" * 16, 0))
            rig.collect(number)
            rig.writer.flush_pending()
        statistics = rig.partition.statistics()
        arrived = [rig.elements(channel) for channel in range(8)]

        assert statistics.num_queued_buffers == 8 * 9
        for channel, elements in enumerate(arrived):
            records: list[object] = [Chunk([number]) for number in range(8)]
            records.insert(channel, LatencyMarker(channel, b"o" * 16, 0))
            assert elements == records

    def test_an_event_closes_the_shared_buffer(self, make: Make) -> None:
        """Flink's count: with no records one buffer per channel is queued, with records two."""
        rig = make(Broadcast(), 4)

        rig.partition.broadcast_event(EndOfData(StopMode.DRAIN))
        num_events = rig.partition.statistics().num_queued_buffers
        rig.collect("a")
        rig.writer.flush_pending()
        rig.partition.broadcast_event(EndOfData(StopMode.DRAIN))

        assert num_events == 4
        assert rig.partition.statistics().num_queued_buffers == 12
        assert [rig.elements(channel) for channel in range(4)] == [[Chunk(["a"])]] * 4
        assert [len(reader.events) for reader in rig.readers] == [2] * 4


def value_of_size(num_bytes: int) -> bytes:
    """Return a record whose chunk takes so many bytes."""
    return b"x" * (num_bytes - len(StreamElementSerializer().serialize(Chunk([b"x" * SEGMENT_BYTES]))) + SEGMENT_BYTES)


class TestRoom:
    def test_availability_follows_the_pool(self, make: Make) -> None:
        """A writer that used up its two buffers has no room until a reader gives one back."""
        rig = make(Forward(), max_buffers=2)

        rig.collect(value_of_size(2 * SEGMENT_BYTES))
        has_room = [rig.partition.buffer_pool.is_available]
        rig.writer.flush_pending()
        has_room.append(rig.partition.buffer_pool.is_available)
        rig.readers[0].read()
        has_room.append(rig.partition.buffer_pool.is_available)

        assert has_room == [True, False, True]

    @pytest.mark.parametrize(("num_bytes", "has_room"), [(SEGMENT_BYTES, True), (SEGMENT_BYTES + 1, False)])
    def test_a_record_that_fills_its_buffer_asks_for_no_other(self, make: Make, num_bytes: int, has_room: bool) -> None:
        """A task could otherwise wait for a buffer that it does not need yet."""
        rig = make(Forward(), max_buffers=2)

        rig.collect(value_of_size(num_bytes))
        rig.writer.flush_pending()

        assert rig.partition.buffer_pool.is_available is has_room
        assert rig.partition.statistics().num_bytes_out == SEGMENT_BYTES
        assert rig.partition.statistics().num_buffers_out == 1


class TestBufferTimeout:
    def test_a_timeout_below_minus_one_is_refused(self, make: Make) -> None:
        with pytest.raises(ValueError, match="got -2"):
            make(Forward(), buffer_timeout_ms=-2)

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
        """The write may block, and a timer may fire before it ends."""
        rig = make(Forward(), buffer_timeout_ms=100)

        rig.collect(1)
        assert rig.num_written == 0
        rig.writer.flush_pending()

        assert rig.num_written == 2
        assert rig.readers[0].num_notifications == 0
        rig.writer.flush_pending()
        assert rig.num_written == 2

    @pytest.mark.parametrize("element", [Watermark(1), MARKER])
    def test_a_watermark_or_marker_is_flushed_as_records_are(self, make: Make, element: ControlElement) -> None:
        rig = make(Forward(), buffer_timeout_ms=0)

        rig.writer.emit_control(element)
        rig.writer.flush_pending()

        assert rig.readers[0].read() == [element]


def test_a_writer_shows_what_is_pending(make: Make) -> None:
    rig = make(Rebalance(), 2)

    rig.collect(1, 2, 3)

    assert "3 records pending" in repr(rig.writer)
