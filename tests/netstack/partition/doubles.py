"""What the tests of partitions and gates share."""

import threading

from netstack.buffer.builder import BufferBuilder, BufferConsumer
from netstack.buffer.segment import MemorySegment
from netstack.errors import ProducerFailedError
from netstack.ids import ResultPartitionID, execution_attempt_id, partition_id
from netstack.partition.pipelined import PipelinedSubpartition
from netstack.partition.view import BufferAndBacklog
from netstack.wire.messages import DataType

SEGMENT = 1024


def partition_id_of(number: int = 0) -> ResultPartitionID:
    return ResultPartitionID(partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0))


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

    def on_consumed_subpartition(self, index: int) -> None:
        self.consumed.append(index)

    def on_all_data_processed(self, index: int) -> None:
        self.processed.append(index)


class Arena:
    """Makes builders and counts the segments that came home."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_out = 0

    def recycle(self, segment: MemorySegment) -> None:
        with self._lock:
            self.num_out -= 1

    def builder(self, size: int = SEGMENT) -> BufferBuilder:
        with self._lock:
            self.num_out += 1
        return BufferBuilder(MemorySegment(memoryview(bytearray(size))), self)


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
