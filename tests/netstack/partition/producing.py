"""A partition with its readers, for tests that know the entries of the rooms alone."""

from collections.abc import Sequence
from typing import Any

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.ids import ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.channel_state import InFlightData, InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.wire.events import Alignment, CheckpointOptions, Event, deserialize_event
from tests.netstack.rigs import Ending

SEGMENT = 1024
UNALIGNED = CheckpointOptions(alignment=Alignment.UNALIGNED)
TIMEOUTABLE = CheckpointOptions(alignment=Alignment.ALIGNED, aligned_timeout_ms=100)


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


class RecordingStateWriter:
    """Keeps the sizes of the buffers that it gets, and recycles them."""

    def __init__(self) -> None:
        self.output: list[tuple[int, ResultSubpartitionInfo, list[int]]] = []
        self.futures: list[tuple[int, InFlightData]] = []

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        raise AssertionError("a producer has no input")

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        if data.end.is_done:
            self.output.append((checkpoint_id, subpartition, recycled_sizes(data.take())))
        else:
            self.futures.append((checkpoint_id, data))


def recycled_sizes(buffers: Sequence[NetworkBuffer]) -> list[int]:
    sizes = [buffer.size for buffer in buffers]
    for buffer in buffers:
        buffer.recycle()
    return sizes


def read(view: ResultSubpartitionView) -> tuple[bytes, list[Event]]:
    """Read everything that can be polled, committed or flushed or not; the buffers are recycled."""
    content, events = bytearray(), []
    while (found := view.next_buffer()) is not None:
        if found.buffer.is_buffer:
            content.extend(found.buffer.view)
        else:
            events.append(deserialize_event(found.buffer.view))
        found.buffer.recycle()
    return bytes(content), events


def sizes(view: ResultSubpartitionView) -> list[int]:
    """Return the sizes of all that can be polled; the buffers are recycled."""
    found_sizes = []
    while (found := view.next_buffer()) is not None:
        found_sizes.append(found.buffer.size)
        found.buffer.recycle()
    return found_sizes


class Producing(Ending):
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
        with_views: bool = True,
        **partition_options: Any,
    ) -> None:
        super().__init__()
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
            **partition_options,
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

    def poll(self, index: int) -> int:
        """Return the size of the next element."""
        found = self.views[index].next_buffer()
        assert found is not None, f"nothing to poll in {self.partition!r}"
        found.buffer.recycle()
        return found.buffer.size

    def queued(self) -> list[int]:
        return [subpartition.num_queued_buffers for subpartition in self.partition.subpartitions]

    def give_back(self) -> None:
        """Close the partition, release all views, and assert that the memory is complete."""
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
