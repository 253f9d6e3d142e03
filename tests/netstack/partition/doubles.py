"""Doubles that the tests of partitions and gates share."""

import threading
from collections.abc import Callable

from netstack.buffer.buffer_builder import BufferBuilder, BufferConsumer
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment
from netstack.errors import ProducerFailedError
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import BufferAndBacklog, PipelinedSubpartitionView
from netstack.wire.events import CheckpointBarrier, CheckpointOptions, event_data_type, serialize_event
from netstack.wire.messages import DataType
from tests.netstack.gate.manual_timers import Due
from tests.netstack.partition.producing import (
    SEGMENT,
    TIMEOUTABLE,
    UNALIGNED,
    Producing,
    RecordingListener,
    RecordingStateWriter,
    partition_id_of,
    read,
    recycled_sizes,
    sizes,
)
from tests.netstack.rigs import Ending

# What tests of the inside take from here as well.
__all__ = [
    "SEGMENT",
    "TIMEOUTABLE",
    "UNALIGNED",
    "Producing",
    "RecordingListener",
    "RecordingStateWriter",
    "partition_id_of",
    "read",
    "recycled_sizes",
    "sizes",
]


class RecordingParent(ResultPartition):
    """A partition that only remembers."""

    def __init__(self) -> None:
        self._failure_cause: ProducerFailedError | None = None
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

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Due:
        entry = (self.now_ms + delay_s * 1000, call)
        self._due.append(entry)
        return Due(self._due, entry)

    def advance(self, duration_ms: float) -> None:
        self.now_ms += duration_ms
        due = [entry for entry in self._due if entry[0] <= self.now_ms]
        for entry in due:
            self._due.remove(entry)
        for _, call in due:
            call()


class Arena(BufferRecycler):
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


def barrier(
    checkpoint_id: int = 1, options: CheckpointOptions | None = None, *, has_priority: bool = False
) -> BufferConsumer:
    """Return an aligned barrier that blocks, unless ``options`` say something else."""
    event = CheckpointBarrier(checkpoint_id, 0, options or CheckpointOptions())
    return BufferConsumer.of_event(serialize_event(event), event_data_type(event, has_priority=has_priority))


def unaligned_barrier(checkpoint_id: int = 1) -> BufferConsumer:
    return barrier(checkpoint_id, UNALIGNED, has_priority=True)


def event(content: bytes = b"\0\0\0\7") -> BufferConsumer:
    return BufferConsumer.of_event(content, DataType.EVENT_BUFFER)


def drain(subpartition: PipelinedSubpartition) -> list[BufferAndBacklog]:
    """Poll while something is available; every buffer is recycled."""
    found = []
    while subpartition.availability(True)[0]:
        one = subpartition.poll()
        if one is None:
            break
        one.buffer.recycle()
        found.append(one)
    return found


class Reading(Ending):
    """A subpartition with its view, and builders that feed it."""

    def __init__(self, *, sends_empty_buffers: bool = False) -> None:
        super().__init__()
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

    def give_back(self) -> None:
        self.subpartition.check_invariants()
        self.view.release()
        for builder in self.builders:
            builder.close()
        assert self.arena.num_out == 0, "a segment did not come back"


def next_one(it: Reading) -> tuple[int, bool, int, bool]:
    """Return what ``assertNextBuffer`` of Flink asserts: size, data available, backlog, event available."""
    found = it.poll()
    is_available, backlog = it.view.availability(True)
    assert (found.next_data_type is not DataType.NONE) == is_available
    assert found.next_data_type.is_event == it.view.availability(False)[0]
    assert found.backlog == backlog
    return found.buffer.size, is_available, found.backlog, found.next_data_type.is_event


def partial_lengths(it: Producing, index: int) -> list[int]:
    """Return how many of the first bytes of each queued buffer belong to a record that began before it."""
    subpartition = it.partition.subpartitions[index]
    assert isinstance(subpartition, PipelinedSubpartition)
    return [consumer.partial_record_length for consumer in subpartition._buffers]
