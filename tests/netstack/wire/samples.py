"""One or more messages of every kind, with the frame that each one has on the wire."""

from netstack.ids import ResultPartitionID, execution_attempt_id, input_channel_id, partition_id
from netstack.wire.codec import encode, encode_buffer_response_header
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
    Message,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    TaskEventRequest,
)

RECEIVER = input_channel_id(1, 2)
PARTITION = ResultPartitionID(partition_id(b"D" * 16, 7), execution_attempt_id(b"G" * 16, b"V" * 16, 3, 4))

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
    BacklogAnnouncement(RECEIVER, 0),
    NewBufferSize(RECEIVER, 32 * 1024),
]


def response(
    payload: bytes, *, data_type: DataType = DataType.DATA_BUFFER, is_compressed: bool = False, partial_sizes: tuple[int, ...] = ()
) -> BufferResponse:
    """A ``BufferResponse`` with this payload."""
    return BufferResponse(RECEIVER, 4, 5, 6, data_type, is_compressed, partial_sizes, memoryview(payload))


DATA_MESSAGES: list[Message] = [
    response(b""),
    response(b"payload"),
    response(b"x" * 200, is_compressed=True),
    response(b"abcde", partial_sizes=(2, 0, 3)),
    response(b"\0\0\0\0", data_type=DataType.END_OF_PARTITION),
]

ALL_MESSAGES = [*CONTROL_MESSAGES, *DATA_MESSAGES]


def frame_of(message: Message) -> bytes:
    """The frame of any message."""
    if not isinstance(message, BufferResponse):
        return encode(message)
    header = encode_buffer_response_header(*message[:6], len(message.payload), message.partial_sizes)
    return header + message.payload
