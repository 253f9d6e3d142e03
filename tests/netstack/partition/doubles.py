"""What the tests of partitions and gates share."""

import threading
from collections.abc import Callable, Sequence

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ProducerFailedError
from netstack.ids import ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.partition.channel_state import InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.in_flight_data import InFlightData
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.pipelined_subpartition_view import PipelinedSubpartitionView
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_type import ResultPartitionType
from netstack.partition.result_subpartition import ResultSubpartition
from netstack.partition.result_subpartition_view import BufferAndBacklog, ResultSubpartitionView
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    Event,
    deserialize_event,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import DataType

SEGMENT = 1024


def partition_id_of(number: int = 0) -> ResultPartitionID:
    return ResultPartitionID(
        intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
    )


class RecordingListener:
    """Counts how often it was told."""

    def __init__(self) -> None:
        self.count = 0
        self.priority_sequence_numbers: list[int] = []

    def notify_data_available(self) -> None:
        self.count += 1

    def notify_priority_event(self, sequence_number: int) -> None:
        self.priority_sequence_numbers.append(sequence_number)


class RecordingParent:
    """A partition that only remembers."""

    def __init__(self) -> None:
        self.failure_cause: ProducerFailedError | None = None
        self.consumed: list[int] = []
        self.processed: list[int] = []

    def on_consumed_subpartition(self, index: int, *, has_read_all: bool) -> None:
        self.consumed.append(index)

    def on_all_data_processed(self, index: int) -> None:
        self.processed.append(index)


class ManualTimers:
    """Calls when a test says that it is time."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._due)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        entry = (self.now_ms + delay_ms, call)
        self._due.append(entry)

        def cancel() -> None:
            if entry in self._due:
                self._due.remove(entry)

        return cancel

    def advance(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        due = [entry for entry in self._due if entry[0] <= self.now_ms]
        for entry in due:
            self._due.remove(entry)
        for _, call in due:
            call()


class Arena:
    """Makes builders and counts the segments that came home."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_out = 0
        self.on_recycle: Callable[[], object] | None = None

    def recycle(self, segment: MemorySegment) -> None:
        with self._lock:
            self.num_out -= 1
        if self.on_recycle is not None:
            self.on_recycle()

    def builder(self, size: int = SEGMENT) -> BufferBuilder:
        with self._lock:
            self.num_out += 1
        return BufferBuilder(MemorySegment(memoryview(bytearray(size))), self)


class RecordingStateWriter:
    """Keeps the sizes of what it gets, and recycles it."""

    def __init__(self) -> None:
        self.output: list[tuple[int, ResultSubpartitionInfo, int, list[int]]] = []
        self.futures: list[tuple[int, InFlightData]] = []

    def add_input_data(
        self,
        checkpoint_id: int,
        channel: InputChannelInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        raise AssertionError("a producer has no input")

    def add_output_data(
        self,
        checkpoint_id: int,
        subpartition: ResultSubpartitionInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        self.output.append((checkpoint_id, subpartition, start_sequence_number, recycled_sizes(buffers)))

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, data: InFlightData
    ) -> None:
        self.futures.append((checkpoint_id, data))


def recycled_sizes(buffers: Sequence[NetworkBuffer]) -> list[int]:
    sizes = [buffer.size for buffer in buffers]
    for buffer in buffers:
        buffer.recycle()
    return sizes


UNALIGNED = CheckpointOptions(alignment=Alignment.UNALIGNED)
TIMEOUTABLE = CheckpointOptions(alignment=Alignment.ALIGNED, aligned_timeout_ms=100)


def barrier(
    checkpoint_id: int = 1, options: CheckpointOptions | None = None, *, has_priority: bool = False
) -> BufferConsumer:
    """An aligned barrier that blocks, unless ``options`` say something else."""
    event = CheckpointBarrier(checkpoint_id, 0, options or CheckpointOptions())
    return BufferConsumer.of_event(serialize_event(event), event_data_type(event, has_priority=has_priority))


def unaligned_barrier(checkpoint_id: int = 1) -> BufferConsumer:
    return barrier(checkpoint_id, UNALIGNED, has_priority=True)


def event(content: bytes = b"\0\0\0\7") -> BufferConsumer:
    return BufferConsumer.of_event(content, DataType.EVENT_BUFFER)


def drain(subpartition: PipelinedSubpartition) -> list[BufferAndBacklog]:
    """Poll while something is available; every buffer is recycled."""
    found = []
    while subpartition.has_data(1):
        one = subpartition.poll()
        if one is None:
            break
        one.buffer.recycle()
        found.append(one)
    return found


class Reading:
    """A subpartition with its view, and builders that feed it."""

    def __init__(self, *, sends_empty_buffers: bool = False) -> None:
        self.parent = RecordingParent()
        self.subpartition = PipelinedSubpartition(
            3, self.parent, sends_empty_buffers=sends_empty_buffers, partition_index=7
        )
        self.state = RecordingStateWriter()
        self.subpartition.channel_state = self.state
        self.listener = RecordingListener()
        self.arena = Arena()
        view = self.subpartition.create_read_view(self.listener)
        assert view is not None
        self.view: PipelinedSubpartitionView = view
        self.builders: list[BufferBuilder] = []

    def add(self, num_bytes: int = 0, *, is_finished: bool = True) -> BufferBuilder:
        """Append a data buffer; it is finished after its consumer was made, as a writer does it."""
        builder = self.arena.builder()
        consumer = builder.create_buffer_consumer()
        builder.append_and_commit(bytes(num_bytes))
        if is_finished:
            builder.finish()
        self.builders.append(builder)
        self.subpartition.add(consumer)
        return builder

    def poll(self) -> BufferAndBacklog:
        found = self.view.next_buffer()
        assert found is not None, f"nothing to poll in {self.subpartition!r}"
        found.buffer.recycle()
        self.subpartition.check_invariants()
        return found

    def close(self) -> None:
        self.view.release()
        for builder in self.builders:
            builder.close()
        assert self.arena.num_out == 0, "a segment did not come back"


def next_one(it: Reading) -> tuple[int, bool, int, bool]:
    """What ``assertNextBuffer`` of Flink's test asserts: size, data available, backlog, event available."""
    found = it.poll()
    is_available, backlog = it.view.availability(True)
    assert (found.next_data_type is not DataType.NONE) == is_available
    assert found.next_data_type.is_event == it.view.availability(False)[0]
    assert found.backlog == backlog
    return found.buffer.size, is_available, found.backlog, found.next_data_type.is_event


def read(view: ResultSubpartitionView) -> tuple[bytes, list[Event]]:
    """Everything that can be polled, committed or flushed or not; the buffers are recycled."""
    content, events = bytearray(), []
    while (found := view.next_buffer()) is not None:
        if found.buffer.is_buffer:
            content.extend(found.buffer.view)
        else:
            events.append(deserialize_event(found.buffer.view))
        found.buffer.recycle()
    return bytes(content), events


def sizes(view: ResultSubpartitionView) -> list[int]:
    """The sizes of all that can be polled; the buffers are recycled."""
    found_sizes = []
    while (found := view.next_buffer()) is not None:
        found_sizes.append(found.buffer.size)
        found.buffer.recycle()
    return found_sizes


class Producing:
    """A partition with a view of each subpartition."""

    def __init__(
        self,
        num_subpartitions: int = 2,
        *,
        segment: int = SEGMENT,
        num_segments: int = 64,
        max_buffers: int | None = None,
        max_per_channel: int | None = None,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        compressor: BufferCompressor | None = None,
        with_views: bool = True,
    ) -> None:
        self.network = NetworkBufferPool(num_segments, segment)
        self.pool = self.network.create_buffer_pool(
            owner="map (1/2)",
            num_required=1,
            max_buffers=max_buffers,
            num_subpartitions=num_subpartitions,
            max_buffers_per_channel=max_per_channel,
        )
        self.partition = ResultPartition(
            partition_id_of(),
            num_subpartitions,
            self.pool,
            "map (1/2)",
            partition_type=partition_type,
            partition_index=2,
            compressor=compressor,
        )
        self.listeners = [RecordingListener() for _ in range(num_subpartitions)]
        self.views: list[ResultSubpartitionView] = []
        if with_views:
            self.views = [
                self.partition.create_subpartition_view(index, listener)
                for index, listener in enumerate(self.listeners)
            ]

    def warm_up(self) -> None:
        """Let the pool hold its segments, free."""
        self.pool.recycle_run([self.pool.request_segment_blocking() for _ in range(self.pool.num_buffers)], -1)

    def subpartition(self, index: int) -> ResultSubpartition:
        return self.partition._subpartitions[index]

    def poll(self, index: int) -> int:
        """The size of the next element."""
        found = self.views[index].next_buffer()
        assert found is not None, f"nothing to poll in {self.subpartition(index)!r}"
        found.buffer.recycle()
        return found.buffer.size

    def partial_lengths(self, index: int) -> list[int]:
        """How many of the first bytes of each queued buffer belong to a record that began before it."""
        subpartition = self.subpartition(index)
        assert isinstance(subpartition, PipelinedSubpartition)
        return [consumer.partial_record_length for consumer in subpartition._buffers]

    def queued(self) -> list[int]:
        return [self.subpartition(index).num_queued_buffers for index in range(self.partition.num_subpartitions)]

    def close(self) -> None:
        """Whatever a test did: after close and release of all views the memory is complete."""
        self.partition.check_invariants()
        self.partition.close()
        for view in self.views:
            view.release()
        if self.partition.partition_type.is_reconsumable:
            self.partition.release()
        assert self.partition.is_released
        self.network.check_invariants()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"
