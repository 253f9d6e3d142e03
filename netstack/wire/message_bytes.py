"""Encodes messages as frames and decodes the bodies of frames.

Side:       pure.  ``encode_buffer_response_header`` is hot path.
Invariants: a frame starts with its length, the magic number and the message id.  The length does not count the seal
            (``frame_seal``) that follows every frame of a sealed connection.  The decoder refuses every value that the
            encoder refuses (a credit below one, a negative backlog).
Units:      lengths in bytes, all integers big endian.
Source:     Flink 2.x ``NettyMessage``.  An ``ErrorResponse`` carries a serialized Java throwable.  Its class makes
            Flink react correctly; its message starts with the name of our error code.  ``Hello``, ``Proof``, ``Ready``,
            ``Heartbeat`` and ``offer_messages`` are ours.
"""

import re
from collections.abc import Callable
from struct import Struct
from struct import error as struct_error
from typing import Final, assert_never

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import (
    ATTEMPT_ID_BYTES,
    INPUT_CHANNEL_ID_BYTES,
    PARTITION_ID_BYTES,
    ExecutionAttemptID,
    InputChannelID,
    IntermediateResultPartitionID,
    ResultPartitionID,
)
from netstack.wire.java import JAVA_STREAM_MAGIC, JavaClass, describe_throwable, encode_throwable
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
from netstack.wire.offer_messages import (
    GATE_HELLO_ID,
    MAX_AUTHORITY_BYTES,
    OFFER_DECODERS,
    OFFER_FRAME_BYTES,
    OFFER_REFUSED_ID,
    PARTITION_OFFER_ID,
    GateHello,
    OfferRefused,
    PartitionOffer,
    decode_authority,
    encode_authority,
    encode_offer_message,
)

MAGIC: Final = 0xBADC0FFE
FRAME_HEADER: Final = Struct(">IIB")
FRAME_HEADER_BYTES: Final = FRAME_HEADER.size
# The limit of every frame but a BufferResponse, for encoder and decoder.
MAX_FRAME_BYTES: Final = 1 << 20
# Flink packs small buffers into one message of at most one segment; no peer needs more parts than this.
MAX_PARTIAL_SIZES: Final = 4096
BUFFER_RESPONSE_ID: Final = 0
# Frame header, receiver, subpartition, number of partial sizes, sequence number, backlog, data type, is compressed,
# size.
BUFFER_RESPONSE_HEADER: Final = Struct(">IIB16siiiiBBi")
BUFFER_RESPONSE_HEADER_BYTES: Final = BUFFER_RESPONSE_HEADER.size
# Sequence number and backlog in this header: the headers of one run of full buffers differ in nothing else.
BUFFER_RESPONSE_NUMBERS: Final = Struct(">ii")
NUMBERS_START: Final = Struct(">IIB16sii").size
NUMBERS_END: Final = NUMBERS_START + BUFFER_RESPONSE_NUMBERS.size
# The messages that each end accepts, as in Flink's two decoders.
HANDSHAKE_MESSAGE_IDS: Final = frozenset({64, 65, 66, GATE_HELLO_ID})
SERVER_MESSAGE_IDS: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 10, 11})
CLIENT_MESSAGE_IDS: Final = frozenset({BUFFER_RESPONSE_ID, 1, 9})
# A gate that listens is a client that also accepts offers; a producer that dials is a server that also accepts
# refusals.
GATE_MESSAGE_IDS: Final = CLIENT_MESSAGE_IDS | {PARTITION_OFFER_ID}
OFFERING_MESSAGE_IDS: Final = SERVER_MESSAGE_IDS | {OFFER_REFUSED_ID}
# Accepted from authenticated peers, beside the messages above.
HEARTBEAT_ID: Final = 70
MIN_HEARTBEAT_INTERVAL_MS: Final = 100  # a peer that asks for more heartbeats would only cost time

_REQUEST = Struct(">20s40sii16si")
_NUMBER_AND_RECEIVER = Struct(">i16s")
_EVENT_LENGTH = Struct(">i")
_PARTITION_AND_RECEIVER = Struct(">20s40s16s")
_SEGMENT_AND_RECEIVER = Struct(">ii16s")
_HELLO = Struct(">HHB32s")
_VERSION = Struct(">H")
_INTERVAL = Struct(">i")
_SECRET_BYTES = 32  # of a nonce and of a proof
# The prefix of the message of our throwables: the error code, and the receiver that the error is about.
_OUR_MARK = re.compile(r"\[([A-Z_]+)(?: ([0-9a-f]{32}))?\] ")
# A serialized throwable ends with TC_ENDBLOCKDATA or TC_NULL (Java object serialization, section 6.4.2).
_JAVA_STREAM_ENDS = (0x78, 0x70)
# Longer texts are cut: a Java string takes at most 65,535 bytes, and one character up to 6.
_MAX_ERROR_CHARACTERS = 8192
# Our ErrorResponses take at most 50 KiB; Flink's carry the stack traces of all causes.
_MAX_ERROR_FRAME_BYTES = 128 * 1024
_EXCEPTION = JavaClass("java.lang.Exception", "d0fd1f3e1a3b1cc4")
_RUNTIME_EXCEPTION = JavaClass("java.lang.RuntimeException", "9e5f06470a3483e5")
_IO_EXCEPTION = JavaClass("java.io.IOException", "6c8073646525f0ab")
_FLINK = "org.apache.flink.runtime."
_PARTITION_EXCEPTION = JavaClass(
    f"{_FLINK}io.network.partition.PartitionException",
    "0000000000000000",
    (("L", "partitionId", "Lorg/apache/flink/runtime/io/network/partition/ResultPartitionID;"),),
)
_PARTITION_NOT_FOUND = JavaClass(f"{_FLINK}io.network.partition.PartitionNotFoundException", "0000000000000000")
_CANCEL_TASK = JavaClass(f"{_FLINK}execution.CancelTaskException", "0000000000000001")
_PRODUCER_FAILED = JavaClass(f"{_FLINK}io.network.partition.ProducerFailedException", "ea69c7aba289b705")
# Flink's client reacts to these classes; of every other class it only shows the message.
_THROWABLES: Final = {
    ErrorCode.PARTITION_NOT_FOUND: (_PARTITION_NOT_FOUND, _PARTITION_EXCEPTION, _IO_EXCEPTION, _EXCEPTION),
    ErrorCode.PRODUCER_FAILED: (_PRODUCER_FAILED, _CANCEL_TASK, _RUNTIME_EXCEPTION, _EXCEPTION),
}
_OTHER_THROWABLE: Final = (_IO_EXCEPTION, _EXCEPTION)
_CODES_OF_CLASSES: Final = {
    _PARTITION_NOT_FOUND.name: ErrorCode.PARTITION_NOT_FOUND,
    _PRODUCER_FAILED.name: ErrorCode.PRODUCER_FAILED,
    _CANCEL_TASK.name: ErrorCode.PRODUCER_FAILED,
}

_pack_header = BUFFER_RESPONSE_HEADER.pack


def encode_buffer_response_header(
    receiver: InputChannelID,
    subpartition: int,
    sequence_number: int,
    backlog: int,
    data_type: DataType,
    is_compressed: bool,  # noqa: FBT001 - hot path, positional is cheaper
    size_bytes: int,
    partial_sizes: tuple[int, ...] = (),
) -> bytes:
    """The header of a ``BufferResponse``; its payload of ``size_bytes`` bytes follows on the wire.

    ``subpartition`` and ``backlog`` must not be negative; they are not checked, because this runs once per buffer.

    Raises:
        LocalProtocolError: ``partial_sizes`` are too many, one is negative, or they do not add up to ``size_bytes``.
        struct.error: a number does not fit 32 bits.
    """
    num_partial = len(partial_sizes)
    header = _pack_header(
        BUFFER_RESPONSE_HEADER_BYTES + 4 * num_partial + size_bytes,
        MAGIC,
        BUFFER_RESPONSE_ID,
        receiver,
        subpartition,
        num_partial,
        sequence_number,
        backlog,
        data_type,
        is_compressed,
        size_bytes,
    )
    if not num_partial:
        return header
    if num_partial > MAX_PARTIAL_SIZES or min(partial_sizes) < 0:
        raise LocalProtocolError(
            f"{num_partial} partial sizes from {min(partial_sizes)} cannot be sent, the most is {MAX_PARTIAL_SIZES} "
            "from 0"
        )
    if sum(partial_sizes) != size_bytes:
        raise LocalProtocolError(
            f"partial sizes {partial_sizes} add up to {sum(partial_sizes)}, not to {size_bytes} bytes"
        )
    return header + Struct(f">{num_partial}i").pack(*partial_sizes)


def encode(message: Message) -> bytes:
    """The frame of any message but ``BufferResponse``, whose payload is written without a copy.

    Raises:
        LocalProtocolError: a field is out of range, an id has the wrong length, the frame exceeds ``MAX_FRAME_BYTES``,
            or the message is a ``BufferResponse``.
    """
    try:
        message_id, body = _encode_body(message)
    except struct_error as error:
        raise LocalProtocolError(f"{message!r} cannot be encoded: {error}") from error
    num_bytes = FRAME_HEADER_BYTES + len(body)
    if num_bytes > MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"a {type(message).__name__} of {num_bytes} bytes cannot be sent, the most is {MAX_FRAME_BYTES}"
        )
    return FRAME_HEADER.pack(num_bytes, MAGIC, message_id) + body


def _encode_body(message: Message) -> tuple[int, bytes]:
    match message:
        case ErrorResponse():
            return 1, _encode_error(message)
        case PartitionRequest(partition, first, last, receiver, credit):
            if not 0 <= first <= last:
                raise LocalProtocolError(f"subpartitions {first} to {last} are not a range")
            _at_least(0, "credit", credit)
            return 2, _REQUEST.pack(*_partition_fields(partition), first, last, _checked(receiver), credit)
        case TaskEventRequest(event, partition, receiver):
            tail = _PARTITION_AND_RECEIVER.pack(*_partition_fields(partition), _checked(receiver))
            return 3, _EVENT_LENGTH.pack(len(event)) + event + tail
        case CancelPartitionRequest(receiver):
            return 4, _checked(receiver)
        case CloseRequest():
            return 5, b""
        case AddCredit(receiver, credit):
            return 6, _encode_number("credit", credit, 1, receiver)
        case ResumeConsumption(receiver):
            return 7, _checked(receiver)
        case AckAllUserRecordsProcessed(receiver):
            return 8, _checked(receiver)
        case BacklogAnnouncement(receiver, backlog):
            return 9, _encode_number("backlog", backlog, 1, receiver)
        case NewBufferSize(receiver, size_bytes):
            return 10, _encode_number("buffer size", size_bytes, 1, receiver)
        case SegmentId(receiver, subpartition, segment):
            _at_least(0, "subpartition", subpartition)
            _at_least(1, "segment", segment)
            return 11, _SEGMENT_AND_RECEIVER.pack(subpartition, segment, _checked(receiver))
        case Hello(version_min, version_max, role, nonce, authority):
            if version_min > version_max:
                raise LocalProtocolError(f"versions {version_min} to {version_max} are not a range")
            return 64, _HELLO.pack(version_min, version_max, role, _checked_secret("nonce", nonce)) + encode_authority(
                authority
            )
        case Proof(mac):
            return 65, _checked_secret("proof", mac)
        case Ready(version):
            return 66, _VERSION.pack(version)
        case Heartbeat(interval_ms):
            _at_least(MIN_HEARTBEAT_INTERVAL_MS, "heartbeat interval", interval_ms)
            return HEARTBEAT_ID, _INTERVAL.pack(interval_ms)
        case GateHello() | PartitionOffer() | OfferRefused():
            return encode_offer_message(message)
        case BufferResponse():
            raise LocalProtocolError("a BufferResponse is written as its header and its payload")
        case _:
            assert_never(message)


def _at_least(least: int, name: str, number: int) -> None:
    if number < least:
        raise LocalProtocolError(f"a {name} of {number} cannot be sent, the least is {least}")


def _encode_number(name: str, number: int, least: int, receiver: InputChannelID) -> bytes:
    _at_least(least, name, number)
    return _NUMBER_AND_RECEIVER.pack(number, _checked(receiver))


def _checked(receiver: InputChannelID) -> InputChannelID:
    if len(receiver) != INPUT_CHANNEL_ID_BYTES:
        raise LocalProtocolError(f"a receiver id has {INPUT_CHANNEL_ID_BYTES} bytes, got {len(receiver)}")
    return receiver


def _checked_secret(name: str, secret: bytes) -> bytes:
    if len(secret) != _SECRET_BYTES:
        raise LocalProtocolError(f"a {name} has {_SECRET_BYTES} bytes, got {len(secret)}")
    return secret


def _partition_fields(partition: ResultPartitionID) -> tuple[bytes, bytes]:
    if len(partition.partition) != PARTITION_ID_BYTES or len(partition.producer) != ATTEMPT_ID_BYTES:
        raise LocalProtocolError(
            f"partition and producer ids have {PARTITION_ID_BYTES} and {ATTEMPT_ID_BYTES} bytes,"
            f" got {len(partition.partition)} and {len(partition.producer)}"
        )
    return partition.partition, partition.producer


def _encode_error(error: ErrorResponse) -> bytes:
    about = "" if error.about is None else f" {_checked(error.about).hex()}"
    # A lone surrogate (from a path that is not text) would raise in whatever prints the message.
    message = error.message[:_MAX_ERROR_CHARACTERS].encode("utf-8", "replace").decode()
    text = f"[{error.code.name}{about}] {message}"
    end = b"\x00" if error.receiver is None else b"\x01" + _checked(error.receiver)
    return encode_throwable(_THROWABLES.get(error.code, _OTHER_THROWABLE), text) + end


# ---------------------------------------------------------------- decoding


def _decode_request(body: memoryview) -> Message:
    partition, producer, first, last, receiver, credit = _REQUEST.unpack(body)
    if not 0 <= first <= last:
        raise RemoteProtocolError(f"a PartitionRequest asks for the subpartitions {first} to {last}")
    _require_at_least(0, "a PartitionRequest with a credit", credit)
    return PartitionRequest(_partition(partition, producer), first, last, InputChannelID(receiver), credit)


def _decode_task_event(body: memoryview) -> Message:
    (event_bytes,) = _EVENT_LENGTH.unpack_from(body)
    expected = _EVENT_LENGTH.size + event_bytes + _PARTITION_AND_RECEIVER.size
    if event_bytes < 0 or expected != len(body):
        raise RemoteProtocolError(f"a TaskEventRequest of {len(body)} bytes announces an event of {event_bytes} bytes")
    end = _EVENT_LENGTH.size + event_bytes
    partition, producer, receiver = _PARTITION_AND_RECEIVER.unpack_from(body, end)
    return TaskEventRequest(
        bytes(body[_EVENT_LENGTH.size : end]), _partition(partition, producer), InputChannelID(receiver)
    )


def _decode_add_credit(body: memoryview) -> Message:
    credit, receiver = _NUMBER_AND_RECEIVER.unpack(body)
    _require_at_least(1, "an AddCredit with a credit", credit)
    return AddCredit(InputChannelID(receiver), credit)


def _decode_backlog(body: memoryview) -> Message:
    backlog, receiver = _NUMBER_AND_RECEIVER.unpack(body)
    _require_at_least(1, "a BacklogAnnouncement with a backlog", backlog)
    return BacklogAnnouncement(InputChannelID(receiver), backlog)


def _decode_new_buffer_size(body: memoryview) -> Message:
    size_bytes, receiver = _NUMBER_AND_RECEIVER.unpack(body)
    _require_at_least(1, "a NewBufferSize with a size", size_bytes)
    return NewBufferSize(InputChannelID(receiver), size_bytes)


def _decode_segment(body: memoryview) -> Message:
    subpartition, segment, receiver = _SEGMENT_AND_RECEIVER.unpack(body)
    _require_at_least(0, "a SegmentId with a subpartition", subpartition)
    _require_at_least(1, "a SegmentId with a segment", segment)
    return SegmentId(InputChannelID(receiver), subpartition, segment)


def _decode_hello(body: memoryview) -> Message:
    version_min, version_max, role, nonce = _HELLO.unpack_from(body)
    if version_min > version_max:
        raise RemoteProtocolError(f"a Hello with the versions {version_min} to {version_max}")
    return Hello(version_min, version_max, role, nonce, decode_authority(bytes(body[_HELLO.size :])))


def _decode_heartbeat(body: memoryview) -> Message:
    (interval_ms,) = _INTERVAL.unpack(body)
    _require_at_least(MIN_HEARTBEAT_INTERVAL_MS, "a Heartbeat with an interval in ms", interval_ms)
    return Heartbeat(interval_ms)


def _require_at_least(least: int, what: str, number: int) -> None:
    if number < least:
        raise RemoteProtocolError(f"{what} of {number}, the least is {least}")


def _partition(partition: bytes, producer: bytes) -> ResultPartitionID:
    return ResultPartitionID(IntermediateResultPartitionID(partition), ExecutionAttemptID(producer))


def _receiver(body: memoryview) -> InputChannelID:
    return InputChannelID(bytes(body))


def _decode_error(body: memoryview) -> Message:
    if bytes(body[:2]) != JAVA_STREAM_MAGIC:
        raise RemoteProtocolError(
            f"the body of an ErrorResponse starts with {bytes(body[:4]).hex()}, which is not a Java throwable"
        )
    name, text = describe_throwable(body)
    ours = None if text is None else _our_error(text, body)
    if ours is not None:
        return ours
    code = _CODES_OF_CLASSES.get(name, ErrorCode.UNKNOWN)
    shown = f"{name}: {text}" if text else name
    if not name:
        shown = f"a Java throwable of {len(body)} bytes, which is not readable here"
    return ErrorResponse(code, shown, _receiver_after_throwable(body))


def _our_error(text: str, body: memoryview) -> ErrorResponse | None:
    """The error that ``_encode_error`` encodes as ``body``, or None."""
    mark = _OUR_MARK.match(text)
    if mark is None or mark[1] not in ErrorCode.__members__:
        return None
    about = None if mark[2] is None else InputChannelID(bytes.fromhex(mark[2]))
    for receiver in (None, _receiver(body[-INPUT_CHANNEL_ID_BYTES:])):
        error = ErrorResponse(ErrorCode[mark[1]], text[mark.end() :], receiver, about)
        if len(text) <= _MAX_ERROR_CHARACTERS + mark.end() and _encode_error(error) == body:
            return error
    return None


def _receiver_after_throwable(body: memoryview) -> InputChannelID | None:
    """The receiver behind the throwable, or None; the throwable is not parsed, its last byte marks its end."""
    flag = len(body) - 1 - INPUT_CHANNEL_ID_BYTES
    may_have_receiver = flag > len(JAVA_STREAM_MAGIC) and body[flag] == 1
    if may_have_receiver and body[flag - 1] in _JAVA_STREAM_ENDS:
        return _receiver(body[flag + 1 :])
    if body[-1] == 0:
        return None
    if may_have_receiver:
        return _receiver(body[flag + 1 :])
    raise RemoteProtocolError(
        f"an ErrorResponse with a Java throwable of {len(body)} bytes does not end with a receiver"
    )


# Message id -> (least, greatest) number of bytes of the whole frame; None: the decoder's limit.
FRAME_BYTES: Final[dict[int, tuple[int, int | None]]] = {
    BUFFER_RESPONSE_ID: (BUFFER_RESPONSE_HEADER_BYTES, None),
    1: (FRAME_HEADER_BYTES + 3, _MAX_ERROR_FRAME_BYTES),
    2: (97, 97),
    3: (89, None),
    4: (25, 25),
    5: (9, 9),
    6: (29, 29),
    7: (25, 25),
    8: (25, 25),
    9: (29, 29),
    10: (29, 29),
    11: (33, 33),
    64: (46, 46 + MAX_AUTHORITY_BYTES),
    65: (41, 41),
    66: (11, 11),
    HEARTBEAT_ID: (13, 13),
    **OFFER_FRAME_BYTES,
}
_DECODERS: Final[dict[int, Callable[[memoryview], Message]]] = {
    1: _decode_error,
    2: _decode_request,
    3: _decode_task_event,
    4: lambda body: CancelPartitionRequest(_receiver(body)),
    5: lambda _body: CloseRequest(),
    6: _decode_add_credit,
    7: lambda body: ResumeConsumption(_receiver(body)),
    8: lambda body: AckAllUserRecordsProcessed(_receiver(body)),
    9: _decode_backlog,
    10: _decode_new_buffer_size,
    11: _decode_segment,
    64: _decode_hello,
    65: lambda body: Proof(bytes(body)),
    66: lambda body: Ready(*_VERSION.unpack(body)),
    HEARTBEAT_ID: _decode_heartbeat,
    **OFFER_DECODERS,
}
ALL_MESSAGE_IDS: Final = frozenset(FRAME_BYTES)


def decode_body(message_id: int, body: memoryview) -> Message:
    """Decode the body of any message but ``BufferResponse``; the caller has checked its length against ``FRAME_BYTES``.

    Raises:
        RemoteProtocolError: a field is out of range, or the fields do not fill the body exactly.
    """
    return _DECODERS[message_id](body)
