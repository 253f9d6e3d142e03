"""``BufferWritingResultPartition``: every byte goes to its subpartition, and no thread waits for a partner that is
gone.
"""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, MemorySegment
from netstack.errors import ResourceClosedError
from netstack.partition.buffer_writing_result_partition import ResultPartitionStatistics
from netstack.wire.events import CancelCheckpointMarker, EndOfData, EndOfPartition, EndOfSuperstep, StopMode
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.partition.doubles import SEGMENT as SIZE
from tests.netstack.partition.doubles import Producing, partial_lengths, read, sizes
from tests.waiting import PATIENCE_S, spin_until

SEGMENT = 16  # bytes: small, so that records span buffers


@pytest.fixture
def it() -> Producing:
    return Producing()


# ---------------------------------------------------------------- records


def test_records_go_to_their_subpartition_and_share_buffers(small: Producing) -> None:
    """Small records of a subpartition fill one buffer."""
    small.partition.emit_record(b"abc", 0)
    small.partition.emit_record(b"xy", 1)
    small.partition.emit_record(memoryview(b"def"), 0)

    assert [sizes(view) for view in small.views] == [[6], [2]]


def test_a_record_for_a_subpartition_that_does_not_exist_reaches_none(small: Producing) -> None:
    """The error reaches no subpartition, even while a buffer for all of them is open."""
    small.partition.broadcast_record(b"all")

    for number in (2, 3):
        with pytest.raises(IndexError):
            small.partition.emit_record(b"lost", number)

    assert [read(view)[0] for view in small.views] == [b"all", b"all"]


def test_broadcast_record_with_record_spanning_multiple_buffers(it: Producing) -> None:
    """testBroadcastRecordWithRecordSpanningMultipleBuffers: every subpartition gets equal buffers."""
    partial = SIZE // 3
    it.partition.broadcast_record(bytes(partial))
    it.partition.broadcast_record(bytes(SIZE))

    assert (it.queued(), [partial_lengths(it, index) for index in range(2)]) == ([2, 2], [[0, partial]] * 2)


def test_an_exact_fit_asks_for_no_further_buffer(small: Producing) -> None:
    """RecordWriter.copyFromSerializerToTargetChannel (row D15): the next record opens another buffer."""
    small.partition.emit_record(bytes(SEGMENT), 0)

    assert small.partition.statistics() == ResultPartitionStatistics(SEGMENT, 1, 1, SEGMENT, 0, (SEGMENT, 0))
    assert small.listeners[0].count == 0, "a single buffer is not announced before a flush, full or not"
    small.partition.broadcast_record(bytes(SEGMENT))
    assert num_in_use(small.pool) == 2
    small.partition.emit_record(b"x", 0)
    assert small.listeners[0].count == 1
    assert sizes(small.views[0]) == [SEGMENT, SEGMENT, 1]


def reserve(small: Producing, num_segments: int, subpartition: int) -> list[MemorySegment]:
    """Reserve ``num_segments``: one call gives the segments that are free at the moment, at least one."""
    segments: list[MemorySegment] = []
    while len(segments) < num_segments:
        segments += small.partition.reserve_segments(num_segments - len(segments), subpartition)
    return segments


def test_segments_filled_in_place_stand_behind_what_was_emitted_before(small: Producing) -> None:
    small.partition.emit_record(b"abc", 0)
    segments = reserve(small, 2, 0)
    for segment, letter in zip(segments, b"xy", strict=True):
        segment.view[:] = bytes([letter]) * SEGMENT
    small.partition.emit_segments(segments, 0)
    small.partition.emit_record(b"def", 0)
    small.partition.flush_all()

    assert read(small.views[0])[0] == b"abc" + b"x" * SEGMENT + b"y" * SEGMENT + b"def"
    assert small.partition.statistics().num_bytes_by_subpartition[0] == 3 + 2 * SEGMENT, "the last buffer is still open"


def test_segments_filled_in_place_stand_behind_what_was_broadcast(small: Producing) -> None:
    small.partition.broadcast_record(b"all")
    segments = small.partition.reserve_segments(1, 1)
    segments[0].view[:] = b"z" * SEGMENT
    small.partition.emit_segments(segments, 1)
    small.partition.flush_all()

    assert read(small.views[1])[0] == b"all" + b"z" * SEGMENT
    assert read(small.views[0])[0] == b"all"


def test_segments_that_nobody_takes_go_back(small: Producing) -> None:
    """Reserved segments are recycled if their consumer left or the partition was released meanwhile."""
    gone = reserve(small, 3, 0)
    small.views[0].release()
    small.partition.emit_segments(gone, 0)
    late = reserve(small, 3, 1)
    small.partition.release()

    with pytest.raises(ResourceClosedError):
        small.partition.emit_segments(late, 1)
    with pytest.raises(ResourceClosedError):
        small.partition.reserve_segments(1, 1)


def test_flush_announces_what_was_emitted(small: Producing) -> None:
    """A flush announces the emitted data of one subpartition, or of all."""
    small.partition.emit_record(b"a", 0)
    small.partition.emit_record(b"b", 1)

    small.partition.flush(1)
    first = [listener.count for listener in small.listeners]
    small.partition.flush_all()

    assert (first, [listener.count for listener in small.listeners]) == ([0, 1], [1, 1])


@given(
    records=st.lists(
        st.tuples(st.integers(0, 2), st.binary(max_size=50), st.sampled_from(["", "flush", "read"])), max_size=25
    )
)
def test_every_subpartition_gets_its_bytes_in_order(records: list[tuple[int, bytes, str]]) -> None:
    """Any mix of records, flushes and reads keeps bytes and counts, and every segment comes back."""
    it = Producing(3, segment=SEGMENT, max_buffers=60)
    expected, got = [b""] * 3, [b""] * 3

    for index, record, action in records:
        it.partition.emit_record(record, index)
        expected[index] += record
        if action == "flush":
            it.partition.flush_all()
        elif action == "read":
            got[index] += read(it.views[index])[0]
        it.partition.check_invariants()
    it.partition.finish()
    for index, view in enumerate(it.views):
        content, events = read(view)
        got[index] += content
        assert events == [EndOfPartition()]

    assert got == expected
    assert it.partition.statistics().num_bytes_out == sum(map(len, expected))
    it.close()


def test_pipelined_partitions_compress_when_asked_to() -> None:
    """BufferCompressionTest, pipelined: data that becomes smaller is marked, other data and events go as they are."""
    it = Producing(1, compressor=BufferCompressor())
    it.partition.emit_record(b"a" * 500, 0)
    it.partition.broadcast_event(EndOfSuperstep())
    it.partition.emit_record(b"short", 0)
    decompressor, found = BufferDecompressor(SIZE), []

    while (one := it.views[0].next_buffer()) is not None:
        was_compressed, size = one.buffer.is_compressed, one.buffer.size
        restored = decompressor.decompress(one.buffer)
        found.append((was_compressed, size < 100, bytes(restored.view)))
        restored.recycle()

    assert found == [(True, True, b"a" * 500), (False, True, b"\0\0\0\2"), (False, True, b"short")]


# ---------------------------------------------------------------- to everybody


def test_broadcast_event_no_records() -> None:
    """RecordWriterTest.testBroadcastEventNoRecords: 1 queued per channel, no memory taken."""
    it = Producing(4)
    used = num_in_use(it.pool)

    it.partition.broadcast_event(CancelCheckpointMarker(7))

    assert (it.queued(), num_in_use(it.pool)) == ([1] * 4, used)
    assert [read(view)[1] for view in it.views] == [[CancelCheckpointMarker(7)]] * 4


def test_broadcast_event_mixed_records() -> None:
    """testBroadcastEventMixedRecords: partial buffers are finished first; the event comes behind them."""
    it = Producing(4, segment=32)
    it.partition.emit_record(bytes(32), 0)
    it.partition.emit_record(bytes(16), 1)
    it.partition.emit_record(bytes(8), 1)
    it.partition.emit_record(bytes(32 - 4 + 8), 2)

    it.partition.broadcast_event(EndOfSuperstep())

    assert it.queued() == [2, 2, 3, 1]
    assert [read(view) for view in it.views] == [(bytes(size), [EndOfSuperstep()]) for size in (32, 24, 36, 0)]


@pytest.mark.parametrize("is_event", [True, False])
def test_broadcast_buffer_independence(it: Producing, is_event: bool) -> None:
    """TestBroadcastEventBufferIndependence / testBroadcastEmitBufferIndependence: readers do not move each other."""
    if is_event:
        it.partition.broadcast_event(EndOfSuperstep())
    else:
        it.partition.broadcast_record(b"abcd")
    first = it.poll(0)
    it.partition.broadcast_record(b"xy")

    assert (first, it.poll(0)) == (4, 2)
    content, events = read(it.views[1])
    assert (content, len(events)) == (b"xy", 1) if is_event else (b"abcdxy", 0)


def test_broadcast_shares_one_segment() -> None:
    """BroadcastRecordWriter (row D18): 8 channels use 1 segment, freed when the last has read it."""
    it = Producing(8)
    used = num_in_use(it.pool)

    it.partition.broadcast_record(b"record")
    while_open = num_in_use(it.pool) - used
    it.partition.broadcast_event(EndOfSuperstep())
    in_use = []
    for view in it.views:
        in_use.append(num_in_use(it.pool) - used)
        assert read(view) == (b"record", [EndOfSuperstep()])

    assert (while_open, in_use, num_in_use(it.pool) - used) == (1, [1] * 8, 0)


def test_broadcast_mixed_random_emit_record() -> None:
    """testBroadcastMixedRandomEmitRecord: 8 channels, 8 records: 16 buffers, 9 queued and 9 records each."""
    it = Producing(8, segment=32)
    used, record = num_in_use(it.pool), b"0123"

    for index in range(8):
        it.partition.emit_record(record, index)
        it.partition.broadcast_record(record)

    assert (num_in_use(it.pool) - used, it.queued()) == (16, [9] * 8)
    it.partition.check_invariants()
    assert [read(view)[0] for view in it.views] == [record * 9] * 8


def test_random_emit_and_buffer_recycling() -> None:
    """testRandomEmitAndBufferRecycling: the shared buffer is finished before a single one is opened."""
    it = Producing(2, segment=8, num_segments=6)
    for _ in range(5):
        it.partition.broadcast_record(b"12")
        it.partition.emit_record(b"34", 1)
        it.partition.broadcast_record(b"56")
        assert [read(view)[0] for view in it.views] == [b"1256", b"123456"]


def test_broadcast_skips_consumers_that_have_gone() -> None:
    """A consumer that left costs nothing; when all have left, records go nowhere and no memory is taken."""
    it = Producing(3)
    it.views[0].release()
    it.partition.broadcast_record(b"abc")
    assert [read(view)[0] for view in it.views] == [b"", b"abc", b"abc"]

    it.views[1].release()
    it.views[2].release()
    it.partition.broadcast_event(EndOfSuperstep())
    used = num_in_use(it.pool)
    it.partition.broadcast_record(bytes(5 * SIZE))

    assert num_in_use(it.pool) == used


# ---------------------------------------------------------------- sizes that consumers want


def sized(it: Producing, *sizes: int) -> None:
    for view, size in zip(it.views, sizes, strict=True):
        view.notify_new_buffer_size(size)


ALL = -1  # a broadcast


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(
            [
                ((10, 6), [(0, 2), (0, 10), (1, 2), (1, 10)], [[10, 2], [6, 6]]),
                ((13, 5), [(0, 12), (0, 8), (1, 2), (1, 7)], [[8, 12], [5, 4]]),
            ],
            id="each subpartition has its own size, from the next buffer on",
        ),
        pytest.param([((10, 7), [(0, 12), (1, 111)], [[12], [111]])], id="the first record of a buffer fits"),
        pytest.param(
            [
                ((6, 10), [(ALL, 6)], [[6], [6]]),
                ((4, 12), [(ALL, 3), (ALL, 7)], [[4, 6], [4, 6]]),
                ((8, 5), [(ALL, 3)], [[3], [3]]),
            ],
            id="a broadcast takes the smallest size",
        ),
        pytest.param([((6, 10), [(ALL, 31)], [[31], [31]])], id="the first broadcast record fits"),
        pytest.param(
            [((SIZE + 1, 0), [(0, SIZE), (1, SIZE), (ALL, SIZE)], [[SIZE, SIZE], [SIZE, SIZE]])],
            id="more than a segment is a segment",
        ),
        pytest.param(
            [((0, 0), [(0, 10), (0, 10)], [[20], []]), ((5, 0), [(ALL, 4), (ALL, 4)], [[5, 3], [5, 3]])],
            id="zero says nothing",
        ),
        pytest.param([((1, 1), [(0, 10)] * 3, [[10, 10, 10], []])], id="a small buffer stays small"),
    ],
)
def test_buffers_have_the_sizes_that_consumers_want(
    it: Producing, rounds: list[tuple[tuple[int, int], list[tuple[int, int]], list[list[int]]]]
) -> None:
    """ResultPartitionTest.testDifferentBufferSizeForSubpartitions and its neighbours: by round, the wishes, the sizes
    of the records for a subpartition, and of the buffers that are read.
    """
    for wishes, records, expected in rounds:
        sized(it, *wishes)
        for index, size in records:
            if index == ALL:
                it.partition.broadcast_record(bytes(size))
            else:
                it.partition.emit_record(bytes(size), index)
        assert [sizes(view) for view in it.views] == expected


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_emit_record_expands_last_buffer(is_broadcast: bool) -> None:
    """testEmitRecordExpandsLastBuffer: one buffer in the pool; a small wish makes no writer wait."""
    it = Producing(1, segment=20, num_segments=1)
    it.views[0].notify_new_buffer_size(1)

    for _ in range(2):
        if is_broadcast:
            it.partition.broadcast_record(bytes(10))
        else:
            it.partition.emit_record(bytes(10), 0)

    assert (it.poll(0), it.queued()) == (20, [0])


# ---------------------------------------------------------------- numbers


def test_statistics_count_finished_buffers(small: Producing) -> None:
    """Statistics count bytes and buffers that are finished, and those that are queued now."""
    small.partition.emit_record(bytes(20), 0)
    before = small.partition.statistics()
    small.partition.broadcast_event(EndOfData(StopMode.DRAIN))

    assert (before.num_bytes_out, before.num_buffers_out, before.num_queued_buffers) == (16, 1, 2)
    after = small.partition.statistics()
    assert (after.num_bytes_out, after.num_buffers_out, after.num_queued_buffers) == (20, 2, 4)


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_result_partition_bytes_counter(it: Producing, is_broadcast: bool) -> None:
    """TestResultPartitionBytesCounterForUnicast / ForBroadcast: bytes of each subpartition, and their sum."""
    if is_broadcast:
        it.partition.broadcast_record(bytes(SIZE))
        expected = (SIZE, SIZE)
    else:
        it.partition.emit_record(bytes(SIZE), 0)
        it.partition.emit_record(bytes(2 * SIZE), 1)
        expected = (SIZE, 2 * SIZE)

    found = it.partition.statistics()
    assert (found.num_bytes_by_subpartition, found.num_bytes_out, found.num_buffers_out) == (
        expected,
        sum(expected),
        2 if is_broadcast else 3,
    )


def test_size_of_queued_buffers(it: Producing) -> None:
    """ResultPartitionTest.testSizeOfQueuedBuffers: goes up with every byte written and down with every byte polled."""
    partition = it.partition
    sized(it, 10, 10)

    def queued() -> int:
        return partition.statistics().num_queued_bytes

    found = []
    for index in range(2):
        partition.emit_record(bytes(3), index)
        found.append(queued())
    for index in range(2):
        partition.emit_record(bytes(10), index)
        found.append(queued())
    partition.broadcast_event(EndOfSuperstep())
    found.append(queued())
    partition.emit_record(bytes(5), 0)
    found.append(queued())
    partition.broadcast_record(bytes(7))
    found.append(queued())
    polled = []
    for index in (0, 1, 0, 1, 0, 1, 0, 0, 1):
        polled.append((it.poll(index), queued()))

    assert found == [3, 6, 16, 26, 34, 39, 53]
    assert polled == [(10, 43), (10, 33), (3, 30), (3, 27), (4, 23), (4, 19), (5, 14), (7, 7), (7, 0)]


# ---------------------------------------------------------------- writers that wait


class Writer:
    """A thread that emits full buffers until it ends."""

    def __init__(self, it: Producing, num_buffers: int, subpartition: int = 0) -> None:
        self.error: Exception | None = None
        self._it = it
        self.thread = threading.Thread(target=self._run, args=(num_buffers, subpartition))
        self.thread.start()

    def _run(self, num_buffers: int, subpartition: int) -> None:
        try:
            for number in range(num_buffers):
                self._it.partition.emit_record(bytes([number % 256]) * SEGMENT, subpartition)
        except ResourceClosedError as error:
            self.error = error

    def wait_until_parked(self) -> None:
        spin_until(lambda: self._it.pool.num_parked > 0, "a writer that waits")

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), f"the writer hangs: {self._it.partition!r}"


def test_availability_is_the_pools() -> None:
    """ResultPartitionTest.testIsAvailableOrNot: not while every buffer is queued; the future tells when one is back."""
    it = Producing(1, segment=SEGMENT, max_buffers=2)
    it.partition.emit_record(bytes(SEGMENT), 0)
    pool = it.partition.buffer_pool
    before = (it.partition.is_available, it.partition.available_future().is_done)
    it.partition.emit_record(bytes(SEGMENT), 0)
    future = pool.available_future()

    found = it.views[0].next_buffer()
    assert found is not None
    is_early = (pool.is_available, future.is_done)
    found.buffer.recycle()

    assert (before, is_early, pool.is_available, future.is_done) == ((True, True), (False, False), True, True)
    assert it.partition.num_obtainable == pool.num_obtainable > 0


def test_a_writer_blocks_until_its_consumer_reads() -> None:
    """Under backpressure the pool's maximum is queued, no data is lost, and the blocked time is counted."""
    it = Producing(1, segment=SEGMENT, max_buffers=3)
    it.partition.emit_record(b"", 0)
    assert it.partition.statistics().hard_blocked_ns == 0
    writer = Writer(it, 10)
    writer.wait_until_parked()
    queued = it.partition.statistics().num_queued_buffers

    content = bytearray()
    while len(content) < 10 * SEGMENT:
        content.extend(read(it.views[0])[0])
    writer.join()

    assert queued == 3
    assert bytes(content) == b"".join(bytes([number]) * SEGMENT for number in range(10))
    assert it.partition.statistics().hard_blocked_ns > 0


class RecordingObserver:
    """Records which thread made which call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def mark_start(self) -> None:
        self.calls.append(("start", threading.current_thread().ident))

    def mark_end(self) -> None:
        self.calls.append(("end", threading.current_thread().ident))


@pytest.mark.parametrize("is_released", [False, True])
def test_an_observer_is_told_while_a_writer_waits_for_a_buffer(is_released: bool) -> None:
    """The observer is called on the writer's thread, also when the wait ends in an error."""
    it, observer = Producing(1, segment=SEGMENT, max_buffers=3), RecordingObserver()
    it.partition.observe_blocking(observer)

    writer = Writer(it, 4)
    writer.wait_until_parked()
    while_parked = list(observer.calls)
    if is_released:
        it.partition.release()
    else:
        read(it.views[0])
    writer.join()

    assert while_parked == [("start", writer.thread.ident)]
    assert observer.calls == [*while_parked, ("end", writer.thread.ident)]


def test_a_consumer_that_leaves_frees_its_blocked_producer() -> None:
    """The writer wakes, drops the rest, and finds all its consumers content."""
    it = Producing(1, segment=SEGMENT, max_buffers=3)
    writer = Writer(it, 1000)
    writer.wait_until_parked()

    it.views[0].release()
    writer.join()

    assert (writer.error, it.partition.all_data_processed.is_done) == (None, True)
    it.partition.notify_end_of_data(StopMode.DRAIN)
    it.partition.finish()


def test_one_consumer_that_leaves_does_not_touch_the_others() -> None:
    """Only the data of the leaving consumer is dropped, also within a record that spans buffers."""
    it = Producing(2, segment=SEGMENT)
    it.views[0].release()

    it.partition.emit_record(bytes(100), 0)
    it.partition.emit_record(b"kept" * 10, 1)

    assert (it.partition.statistics().num_queued_buffers, it.partition.is_released) == (3, False)
    assert read(it.views[1])[0] == b"kept" * 10


def test_what_nobody_reads_needs_no_buffer() -> None:
    """A record for a consumer that left does not block, even if every buffer is queued for others."""
    it = Producing(2, segment=SEGMENT, max_buffers=3)
    it.views[0].release()
    for _ in range(3):
        it.partition.emit_record(bytes(SEGMENT), 1)

    writer = Writer(it, 5, subpartition=0)
    writer.join()

    assert (writer.error, it.partition.buffer_pool.is_available) == (None, False)


def test_a_consumer_may_leave_while_its_record_is_written() -> None:
    """The rest of the record is dropped; the half-written builder is freed."""
    it = Producing(1, segment=SEGMENT)
    it.partition.emit_record(b"half", 0)

    it.views[0].release()
    it.partition.emit_record(bytes(100), 0)

    assert num_in_use(it.pool) == 0


def test_fail_wakes_a_blocked_writer() -> None:
    """From whichever thread; the memory is complete when the task closes."""
    it = Producing(1, segment=SEGMENT, max_buffers=2)
    writer = Writer(it, 1000)
    writer.wait_until_parked()

    it.partition.fail(ValueError("cancelled"))
    writer.join()

    assert isinstance(writer.error, ResourceClosedError)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["view", "fail", "flush"])
def test_hist_22424_ends_race_with_a_writer(how: str, tiny_switch_interval: None) -> None:
    """The writer ends and the memory is complete, whoever leaves, fails or flushes (FLINK-22424)."""
    for _ in range(40):
        it = Producing(2, segment=SEGMENT, max_buffers=4)
        writer = Writer(it, 30)

        if how == "view":
            it.views[0].release()
        elif how == "fail":
            it.partition.fail(ValueError("x"))
        else:
            while writer.thread.is_alive():
                it.partition.flush_all()
                read(it.views[0])
        writer.join()

        it.close()
