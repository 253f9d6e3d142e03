"""Views that a test scripts, and functions that stop and start the socket of a server."""

from collections import deque

from netstack.buffer.network_buffer import BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import ProducerFailedError
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.partition.result_subpartition import BufferAndBacklog, ResultSubpartitionView
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.wire.messages import DataType, PartitionRequest
from tests.netstack.handlers.server_side import SEGMENT, ServerSide, partition_id_of, receiver_of

DATA = DataType.DATA_BUFFER
EVENT = DataType.EVENT_BUFFER
BARRIER = DataType.ALIGNED_CHECKPOINT_BARRIER
NONE = DataType.NONE
NUM_BLOCKING_BYTES = 2 * SEGMENT + 1


class ScriptedView(ResultSubpartitionView, BufferRecycler):
    """Holds its elements, blocks after a barrier, remembers its orders and the buffers that are out."""

    failure_cause: ProducerFailedError | None = None
    is_released = False

    def __init__(self, *elements: DataType, sequence_number: int = 0, subpartitions: tuple[int, ...] = ()) -> None:
        self.elements = deque(elements)
        self.subpartitions = deque(subpartitions)
        self.orders: list[object] = []
        self.is_blocked = False
        self.num_released = 0
        self.sends_empty_buffers = False
        self.num_out = 0
        self._sequence_number = sequence_number

    def recycle(self, segment: MemorySegment) -> None:
        self.num_out -= 1

    def _backlog(self) -> int:
        return 0 if self.is_blocked else sum(each.is_buffer for each in self.elements)

    @property
    def backlog(self) -> int:
        return self._backlog()

    @property
    def num_queued_buffers(self) -> int:
        return len(self.elements)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:
        is_available = (
            bool(self.elements) and not self.is_blocked and (is_credit_available or self.elements[0].is_event)
        )
        return is_available, self._backlog()

    def peek_next_subpartition(self) -> int:
        return self.subpartitions[0]

    def next_buffer(self) -> BufferAndBacklog | None:
        if self.is_blocked or not self.elements:
            return None
        kind = self.elements.popleft()
        if self.subpartitions:
            self.subpartitions.popleft()
        self.is_blocked = kind.is_blocking_upstream
        self.num_out += 1
        buffer = NetworkBuffer(MemorySegment(memoryview(bytearray(SEGMENT))), self, 10, kind)
        self._sequence_number += 1
        following = self.elements[0] if self.elements and not self.is_blocked else NONE
        return BufferAndBacklog(buffer, self._backlog(), following, self._sequence_number - 1)

    def resume_consumption(self) -> None:
        self.is_blocked = False
        self.orders.append("resume")

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        self.orders.append(("size", size_bytes))

    def send_empty_buffers(self) -> None:
        self.sends_empty_buffers = True

    def acknowledge_all_data_processed(self) -> None:
        self.orders.append("acknowledge")

    def hand_back(self) -> None:
        self.orders.append("hand back")

    def release(self) -> None:
        self.num_released += 1
        self.is_released = True


class EmptyAlwaysAvailableView(ScriptedView):
    """Claims to have something and never has."""

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:
        return True, 0


def open_reader(
    server: ServerSide, view: ScriptedView, *, receiver: int = 1, credit: int = 2
) -> CreditBasedSequenceNumberingViewReader:
    """Open a reader of ``view`` that the queue knows; it was not notified of data yet."""
    last = 1 if view.subpartitions else 0
    reader = CreditBasedSequenceNumberingViewReader(
        PartitionRequest(partition_id_of(), 0, last, receiver_of(receiver), credit), server.queue
    )
    reader.set_view(view)
    server.queue.add_reader(reader)
    return reader


def notify(server: ServerSide, reader: CreditBasedSequenceNumberingViewReader) -> None:
    reader.notify_data_available()
    server.loop.run_pending()


def block(server: ServerSide) -> None:
    """Fill the socket: nothing is written until ``unblock``."""
    server.channel.transport_write(OutboundFrame((bytes(NUM_BLOCKING_BYTES),), None))
    assert not server.channel.is_writable


def unblock(server: ServerSide) -> None:
    """Let the kernel take the bytes that filled the socket; bytes that are written from then on stay readable."""
    server.channel.flush_outbound()
    first = server.channel.read_outbound()
    assert isinstance(first, bytes)
    assert len(first) == NUM_BLOCKING_BYTES


def is_queued(server: ServerSide, receiver: int = 1) -> bool:
    """Whether the reader waits for its turn."""
    [row] = [each for each in server.queue.statistics() if each.receiver == receiver_of(receiver).hex()]
    return row.is_queued
