"""Encodes messages as frames and decodes the bodies of frames.

Side:       pure.
Invariants: a frame starts with its length, the magic number and the message id.  The length does not count the seal
            (``FrameSeal``) that follows every frame of a sealed connection.  Encoder and decoder share one table
            (``_LAYOUTS``), so the decoder refuses every value that the encoder refuses (a credit below one).
Units:      lengths in bytes, all integers big endian.
Source:     Flink 2.x ``NettyMessage``.  An ``ErrorResponse`` carries a serialized Java throwable.  Its class makes
            Flink react correctly; its message starts with the name of our error code.  ``Hello``, ``Proof``, ``Ready``,
            ``Heartbeat`` and ``offer_messages`` are ours.
"""

import re
from operator import attrgetter
from struct import Struct
from typing import Final

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import INPUT_CHANNEL_ID_BYTES, InputChannelID, ResultPartitionID
from netstack.late import dataclass
from netstack.wire import messages, offer_messages
from netstack.wire.java import JAVA_STREAM_MAGIC, FieldsOf, JavaClass, describe_throwable, encode_throwable
from netstack.wire.messages import ErrorCode, ErrorResponse, Message, TaskEventRequest
from netstack.wire.offer_messages import GateHello, GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer

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
# This header as our own sender writes it, once per buffer: magic number and id are one constant, and the partial sizes,
# which only Flink sends, a gap.  ``struct`` alone checks the numbers.
PLAIN_HEADER: Final = Struct(">I5s16si4xiiBBi")
PLAIN_HEADER_START: Final = MAGIC.to_bytes(4, "big") + bytes([BUFFER_RESPONSE_ID])
# Sequence number and backlog in this header: the headers of one run of full buffers differ in nothing else.
BUFFER_RESPONSE_NUMBERS: Final = Struct(">ii")
NUMBERS_START: Final = Struct(">IIB16sii").size
NUMBERS_END: Final = NUMBERS_START + BUFFER_RESPONSE_NUMBERS.size
# The messages that each end accepts, as in Flink's two decoders.
HANDSHAKE_MESSAGE_IDS: Final = frozenset({64, 65, 66, 67})
SERVER_MESSAGE_IDS: Final = frozenset({2, 3, 4, 5, 6, 7, 8, 10, 11})
CLIENT_MESSAGE_IDS: Final = frozenset({BUFFER_RESPONSE_ID, 1, 9})
# A gate that listens is a client that also accepts offers; a producer that dials is a server that also accepts
# refusals.
GATE_MESSAGE_IDS: Final = CLIENT_MESSAGE_IDS | {68}
OFFERING_MESSAGE_IDS: Final = SERVER_MESSAGE_IDS | {69}
# Accepted from authenticated peers, beside the messages above.
HEARTBEAT_ID: Final = 70
MIN_HEARTBEAT_INTERVAL_MS: Final = 100  # a peer that asks for more heartbeats would only cost time

_EVENT_LENGTH = Struct(">i")
_ADD_CREDIT_ID: Final = 6
_ADD_CREDIT = Struct(">i16s")
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
_CODES_OF_CLASSES: Final = {classes[0].name: code for code, classes in _THROWABLES.items()}
_CODES_OF_CLASSES[_CANCEL_TASK.name] = ErrorCode.PRODUCER_FAILED


# ---------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class _Layout:
    """The body of a kind of message: its fields, then texts without a length, which are divided by zeros."""

    fields: FieldsOf[Message]
    texts: tuple[str, ...] = ()
    """Names of fields."""

    def encode(self, message: object) -> bytes:
        texts = [_encode_text(name, attrgetter(name)(message)) for name in self.texts]
        return self.fields.pack(message) + b"\0".join(texts)

    def decode(self, body: memoryview) -> Message:
        # From the right: a gate's name may have a zero, an authority has none.
        texts = bytes(body[self.fields.num_bytes :]).rsplit(b"\0", len(self.texts) - 1)
        if len(texts) != len(self.texts):
            raise LocalProtocolError(f"it has {len(texts)} texts, not {len(self.texts)}")
        return self.fields.unpack(
            body, **{name: _decode_text(name, text) for name, text in zip(self.texts, texts, strict=True)}
        )

    @property
    def frame_bytes(self) -> tuple[int, int]:
        """The least and the greatest number of bytes of the whole frame."""
        fixed = FRAME_HEADER_BYTES + self.fields.num_bytes + max(0, len(self.texts) - 1)
        least, greatest = ([_TEXT_BYTES[name][end] for name in self.texts] for end in (0, 1))
        return fixed + sum(least), fixed + sum(greatest)


# Least and greatest number of bytes.
_TEXT_BYTES: Final = {
    "authority": (0, 96),  # a literal IPv6 address with scope and port has fewer
    "gate.name": (1, offer_messages.MAX_GATE_NAME_BYTES),
    "job": (1, offer_messages.MAX_JOB_NAME_BYTES),
    "message": (0, 4096),  # longer ones are cut
}


def _encode_text(name: str, text: str) -> bytes:
    least, greatest = _TEXT_BYTES[name]
    if name == "message":
        # The cut may split a character, which would not decode.
        return text.encode("utf-8", "replace")[:greatest].decode("utf-8", "ignore").encode()
    data = text.encode()
    if not least <= len(data) <= greatest:
        raise LocalProtocolError(f"the {name} has {least} to {greatest} bytes, got {len(data)}")
    if name == "authority" and not (text.isascii() and text.isprintable()):
        raise LocalProtocolError(f"an authority has printable ASCII characters, got {text!r}")
    return data


def _decode_text(name: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"the {name} is not UTF-8 text") from error
    _encode_text(name, text)  # raises for a text that may not be sent
    return text


_VERSIONS: Final = "version_min:H version_max:H"
# All but ``ErrorResponse`` and ``TaskEventRequest``, which have functions of their own.
_LAYOUTS: Final = {
    2: _Layout(
        FieldsOf(
            messages.PartitionRequest,
            "partition.partition:20s partition.producer:40s first_subpartition:i last_subpartition:i receiver:16s "
            "credit:i:0",
            partition=ResultPartitionID,
        )
    ),
    4: _Layout(FieldsOf(messages.CancelPartitionRequest, "receiver:16s")),
    5: _Layout(FieldsOf(messages.CloseRequest)),
    6: _Layout(FieldsOf(messages.AddCredit, "credit:i:1 receiver:16s")),
    7: _Layout(FieldsOf(messages.ResumeConsumption, "receiver:16s")),
    8: _Layout(FieldsOf(messages.AckAllUserRecordsProcessed, "receiver:16s")),
    9: _Layout(FieldsOf(messages.BacklogAnnouncement, "backlog:i:1 receiver:16s")),
    10: _Layout(FieldsOf(messages.NewBufferSize, "size_bytes:i:1 receiver:16s")),
    11: _Layout(FieldsOf(messages.SegmentId, "subpartition:i:0 segment:i:1 receiver:16s")),
    64: _Layout(FieldsOf(messages.Hello, f"{_VERSIONS} role:B nonce:32s"), ("authority",)),
    65: _Layout(FieldsOf(messages.Proof, "mac:32s")),
    66: _Layout(FieldsOf(messages.Ready, "version:H")),
    67: _Layout(
        FieldsOf(GateHello, f"{_VERSIONS} nonce:32s gate.job_id:16s gate.expires_ms:q", gate=GateIdentity),
        ("gate.name", "authority"),
    ),
    68: _Layout(
        FieldsOf(
            SubpartitionOffer,
            "offer_id:16s result_partition.partition:20s result_partition.producer:40s subtask:i:0 num_subtasks:i "
            "num_producers:i:0 epoch:q:0 partition:i:0 attempt:i:0 fingerprint:16s first_record:q:0",
            result_partition=ResultPartitionID,
        ),
        ("job",),
    ),
    69: _Layout(FieldsOf(OfferRefused, "offer_id:16s subtask:i:0 code:B", code=RefusalCode), ("message",)),
    HEARTBEAT_ID: _Layout(FieldsOf(messages.Heartbeat, f"interval_ms:i:{MIN_HEARTBEAT_INTERVAL_MS}")),
}
_BY_KIND: Final[dict[object, tuple[int, _Layout]]] = {
    each.fields.kind: (number, each) for number, each in _LAYOUTS.items()
}
_WITH_RANGES: Final = frozenset({2, 64, 67, 68})


def encode(message: object) -> bytes:
    """Encode any message but ``BufferResponse``, whose payload is written without a copy, as a frame.

    Raises:
        LocalProtocolError: a field is out of range, an id has the wrong length, the frame exceeds ``MAX_FRAME_BYTES``,
            or ``message`` is something else.
    """
    if (found := _BY_KIND.get(type(message))) is not None:
        message_id, layout = found
        if message_id in _WITH_RANGES:
            _check_ranges(message)
        body = layout.encode(message) if layout.texts else layout.fields.pack(message)
    elif isinstance(message, ErrorResponse):
        message_id = 1
        body = _encode_error(message)
    elif isinstance(message, TaskEventRequest):
        message_id = 3
        body = _EVENT_LENGTH.pack(len(message.event)) + message.event + _EVENT_END.pack(message)
    else:
        raise LocalProtocolError(f"{type(message).__name__} is not a message that can be written")
    num_bytes = FRAME_HEADER_BYTES + len(body)
    if num_bytes > MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"a {type(message).__name__} of {num_bytes} bytes cannot be sent, the most is {MAX_FRAME_BYTES}"
        )
    return FRAME_HEADER.pack(num_bytes, MAGIC, message_id) + body


def decode_body(message_id: int, body: memoryview) -> Message:
    """Decode the body of any message but ``BufferResponse``; the caller has checked its length against ``FRAME_BYTES``.

    Raises:
        RemoteProtocolError: a field is out of range, or the fields do not fill the body exactly.
    """
    if message_id == _ADD_CREDIT_ID:
        # The one message that is sent per read, without the way through the table.  bench: transport.
        credit, receiver = _ADD_CREDIT.unpack(body)
        if credit > 0:
            return messages.AddCredit(receiver, credit)
    if message_id == 1:
        return _decode_error(body)
    if message_id == 3:
        return _decode_task_event(body)
    layout = _LAYOUTS[message_id]
    try:
        message = layout.decode(body) if layout.texts else layout.fields.unpack(body)
        if message_id in _WITH_RANGES:
            _check_ranges(message)
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"a broken {layout.fields.kind.__name__}: {error}") from error
    return message


def _check_ranges(message: object) -> None:
    """Check the fields that depend on each other."""
    match message:
        case messages.PartitionRequest(first_subpartition=first, last_subpartition=last) if not 0 <= first <= last:
            raise LocalProtocolError(f"subpartitions {first} to {last} are not a range")
        case messages.Hello() | GateHello() if message.version_min > message.version_max:
            raise LocalProtocolError(f"versions {message.version_min} to {message.version_max} are not a range")
        case SubpartitionOffer(subtask=subtask, num_subtasks=num_subtasks) if subtask >= num_subtasks:
            raise LocalProtocolError(f"subtask {subtask} is none of {num_subtasks}")
        case _:
            pass


# ---------------------------------------------------------------- task events and errors

_EVENT_END: Final = FieldsOf(
    TaskEventRequest, "partition.partition:20s partition.producer:40s receiver:16s", partition=ResultPartitionID
)


def _decode_task_event(body: memoryview) -> Message:
    (event_bytes,) = _EVENT_LENGTH.unpack_from(body)
    end = _EVENT_LENGTH.size + event_bytes
    if event_bytes < 0 or end + _EVENT_END.num_bytes != len(body):
        raise RemoteProtocolError(f"a TaskEventRequest of {len(body)} bytes announces an event of {event_bytes} bytes")
    return _EVENT_END.unpack(body[end:], event=bytes(body[_EVENT_LENGTH.size : end]))


def _checked(receiver: InputChannelID) -> InputChannelID:
    if len(receiver) != INPUT_CHANNEL_ID_BYTES:
        raise LocalProtocolError(f"a receiver id has {INPUT_CHANNEL_ID_BYTES} bytes, got {len(receiver)}")
    return receiver


def _encode_error(error: ErrorResponse) -> bytes:
    about = "" if error.about is None else f" {_checked(error.about).hex()}"
    # A lone surrogate (from a path that is not text) would raise where the message is printed.
    message = error.message[:_MAX_ERROR_CHARACTERS].encode("utf-8", "replace").decode()
    text = f"[{error.code.name}{about}] {message}"
    end = b"\x00" if error.receiver is None else b"\x01" + _checked(error.receiver)
    return encode_throwable(_THROWABLES.get(error.code, _OTHER_THROWABLE), text) + end


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
    """Return the error that ``_encode_error`` encodes as ``body``, or None."""
    mark = _OUR_MARK.match(text)
    if mark is None or mark[1] not in ErrorCode.__members__:
        return None
    about = None if mark[2] is None else InputChannelID(bytes.fromhex(mark[2]))
    for receiver in (None, InputChannelID(bytes(body[-INPUT_CHANNEL_ID_BYTES:]))):
        error = ErrorResponse(ErrorCode[mark[1]], text[mark.end() :], receiver, about)
        # Encoded once more: a message of Flink's may begin like our mark.
        if len(text) <= _MAX_ERROR_CHARACTERS + mark.end() and _encode_error(error) == body:
            return error
    return None


def _receiver_after_throwable(body: memoryview) -> InputChannelID | None:
    """Return the receiver behind the throwable, or None; the throwable is not parsed, its last byte marks its end."""
    flag = len(body) - 1 - INPUT_CHANNEL_ID_BYTES
    may_have_receiver = flag > len(JAVA_STREAM_MAGIC) and body[flag] == 1
    if may_have_receiver and body[flag - 1] in _JAVA_STREAM_ENDS:
        return InputChannelID(bytes(body[flag + 1 :]))
    if body[-1] == 0:
        return None
    if may_have_receiver:
        return InputChannelID(bytes(body[flag + 1 :]))
    raise RemoteProtocolError(
        f"an ErrorResponse with a Java throwable of {len(body)} bytes does not end with a receiver"
    )


# Message id -> (least, greatest) number of bytes of the whole frame; None: the decoder's limit.
FRAME_BYTES: Final[dict[int, tuple[int, int | None]]] = {
    BUFFER_RESPONSE_ID: (BUFFER_RESPONSE_HEADER_BYTES, None),
    1: (FRAME_HEADER_BYTES + 3, _MAX_ERROR_FRAME_BYTES),
    3: (FRAME_HEADER_BYTES + _EVENT_LENGTH.size + _EVENT_END.num_bytes, None),
    **{message_id: layout.frame_bytes for message_id, layout in _LAYOUTS.items()},
}
ALL_MESSAGE_IDS: Final = frozenset(FRAME_BYTES)
