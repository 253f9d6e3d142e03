"""``ResultPartition``: the scenarios of Flink's own tests of partitions and record writers, under their names."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.buffer_decompressor import BufferDecompressor
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import InsufficientNetworkBuffersError, LocalProtocolError, PartitionNotFoundError
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.pipelined_approximate_subpartition import PipelinedApproximateSubpartition
from netstack.partition.pipelined_subpartition import ADD_REFUSED, PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.partition.result_partition_type import ResultPartitionType
from netstack.partition.result_subpartition import ResultSubpartition
from netstack.partition.result_subpartition_view import ResultSubpartitionView
from netstack.wire.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfPartition,
    EndOfSuperstep,
    Event,
    StopMode,
    deserialize_event,
)
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import (
    TIMEOUTABLE,
    UNALIGNED,
    Arena,
    RecordingListener,
    RecordingStateWriter,
    partition_id_of,
    recycled_sizes,
)
from tests.waiting import PATIENCE_S

SIZE = 1024


class Producing:
    """A partition with a view of each subpartition."""

    def __init__(
        self,
        num_subpartitions: int = 2,
        *,
        segment: int = SIZE,
        num_segments: int = 64,
        max_buffers: int | None = None,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        compressor: BufferCompressor | None = None,
        with_views: bool = True,
    ) -> None:
        self.network = NetworkBufferPool(num_segments, segment)
        self.pool = self.network.create_buffer_pool(
            owner="map", num_required=1, max_buffers=max_buffers, num_subpartitions=num_subpartitions
        )
        self.partition = ResultPartition(
            partition_id_of(), num_subpartitions, self.pool, "map", partition_type=partition_type, partition_index=2, compressor=compressor
        )
        self.listeners = [RecordingListener() for _ in range(num_subpartitions)]
        self.views: list[ResultSubpartitionView] = []
        if with_views:
            self.views = [self.partition.create_subpartition_view(index, listener) for index, listener in enumerate(self.listeners)]

    def subpartition(self, index: int) -> ResultSubpartition:
        return self.partition._subpartitions[index]

    def poll(self, index: int) -> int:
        """The size of the next element."""
        found = self.views[index].next_buffer()
        assert found is not None, f"nothing to poll in {self.subpartition(index)!r}"
        found.buffer.recycle()
        return found.buffer.size

    def queued(self) -> list[int]:
        return [self.subpartition(index).num_queued_buffers for index in range(self.partition.num_subpartitions)]

    def close(self) -> None:
        self.partition.check_invariants()
        self.partition.close()
        for view in self.views:
            view.release()
        self.partition.release()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"


@pytest.fixture
def it() -> Iterator[Producing]:
    producing = Producing()
    yield producing
    producing.close()


def read(view: ResultSubpartitionView) -> tuple[bytes, list[Event]]:
    content, events = bytearray(), []
    while (found := view.next_buffer()) is not None:
        if found.buffer.is_buffer:
            content.extend(found.buffer.view)
        else:
            events.append(deserialize_event(found.buffer.view))
        found.buffer.recycle()
    return bytes(content), events


# ---------------------------------------------------------------- ResultPartitionTest: adding


@pytest.mark.parametrize("end", ["finish", "release"])
def test_add_on_finished_and_released_partition(it: Producing, end: str) -> None:
    """ResultPartitionTest.testAddOnFinished/ReleasedPartition: the consumer is closed, nobody is told (rows D30, D32)."""
    if end == "finish":
        it.partition.finish()
    else:
        it.partition.release()
    arena, count = Arena(), it.listeners[0].count
    builder = arena.builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    builder.close()

    assert it.subpartition(0).add(consumer) == ADD_REFUSED
    assert (arena.num_out, it.listeners[0].count) == (0, count)


def test_add_on_partition(it: Producing) -> None:
    """ResultPartitionTest.testAddOnPipelinedPartition: the buffer stays, and the reader is told of the second."""
    it.partition.emit_record(bytes(SIZE), 0)
    it.partition.emit_record(bytes(SIZE), 0)

    assert (it.queued(), it.listeners[0].count, it.listeners[1].count) == ([2, 0], 1, 0)


def test_create_subpartition_on_failing_partition(it: Producing) -> None:
    """ResultPartitionTest.testCreateSubpartitionOnFailingPartition: not found any more."""
    manager = ResultPartitionManager()
    manager.register(it.partition)

    it.partition.fail(ValueError("boom"))

    with pytest.raises(PartitionNotFoundError):
        manager.create_subpartition_view(it.partition.partition_id, 0, RecordingListener())


def test_pool_too_small() -> None:
    """ResultPartition.setup (row D24): fewer buffers than one per subpartition and one more cannot be guaranteed."""
    network = NetworkBufferPool(2, SIZE)

    with pytest.raises(InsufficientNetworkBuffersError, match="required 3, but only 2 available"):
        network.create_buffer_pool(owner="map", num_required=3, max_buffers=8)
    network.destroy()


def test_is_available_or_not() -> None:
    """ResultPartitionTest.testIsAvailableOrNot / RecordWriterTest.testIsAvailableOrNot: availability is the pool's."""
    it = Producing(1, max_buffers=2)
    before = it.partition.available_future().is_done
    for _ in range(2):
        it.partition.emit_record(bytes(SIZE), 0)
    while_full = it.partition.available_future()
    states = [before, while_full.is_done, it.partition.is_available]

    it.poll(0)

    assert [*states, while_full.is_done, it.partition.is_available] == [True, False, False, True, True]
    it.close()


def test_idle_and_back_pressured_time() -> None:
    """ResultPartitionTest.testIdleAndBackPressuredTime: none while there are buffers; some after a wait for one."""
    it = Producing(1, segment=SIZE, num_segments=10, max_buffers=1)
    it.partition.emit_record(bytes(SIZE), 0)
    found = it.views[0].next_buffer()
    assert found is not None
    assert it.partition.statistics().hard_blocked_ns == 0
    writer = threading.Thread(target=it.partition.emit_record, args=(bytes(SIZE), 0))
    writer.start()
    while it.partition.statistics().hard_blocked_ns == 0:
        assert writer.is_alive(), "the writer waits for a buffer"

    found.buffer.recycle()
    writer.join(PATIENCE_S)

    assert (writer.is_alive(), it.poll(0)) == (False, SIZE)
    assert it.partition.statistics().hard_blocked_ns > 0
    it.close()


# ---------------------------------------------------------------- ResultPartitionTest: records over several buffers


def partial_lengths(subpartition: ResultSubpartition) -> list[int]:
    assert isinstance(subpartition, PipelinedSubpartition)
    return [consumer.partial_record_length for consumer in subpartition._buffers]


def test_emit_record_with_record_spanning_multiple_buffers(it: Producing) -> None:
    """ResultPartitionTest.testEmitRecordWithRecordSpanningMultipleBuffers: 2 queued, the second with bufferSize/3 (row A38)."""
    partial = SIZE // 3
    it.partition.emit_record(bytes(partial), 0)
    it.partition.emit_record(bytes(SIZE), 0)

    assert (it.queued(), partial_lengths(it.subpartition(0))) == ([2, 0], [0, partial])


def test_broadcast_record_with_record_spanning_multiple_buffers(it: Producing) -> None:
    """ResultPartitionTest.testBroadcastRecordWithRecordSpanningMultipleBuffers: the same in every subpartition."""
    partial = SIZE // 3
    it.partition.broadcast_record(bytes(partial))
    it.partition.broadcast_record(bytes(SIZE))

    assert (it.queued(), [partial_lengths(it.subpartition(index)) for index in range(2)]) == ([2, 2], [[0, partial]] * 2)


def test_exact_fit_asks_for_no_further_buffer(it: Producing) -> None:
    """RecordWriter.copyFromSerializerToTargetChannel (row D15): after an exact fit the pool has one more buffer."""
    before = self_free(it)
    it.partition.emit_record(bytes(SIZE), 0)
    it.partition.broadcast_record(bytes(SIZE))

    assert before - self_free(it) == 2


def self_free(it: Producing) -> int:
    return it.network.num_total - it.pool.statistics().num_used


# ---------------------------------------------------------------- ResultPartitionTest: buffer sizes


def sized(it: Producing, *sizes: int) -> None:
    for view, size in zip(it.views, sizes, strict=True):
        view.notify_new_buffer_size(size)


def test_different_buffer_size_for_subpartitions(it: Producing) -> None:
    """ResultPartitionTest.testDifferentBufferSizeForSubpartitions: each at its own size, changed at the next buffer."""
    sized(it, 10, 6)
    for index in range(2):
        it.partition.emit_record(bytes(2), index)
        it.partition.emit_record(bytes(10), index)
    assert [it.poll(0), it.poll(0), it.poll(1), it.poll(1)] == [10, 2, 6, 6]

    sized(it, 13, 5)
    it.partition.emit_record(bytes(12), 0)
    it.partition.emit_record(bytes(8), 0)
    it.partition.emit_record(bytes(2), 1)
    it.partition.emit_record(bytes(7), 1)

    assert [it.poll(0), it.poll(0), it.poll(1), it.poll(1)] == [8, 12, 5, 4]


def test_buffer_size_greater_or_equal_to_first_record(it: Producing) -> None:
    """ResultPartitionTest.testBufferSizeGreaterOrEqualToFirstRecord: what starts a buffer fits it."""
    sized(it, 10, 7)
    it.partition.emit_record(bytes(12), 0)
    it.partition.emit_record(bytes(111), 1)

    assert [it.poll(0), it.poll(1)] == [12, 111]


def test_dynamic_buffer_size_for_broadcast(it: Producing) -> None:
    """ResultPartitionTest.testDynamicBufferSizeForBroadcast: the smallest wish of all."""
    sized(it, 6, 10)
    it.partition.broadcast_record(bytes(6))
    assert [it.poll(0), it.poll(1)] == [6, 6]

    sized(it, 4, 12)
    it.partition.broadcast_record(bytes(3))
    it.partition.broadcast_record(bytes(7))
    assert [it.poll(index) for index in (0, 0, 1, 1)] == [4, 6, 4, 6]

    sized(it, 8, 5)
    it.partition.broadcast_record(bytes(3))
    assert [it.poll(0), it.poll(1)] == [3, 3]


def test_buffer_size_greater_or_equal_to_first_broadcast_record(it: Producing) -> None:
    """ResultPartitionTest.testBufferSizeGreaterOrEqualToFirstBroadcastRecord: it fits."""
    sized(it, 6, 10)
    it.partition.broadcast_record(bytes(31))

    assert [it.poll(0), it.poll(1)] == [31, 31]


def test_buffer_size_not_changed(it: Producing) -> None:
    """ResultPartitionTest.testBufferSizeNotChanged: more than a segment is a segment; 0 says nothing."""
    sized(it, SIZE + 1, 0)
    it.partition.emit_record(bytes(SIZE), 0)
    it.partition.emit_record(bytes(SIZE), 1)
    it.partition.broadcast_record(bytes(SIZE))

    assert [it.poll(0), it.poll(1), it.poll(0), it.poll(1)] == [SIZE] * 4


def test_a_buffer_size_of_zero_says_nothing(it: Producing) -> None:
    """BufferWritingResultPartition.resizeBuffer: only a positive size does; in a broadcast the others' wishes count."""
    sized(it, 0, 0)
    it.partition.emit_record(bytes(10), 0)
    it.partition.emit_record(bytes(10), 0)
    sized(it, 5, 0)
    for _ in range(2):
        it.partition.broadcast_record(bytes(4))

    assert [it.poll(index) for index in (0, 0, 0, 1, 1)] == [20, 5, 3, 5, 3]


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_emit_record_expands_last_buffer(is_broadcast: bool) -> None:
    """ResultPartitionTest.testEmitRecordExpandsLastBuffer: one buffer in the pool; a small wish makes no writer wait."""
    it = Producing(1, segment=20, num_segments=1)
    it.views[0].notify_new_buffer_size(1)

    for _ in range(2):
        if is_broadcast:
            it.partition.broadcast_record(bytes(10))
        else:
            it.partition.emit_record(bytes(10), 0)

    assert (it.poll(0), it.queued()) == (20, [0])
    it.close()


def test_a_small_buffer_stays_small_while_there_are_others(it: Producing) -> None:
    """BufferWritingResultPartition.append: only an empty pool makes a buffer grow again."""
    sized(it, 1, 1)
    for _ in range(3):
        it.partition.emit_record(bytes(10), 0)

    assert [it.poll(0) for _ in range(3)] == [10, 10, 10]


# ---------------------------------------------------------------- ResultPartitionTest: end of data, numbers


def test_wait_for_all_record_processed(it: Producing) -> None:
    """ResultPartitionTest.testWaitForAllRecordProcessed: one EndOfData per subpartition; done with the last acknowledgement."""
    it.partition.notify_end_of_data(StopMode.DRAIN)
    assert [read(view) for view in it.views] == [(b"", [EndOfData(StopMode.DRAIN)])] * 2
    done = []
    for view in it.views:
        done.append(it.partition.all_data_processed.is_done)
        view.acknowledge_all_data_processed()

    assert [*done, it.partition.all_data_processed.is_done] == [False, False, True]


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_result_partition_bytes_counter(it: Producing, is_broadcast: bool) -> None:
    """ResultPartitionTest.testResultPartitionBytesCounterForUnicast / ForBroadcast: bytes of each subpartition, and their sum."""
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


@pytest.mark.parametrize("is_failure", [True, False])
def test_release_all_at_failure(it: Producing, is_failure: bool) -> None:
    """ResultPartitionTest, releasePartition: every subpartition is released and its memory back, even with open builders (D38)."""
    it.partition.emit_record(b"abc", 0)
    it.partition.emit_record(bytes(3 * SIZE), 1)

    if is_failure:
        it.partition.fail(ValueError("boom"))
    else:
        it.partition.release()
    it.partition.close()

    assert [view.is_released for view in it.views] == [True, True]
    assert ("boom" in str(it.views[0].failure_cause)) is is_failure
    assert it.network.num_available == it.network.num_total


def test_blocking_partition_is_consumable_multiple_times(tmp_path: Path) -> None:
    """ResultPartitionTest.testBlockingPartitionIsConsumableMultipleTimesIfNotReleasedOnConsumption (row A10)."""
    network, manager = NetworkBufferPool(16, SIZE), ResultPartitionManager()
    pool = network.create_buffer_pool(owner="map", num_required=2, max_buffers=8)
    partition = BoundedBlockingResultPartition(partition_id_of(), 1, pool, "map", tmp_path)
    manager.register(partition)
    partition.finish()
    partition.close()

    for _ in range(2):
        manager.create_subpartition_view(partition.partition_id, 0, RecordingListener()).release()
        assert (len(manager), partition.is_released) == (1, False)

    partition.release()
    network.destroy()
    assert (len(manager), list(tmp_path.iterdir())) == (0, [])


def test_flush_bounded_blocking_result_partition(tmp_path: Path) -> None:
    """ResultPartitionTest.testFlushBoundedBlockingResultPartition: each flush ends a buffer; 4 and 2 of them, then the end."""
    network, record = NetworkBufferPool(16, SIZE), b"\0\0\4\0"
    pool = network.create_buffer_pool(owner="map", num_required=3, max_buffers=16)
    partition = BoundedBlockingResultPartition(partition_id_of(), 2, pool, "map", tmp_path)

    partition.emit_record(record, 0)
    partition.flush(0)
    partition.emit_record(record, 0)
    partition.broadcast_record(record)
    partition.flush_all()
    partition.broadcast_record(record)
    partition.finish()
    partition.close()

    for index, expected in enumerate((4, 2)):
        view = partition.create_subpartition_view(index, RecordingListener())
        found = []
        while (one := view.next_buffer()) is not None:
            found.append(bytes(one.buffer.view))
            one.buffer.recycle()
        assert found == [record] * expected + [b"\0\0\0\0"]
        view.release()
    partition.release()
    network.destroy()
    assert network.num_available == network.num_total


# ---------------------------------------------------------------- RecordWriterTest, BroadcastRecordWriterTest


def test_broadcast_event_no_records() -> None:
    """RecordWriterTest.testBroadcastEventNoRecords: 1 queued per channel, no memory taken."""
    it = Producing(4)
    used = it.pool.statistics().num_used

    it.partition.broadcast_event(CancelCheckpointMarker(7))

    assert (it.queued(), it.pool.statistics().num_used) == ([1] * 4, used)
    assert [read(view)[1] for view in it.views] == [[CancelCheckpointMarker(7)]] * 4
    it.close()


def test_broadcast_event_mixed_records() -> None:
    """RecordWriterTest.testBroadcastEventMixedRecords: partial buffers are finished first; the event comes behind them."""
    it = Producing(4, segment=32)
    it.partition.emit_record(bytes(32), 0)
    it.partition.emit_record(bytes(16), 1)
    it.partition.emit_record(bytes(8), 1)
    it.partition.emit_record(bytes(32 - 4 + 8), 2)

    it.partition.broadcast_event(EndOfSuperstep())

    assert it.queued() == [2, 2, 3, 1]
    assert [read(view) for view in it.views] == [(bytes(size), [EndOfSuperstep()]) for size in (32, 24, 36, 0)]
    it.close()


def test_broadcast_event_buffer_reference_counting(it: Producing) -> None:
    """RecordWriterTest.testBroadcastEventBufferReferenceCounting: each copy is recycled on its own."""
    it.partition.broadcast_event(EndOfSuperstep())
    found = [view.next_buffer() for view in it.views]
    first, second = (one.buffer for one in found if one is not None)

    first.recycle()

    assert deserialize_event(second.view) == EndOfSuperstep()
    second.recycle()


@pytest.mark.parametrize("is_event", [True, False])
def test_broadcast_buffer_independence(it: Producing, is_event: bool) -> None:
    """RecordWriterTest.testBroadcastEventBufferIndependence / testBroadcastEmitBufferIndependence: readers do not move each other."""
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
    used = it.pool.statistics().num_used

    it.partition.broadcast_record(b"record")
    while_open = it.pool.statistics().num_used - used
    it.partition.broadcast_event(EndOfSuperstep())
    in_use = []
    for view in it.views:
        in_use.append(it.pool.statistics().num_used - used)
        assert read(view) == (b"record", [EndOfSuperstep()])

    assert (while_open, in_use, it.pool.statistics().num_used - used) == (1, [1] * 8, 0)
    it.close()


def test_broadcast_mixed_random_emit_record() -> None:
    """BroadcastRecordWriterTest.testBroadcastMixedRandomEmitRecord: 8 channels, 8 records: 16 buffers, 9 queued and 9 records each."""
    it = Producing(8, segment=32)
    used, record = it.pool.statistics().num_used, b"0123"

    for index in range(8):
        it.partition.emit_record(record, index)
        it.partition.broadcast_record(record)

    assert (it.pool.statistics().num_used - used, it.queued()) == (16, [9] * 8)
    it.partition.check_invariants()
    assert [read(view)[0] for view in it.views] == [record * 9] * 8
    it.close()


def test_random_emit_and_buffer_recycling() -> None:
    """BroadcastRecordWriterTest.testRandomEmitAndBufferRecycling: the shared buffer is finished before a single one is opened."""
    it = Producing(2, segment=8, num_segments=6)
    for _ in range(5):
        it.partition.broadcast_record(b"12")
        it.partition.emit_record(b"34", 1)
        it.partition.broadcast_record(b"56")
        assert [read(view)[0] for view in it.views] == [b"1256", b"123456"]
    it.close()


def test_broadcast_skips_consumers_that_have_gone() -> None:
    """A consumer that left costs nothing; when all have left, records go nowhere and no memory is taken."""
    it = Producing(3)
    it.views[0].release()
    it.partition.broadcast_record(b"abc")
    assert [read(view)[0] for view in it.views] == [b"", b"abc", b"abc"]

    it.views[1].release()
    it.views[2].release()
    it.partition.broadcast_event(EndOfSuperstep())
    used = it.pool.statistics().num_used
    it.partition.broadcast_record(bytes(5 * SIZE))

    assert it.pool.statistics().num_used == used
    it.close()


def test_check_in_produce_state(it: Producing) -> None:
    """ResultPartition.checkInProduceState (row F14): nothing is written behind the end."""
    it.partition.finish()

    with pytest.raises(LocalProtocolError, match="is finished and takes nothing more"):
        it.partition.broadcast_record(b"x")
    with pytest.raises(LocalProtocolError, match="is finished and takes nothing more"):
        it.partition.broadcast_event(EndOfSuperstep())


# ---------------------------------------------------------------- checkpoints


def test_unaligned_barriers_overtake_and_keep_what_is_in_flight(it: Producing) -> None:
    """PipelinedResultPartition: the open buffers are finished, every barrier goes first, and the data belongs to the checkpoint."""
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state, 3)
    it.partition.emit_record(b"abc", 0)
    it.partition.broadcast_record(b"de")

    it.partition.broadcast_event(CheckpointBarrier(4, 0, UNALIGNED), is_priority=True)

    assert state.output == [(4, (3, 0), -1, [3, 2]), (4, (3, 1), -1, [2])]
    assert [(it.poll(0), it.poll(0), it.poll(0)), (it.poll(1), it.poll(1))] == [(34, 3, 2), (34, 2)]


@pytest.mark.parametrize("end", ["timeout", "abort"])
def test_barriers_of_every_subpartition_time_out_or_are_aborted(it: Producing, end: str) -> None:
    """BufferWritingResultPartition.alignedBarrierTimeout / abortCheckpoint: the one that was consumed stays what it was."""
    state = RecordingStateWriter()
    it.partition.set_channel_state_writer(state)
    it.partition.broadcast_record(b"de")
    it.partition.broadcast_event(CheckpointBarrier(4, 0, TIMEOUTABLE))
    it.poll(0)
    it.poll(0)

    if end == "timeout":
        it.partition.aligned_barrier_timeout(4)
    else:
        it.partition.abort_checkpoint(4, ValueError("declined"))

    results = [(data.is_done, data.error is None, recycled_sizes(data.take())) for _, data in state.futures]
    assert results == [(True, True, []), (True, True, [2]) if end == "timeout" else (True, False, [])]
    assert (it.poll(1), it.poll(1)) == ((34, 2) if end == "timeout" else (2, 34))


# ---------------------------------------------------------------- kinds


def test_approximate_partitions_wait_for_their_next_consumer() -> None:
    """ResultPartitionType.PIPELINED_APPROXIMATE: no consumer's end releases it."""
    it = Producing(1, partition_type=ResultPartitionType.PIPELINED_APPROXIMATE)
    assert isinstance(it.subpartition(0), PipelinedApproximateSubpartition)
    it.partition.emit_record(b"abc", 0)
    it.views[0].release()
    it.views = [it.partition.create_subpartition_view(0, RecordingListener())]

    assert read(it.views[0])[0] == b"abc"
    it.partition.finish()
    it.partition.close()
    assert it.partition.is_released is False
    it.close()


@pytest.mark.parametrize("is_broadcast", [False, True])
def test_a_consumer_that_fails_while_a_small_buffer_is_full_tears_no_record(is_broadcast: bool) -> None:
    """Debloating and PIPELINED_APPROXIMATE: between the two parts of a record a reader reads the first one, and another one follows it."""
    it = Producing(1, segment=40, num_segments=1, partition_type=ResultPartitionType.PIPELINED_APPROXIMATE)
    it.views[0].notify_new_buffer_size(15)
    emit = it.partition.broadcast_record if is_broadcast else partial(it.partition.emit_record, subpartition=0)
    emit(b"a" * 10)
    make_room, found = it.partition._make_room, list[bytes]()

    def read_and_replace(builder: BufferBuilder, num_missing: int) -> bool:
        it.partition.flush(0)
        found.append(read(it.views[0])[0])
        it.views = [it.partition.create_subpartition_view(0, RecordingListener())]
        is_larger = make_room(builder, num_missing)
        if not is_larger:
            builder.close()
            it.partition.flush(0)
            read(it.views[0])  # its last reference: there is a segment for the rest
        return is_larger

    it.partition._make_room = read_and_replace  # type: ignore[method-assign]  # what another thread may do meanwhile
    emit(b"b" * 10)
    it.partition._make_room = make_room  # type: ignore[method-assign]
    emit(b"c" * 2)
    it.partition.flush(0)

    assert found == [b"a" * 10 + b"b" * 5]
    assert read(it.views[0])[0] == b"cc"
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
    it.close()


def test_a_range_of_subpartitions_is_one_view() -> None:
    """ResultPartition.createSubpartitionView of a range: read one after the other, as records may span buffers."""
    it, listener = Producing(3, with_views=False), RecordingListener()
    for index in range(3):
        it.partition.emit_record(bytes(SIZE + 1), index)
    view = it.partition.create_subpartition_view(1, listener, 2)
    it.views = [view, it.partition.create_subpartition_view(0, listener)]

    it.partition.finish()

    assert read(view) == (bytes(2 * SIZE + 2), [EndOfPartition()] * 2)
    it.close()


def test_a_range_that_cannot_be_read_is_refused_as_a_whole() -> None:
    """Unlike Flink, whose ResultPartition.createSubpartitionView consumes what it had opened: nothing of it is touched."""
    it = Producing(3, with_views=False)
    taken = it.partition.create_subpartition_view(2, RecordingListener())
    for index in range(3):
        it.partition.emit_record(bytes([index]) * (SIZE + 1), index)

    with pytest.raises(LocalProtocolError, match="2 to 3 are none of them"):
        it.partition.create_subpartition_view(2, RecordingListener(), 3)
    with pytest.raises(LocalProtocolError, match="can only be consumed once"):
        it.partition.create_subpartition_view(0, RecordingListener(), 2)
    it.partition.check_invariants()
    listeners = [RecordingListener(), RecordingListener()]
    it.views = [*(it.partition.create_subpartition_view(index, listener) for index, listener in enumerate(listeners)), taken]
    it.partition.finish()

    assert [listener.count for listener in listeners] == [2, 2], "of what was there already, and of the end"
    assert [read(view) for view in it.views] == [(bytes([index]) * (SIZE + 1), [EndOfPartition()]) for index in range(3)]
    it.close()


def test_a_refused_range_that_is_told_late_disturbs_nobody() -> None:
    """A producer that was about to tell the reader of a range: the range is no more, and the next reader was told by itself."""
    it = Producing(2, with_views=False)
    taken = it.partition.create_subpartition_view(1, RecordingListener())
    refused = RecordingListener()
    it.partition.emit_record(bytes(SIZE + 1), 0)

    with pytest.raises(LocalProtocolError, match="can only be consumed once"):
        it.partition.create_subpartition_view(0, refused, 1)
    it.partition.fail(RuntimeError("late"))

    assert refused.count == 0
    it.views = [taken]
    it.close()


def test_a_range_with_a_consumed_subpartition_takes_nothing_of_the_others() -> None:
    """The consumer of one has gone: whoever asks for it and others is refused, and the others can still be read."""
    it = Producing(3, with_views=False)
    it.partition.create_subpartition_view(1, RecordingListener()).release()

    with pytest.raises(PartitionNotFoundError, match="its subpartition 1 was consumed"):
        it.partition.create_subpartition_view(0, RecordingListener(), 2)
    it.views = [it.partition.create_subpartition_view(index, RecordingListener()) for index in (0, 2)]
    it.partition.finish()

    assert [read(view) for view in it.views] == [(b"", [EndOfPartition()])] * 2
    assert not it.partition.is_released
    it.close()


def test_partitions_need_a_subpartition() -> None:
    """ResultPartition: none makes no sense."""
    it = Producing(1)
    with pytest.raises(ValueError, match="a partition of 0 subpartitions"):
        ResultPartition(partition_id_of(), 0, it.pool, "map")
    it.close()


def test_the_end_of_a_partition_is_one_event_per_subpartition(it: Producing) -> None:
    """ResultPartition.finish (row D34): always told, also with a shared builder open."""
    it.partition.broadcast_record(b"abc")
    it.partition.finish()

    assert [listener.count for listener in it.listeners] == [1, 1]
    assert [read(view) for view in it.views] == [(b"abc", [EndOfPartition()])] * 2


def test_events_are_event_buffers(it: Producing) -> None:
    """BufferConsumer of an event: it is marked by its type, and needs no credit (2.B)."""
    it.partition.broadcast_event(EndOfSuperstep())
    consumer = BufferConsumer.of_event(b"\0\0\0\2", DataType.EVENT_BUFFER)

    assert (it.views[0].availability(False), consumer.is_finished) == ((True, 0), True)
    consumer.close()
