"""One or more messages of every kind, with the frame that each one has on the wire."""

import struct
from collections.abc import Sequence

from netstack.ids import (
    InputChannelID,
    ResultPartitionID,
    execution_attempt_id,
    input_channel_id,
    intermediate_partition_id,
)
from netstack.wire.frame_decoder import Decoded, FrameDecoder
from netstack.wire.message_bytes import (
    BUFFER_RESPONSE_HEADER,
    BUFFER_RESPONSE_HEADER_BYTES,
    BUFFER_RESPONSE_ID,
    MAGIC,
    encode,
)
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    Heartbeat,
    Hello,
    Message,
    NewBufferSize,
    PartitionRequest,
    Proof,
    Ready,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
)
from netstack.wire.offer_messages import GateHello, GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer

GATE = GateIdentity(b"J" * 16, "clicks", 9)
RECEIVER = input_channel_id(1, 2)
PARTITION = ResultPartitionID(intermediate_partition_id(b"D" * 16, 7), execution_attempt_id(b"G" * 16, b"V" * 16, 3, 4))

CONTROL_MESSAGES: list[Message] = [
    ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, "no partition — gone", RECEIVER),
    ErrorResponse(ErrorCode.INTERNAL, "", None),
    PartitionRequest(PARTITION, 0, 5, RECEIVER, 2),
    TaskEventRequest(b"event", PARTITION, RECEIVER),
    TaskEventRequest(b"", PARTITION, RECEIVER),
    CancelPartitionRequest(RECEIVER),
    CloseRequest(),
    AddCredit(RECEIVER, 3),
    ResumeConsumption(RECEIVER),
    AckAllUserRecordsProcessed(RECEIVER),
    PartitionRequest(PARTITION, 7, 7, RECEIVER, 0),
    BacklogAnnouncement(RECEIVER, 1),
    NewBufferSize(RECEIVER, 32 * 1024),
    SegmentId(RECEIVER, 4, 5),
    Hello(1, 2, 3, bytes(range(32))),
    Hello(2, 2, 1, bytes(range(32)), "[::1]:6121"),
    Proof(bytes(range(100, 132))),
    Ready(2),
    Heartbeat(2000),
    GateHello(1, 2, bytes(range(32)), GATE),
    GateHello(1, 2, bytes(range(32)), GATE, "127.0.0.1:6121"),
    SubpartitionOffer(b"O" * 16, PARTITION, 1, 2, 7, "jöb", 3, 5, 6, b"T" * 16, 2**40),
    OfferRefused(b"O" * 16, 1, RefusalCode.REPEATED_ATTEMPT, "twice — no"),
    OfferRefused(b"O" * 16, 0, RefusalCode.UNKNOWN, ""),
]


class HeapBuffer:
    """A payload on the heap that counts its recycling; it equals every other one with equal content."""

    def __init__(
        self, content: bytes | bytearray, data_type: DataType = DataType.DATA_BUFFER, *, is_compressed: bool = False
    ) -> None:
        self.view = memoryview(content)
        self.size = len(content)
        self.data_type = data_type
        self.is_compressed = is_compressed
        self.num_recycled = 0

    def __repr__(self) -> str:
        return f"<HeapBuffer {bytes(self.view[:20])!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeapBuffer) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def recycle(self) -> None:
        self.num_recycled += 1

    def _key(self) -> tuple[bytes, DataType, bool]:
        return bytes(self.view), self.data_type, self.is_compressed


class HeapAllocator:
    """Has room for everything and remembers its buffers."""

    def __init__(self) -> None:
        self.allocated: list[HeapBuffer] = []

    def allocate(
        self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool
    ) -> HeapBuffer:
        self.allocated.append(HeapBuffer(bytearray(size_bytes), data_type, is_compressed=is_compressed))
        return self.allocated[-1]

    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> Sequence[HeapBuffer]:
        return ()


def content(message: object) -> bytes:
    """Return the payload of a ``BufferResponse`` that has one."""
    assert isinstance(message, BufferResponse)
    assert message.buffer is not None
    return bytes(message.buffer.view)


def response(
    payload: bytes,
    *,
    data_type: DataType = DataType.DATA_BUFFER,
    is_compressed: bool = False,
    partial_sizes: tuple[int, ...] = (),
) -> BufferResponse:
    """Return a ``BufferResponse`` with this payload."""
    return BufferResponse(
        RECEIVER,
        4,
        5,
        6,
        data_type,
        is_compressed,
        partial_sizes,
        HeapBuffer(payload, data_type, is_compressed=is_compressed),
    )


DATA_MESSAGES: list[Message] = [
    response(b""),
    response(b"payload"),
    response(b"x" * 200, is_compressed=True),
    response(b"abcde", partial_sizes=(2, 0, 3)),
    response(b"\0\0\0\0", data_type=DataType.END_OF_PARTITION),
]

ALL_MESSAGES = [*CONTROL_MESSAGES, *DATA_MESSAGES]


def header_of_buffer(
    receiver: InputChannelID,
    subpartition: int,
    sequence_number: int,
    backlog: int,
    data_type: DataType,
    is_compressed: bool,
    size_bytes: int,
) -> bytes:
    """Return the header of a ``BufferResponse`` without partial sizes."""
    numbers = subpartition, 0, sequence_number, backlog, data_type, is_compressed, size_bytes
    return BUFFER_RESPONSE_HEADER.pack(
        BUFFER_RESPONSE_HEADER_BYTES + size_bytes, MAGIC, BUFFER_RESPONSE_ID, receiver, *numbers
    )


def frame_of(message: Message) -> bytes:
    """Return the frame of any message."""
    if not isinstance(message, BufferResponse):
        return encode(message)
    payload, sizes = content(message), message.partial_sizes
    header = bytearray(header_of_buffer(*message[:6], len(payload)))
    # As Flink writes them: their number in the header, themselves behind it.
    struct.pack_into(">i", header, 0, len(header) + 4 * len(sizes) + len(payload))
    struct.pack_into(">i", header, 29, len(sizes))
    return bytes(header) + struct.pack(f">{len(sizes)}i", *sizes) + payload


class FedDecoder(FrameDecoder):
    """A decoder that reads from no socket."""

    def feed(self, data: bytes) -> list[Decoded]:
        """Decode ``data`` as if a socket had read it; raises as ``buffer_updated`` does."""
        messages: list[Decoded] = []
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            num_bytes = min(len(buffer), len(rest))
            buffer[:num_bytes] = rest[:num_bytes]
            rest = rest[num_bytes:]
            messages += self.buffer_updated(num_bytes)
            if self.failure is not None:
                break
        return messages
