"""The messages between two TaskManagers.

Side:       pure.
Invariants: a message is immutable.  The holder of a ``BufferResponse`` owns its buffer.
Units:      credit and backlog in buffers, sizes in bytes; sequence numbers are compared across their wrap.
Source:     Flink 2.x ``NettyMessage`` and ``Buffer.DataType``.  Ours (ids from 64 on): ``Hello``, ``Proof``, ``Ready``,
            ``Heartbeat``, ``offer_messages``.
"""

from collections.abc import Sequence
from enum import IntEnum, unique
from typing import Final, NamedTuple, Protocol, TypeAlias

from netstack.ids import InputChannelID, ResultPartitionID
from netstack.late import dataclass
from netstack.wire.offer_messages import GateHello, OfferRefused, SubpartitionOffer

MAX_SEQUENCE_NUMBER: Final = 2**31 - 1
_SIGN_BIT: Final = 0x8000_0000


def wrapped_number(number: int) -> int:
    """Return a sequence number as it travels, a 32-bit integer as in Java: behind 2^31 - 1 comes -2^31."""
    return (number + _SIGN_BIT) % (2 * _SIGN_BIT) - _SIGN_BIT


def is_before(first: int, second: int) -> bool:
    """Whether ``first`` was given out before ``second``; they are less than 2^31 apart."""
    return (first - second) & _SIGN_BIT != 0


@unique
class DataType(IntEnum):
    """The kind of element in a buffer; the values are the ordinals of Flink's enum."""

    NONE = 0
    DATA_BUFFER = 1
    EVENT_BUFFER = 2
    PRIORITIZED_EVENT_BUFFER = 3
    ALIGNED_CHECKPOINT_BARRIER = 4
    TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER = 5
    RECOVERY_COMPLETION = 6
    END_OF_SEGMENT = 7
    DATA_BUFFER_WITH_CLEAR_END = 8
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    RECOVERY_METADATA = 11
    ALIGNED_WATERMARK_EVENT = 12
    UNALIGNED_WATERMARK_EVENT = 13

    # Plain attributes, set below: they are read once per buffer, and a property of an enum would cost ten times as
    # much.
    is_buffer: bool
    """Data; costs the sender one credit."""
    is_event: bool
    """An event; needs no credit."""
    has_priority: bool
    """It overtakes the buffers queued before it."""
    is_blocking_upstream: bool
    """The subpartition sends nothing after it until the consumer resumes it."""


_BUFFERS = (DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END)
_BLOCKING = (
    DataType.ALIGNED_CHECKPOINT_BARRIER,
    DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    DataType.RECOVERY_COMPLETION,
    DataType.ALIGNED_WATERMARK_EVENT,
)
for _each in DataType:
    _each.is_buffer = _each in _BUFFERS
    _each.is_event = _each not in _BUFFERS and _each is not DataType.NONE
    _each.has_priority = _each is DataType.PRIORITIZED_EVENT_BUFFER
    _each.is_blocking_upstream = _each in _BLOCKING


@unique
class ErrorCode(IntEnum):
    """Why the peer sent an ``ErrorResponse``; our processes send the names to each other."""

    UNKNOWN = 0
    """A Java throwable that is not ours, or a code of a later version."""
    PROTOCOL = 1
    PARTITION_NOT_FOUND = 2
    PRODUCER_FAILED = 3
    UNKNOWN_RECEIVER = 4
    SUBPARTITION_TAKEN = 5
    INTERNAL = 6
    UNKNOWN_TASK_EVENT_RECEIVER = 7
    """Nobody subscribed to the task event at the producer."""
    AUTHENTICATION = 8
    """The peer failed the handshake, for whatever reason."""
    LIMIT_EXCEEDED = 9
    """The peer exceeded a limit of one connection."""


class PayloadBuffer(Protocol):
    """The part of a network buffer that encoder and decoder use.

    One implementer: ``NetworkBuffer`` imports this module, which therefore cannot import it.
    """

    @property
    def view(self) -> memoryview:
        """The payload, ``size`` bytes."""

    @property
    def size(self) -> int:
        """Bytes of payload."""

    @property
    def data_type(self) -> DataType:
        """The kind of the payload."""

    @property
    def is_compressed(self) -> bool:
        """Whether the payload is compressed."""

    def recycle(self) -> None:
        """Give the buffer back; called once."""


class BufferAllocator(Protocol):
    """Gives buffers for the payloads that arrive on one connection.

    One implementer: the handler of the connection, which lies above this module.
    """

    def allocate(
        self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool
    ) -> PayloadBuffer | None:
        """Return a buffer of ``size_bytes`` writable bytes; None: the decoder drops the payload and delivers the
        message without it.
        """

    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> Sequence[PayloadBuffer]:
        """Return at most ``max_buffers`` buffers of ``size_bytes`` bytes for plain data; the decoder asks ``allocate``
        for the rest.
        """


class BufferRun(NamedTuple):
    """Consecutive ``BufferResponse``s in one message: plain data buffers of one subpartition and one size, none empty.

    Ownership: the holder of the message owns ``buffers``.
    """

    receiver: InputChannelID
    subpartition: int
    sequence_number: int  # of the first buffer
    backlog: int  # behind the last buffer
    buffers: Sequence[PayloadBuffer]


class BufferResponse(NamedTuple):
    """One buffer of a subpartition.  A named tuple, because one is made per buffer.

    Ownership: the holder of the message owns ``buffer``; None: the receiver had no buffer, and the payload was skipped.
    """

    receiver: InputChannelID
    subpartition: int
    sequence_number: int
    backlog: int
    data_type: DataType
    is_compressed: bool
    partial_sizes: tuple[int, ...]
    buffer: PayloadBuffer | None


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Something failed at the sender, for one ``receiver`` or (None) for the whole connection.

    Flink answers some mistakes of one receiver without naming it; then ``about`` names it to our own clients.
    """

    code: ErrorCode
    message: str
    receiver: InputChannelID | None
    about: InputChannelID | None = None


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Send a range of subpartitions (both ends included) of one partition to ``receiver``."""

    partition: ResultPartitionID
    first_subpartition: int
    last_subpartition: int
    receiver: InputChannelID
    credit: int


@dataclass(frozen=True, slots=True)
class TaskEventRequest:
    """A serialized event from a consumer to the producer of its partition."""

    event: bytes
    partition: ResultPartitionID
    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class CancelPartitionRequest:
    """Send nothing more to ``receiver``."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """The client no longer uses the connection."""


@dataclass(frozen=True, slots=True)
class AddCredit:
    """``receiver`` has room for ``credit`` more buffers."""

    receiver: InputChannelID
    credit: int


@dataclass(frozen=True, slots=True)
class ResumeConsumption:
    """``receiver`` is ready for data after a blocking event."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class AckAllUserRecordsProcessed:
    """``receiver`` has processed every record before its end of data."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class BacklogAnnouncement:
    """The sender has ``backlog`` buffers for ``receiver`` and no credit."""

    receiver: InputChannelID
    backlog: int


@dataclass(frozen=True, slots=True)
class NewBufferSize:
    """Send ``receiver`` buffers of this size from now on."""

    receiver: InputChannelID
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentId:
    """Continue ``subpartition`` with this segment of tiered storage (counted from 1)."""

    receiver: InputChannelID
    subpartition: int
    segment: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of either side: its protocol versions, its ``Role``, and 32 random bytes used once.

    ``authority``: of a client without TLS, the ``host:port`` that it is connected to; else "".
    """

    version_min: int
    version_max: int
    role: int
    nonce: bytes
    authority: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """Shows that the sender knows the secret: an HMAC of 32 bytes that covers both nonces."""

    mac: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender accepts the proof and speaks this version from now on."""

    version: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender lives, and wants a sign of life from the receiver at least every ``interval_ms``."""

    interval_ms: int


ChannelOrder: TypeAlias = AckAllUserRecordsProcessed | NewBufferSize | ResumeConsumption | TaskEventRequest
"""What a channel tells its producer besides its credit."""

HandshakeMessage: TypeAlias = Hello | GateHello | Proof | Ready

Message: TypeAlias = (
    BufferResponse
    | ErrorResponse
    | PartitionRequest
    | ChannelOrder
    | CancelPartitionRequest
    | CloseRequest
    | AddCredit
    | BacklogAnnouncement
    | SegmentId
    | HandshakeMessage
    | Heartbeat
    | SubpartitionOffer
    | OfferRefused
)
