"""What travels between two TaskManagers, as values.

Side:       pure.
Invariants: a message is immutable.  The buffer of a ``BufferResponse`` belongs to whoever holds the message.
Units:      credit and backlog in buffers, sizes in bytes.
Source:     Flink 2.x ``NettyMessage`` and ``Buffer.DataType``.  ``Hello``, ``Proof`` and ``Ready`` are ours (ids from 64 on), as those of
            ``offer_messages``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from netstack.ids import InputChannelID, ResultPartitionID
from netstack.wire.offer_messages import GateHello, OfferRefused, PartitionOffer


@unique
class DataType(IntEnum):
    """What a buffer holds; the values are the ordinals of Flink's enum."""

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

    # Set below: a plain attribute is read per buffer, and a property of an enum costs ten times as much.
    is_buffer: bool
    """Whether it is data, which costs the sender one credit."""
    is_event: bool
    """Whether it is an event, which needs no credit."""
    has_priority: bool
    """Whether it overtakes what was queued before it."""
    requires_announcement: bool
    """Whether its arrival is announced ahead of the buffers that it queues behind."""
    is_partial_record: bool
    """Whether the last record in it may go on in the next buffer."""
    is_blocking_upstream: bool
    """Whether the subpartition stops after it until the consumer resumes it."""


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
    _each.requires_announcement = _each is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    _each.is_partial_record = _each is DataType.DATA_BUFFER
    _each.is_blocking_upstream = _each in _BLOCKING


@unique
class ErrorCode(IntEnum):
    """Why the peer sent an ``ErrorResponse``; the values travel between our own processes."""

    UNKNOWN = 0
    """Anything that is not ours: a Java throwable, or a code of a later version."""
    PROTOCOL = 1
    PARTITION_NOT_FOUND = 2
    PRODUCER_FAILED = 3
    UNKNOWN_RECEIVER = 4
    SUBPARTITION_TAKEN = 5
    INTERNAL = 6
    UNKNOWN_TASK_EVENT_RECEIVER = 7
    """Nobody subscribed to the task event at the producer."""
    AUTHENTICATION = 8
    """The peer did not prove that it knows the secret, or came too late with it; one code for every cause."""
    LIMIT_EXCEEDED = 9
    """The peer asked for more than one connection may have."""


class PayloadBuffer(Protocol):
    """What encoder and decoder need of a network buffer."""

    @property
    def view(self) -> memoryview:
        """Its ``size`` bytes."""

    @property
    def size(self) -> int:
        """How many bytes."""

    @property
    def data_type(self) -> DataType:
        """What they are."""

    @property
    def is_compressed(self) -> bool:
        """Whether the bytes are compressed."""

    def recycle(self) -> None:
        """Give the buffer back; called once."""


class BufferAllocator(Protocol):
    """Who has room for the payloads that arrive on one connection."""

    def allocate(self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> PayloadBuffer | None:
        """A buffer of ``size_bytes`` writable bytes for ``receiver``; None drops the payload, the message arrives without it."""


@runtime_checkable
class RunAllocator(BufferAllocator, Protocol):
    """An allocator that likes to give several buffers at once."""

    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> Sequence[PayloadBuffer]:
        """At most so many buffers of ``size_bytes`` bytes for plain data; fewer, or none, leave the rest to ``allocate``."""


class BufferRun(NamedTuple):
    """What several ``BufferResponse``s say that follow each other: plain data buffers of one subpartition, of one size, none empty.

    Ownership: whoever gets the message owns ``buffers``.
    """

    receiver: InputChannelID
    subpartition: int
    sequence_number: int  # of the first one
    backlog: int  # behind the last one
    buffers: Sequence[PayloadBuffer]


class BufferResponse(NamedTuple):
    """One buffer of a subpartition.  A named tuple, because one is made per buffer.

    Ownership: whoever gets the message owns ``buffer``; None says that nobody had room, and the payload was skipped.
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
    """Something failed at the sender: for one receiver, or (None) for the whole connection.

    Flink answers some mistakes of one receiver without receiver; ``about`` then says whose mistake it was, to our own clients.
    """

    code: ErrorCode
    message: str
    receiver: InputChannelID | None
    about: InputChannelID | None = None


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """Start to send the subpartitions ``first`` to ``last`` (inclusive) of one partition to ``receiver``."""

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
    """``receiver`` wants no more."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class CloseRequest:
    """The client is done with the connection."""


@dataclass(frozen=True, slots=True)
class AddCredit:
    """``receiver`` has room for ``credit`` more buffers."""

    receiver: InputChannelID
    credit: int


@dataclass(frozen=True, slots=True)
class ResumeConsumption:
    """``receiver`` can go on after a blocking event."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class AckAllUserRecordsProcessed:
    """``receiver`` has processed everything up to the end of data."""

    receiver: InputChannelID


@dataclass(frozen=True, slots=True)
class BacklogAnnouncement:
    """The sender has ``backlog`` buffers but no credit of ``receiver``."""

    receiver: InputChannelID
    backlog: int


@dataclass(frozen=True, slots=True)
class NewBufferSize:
    """``receiver`` asks for buffers of this size from now on."""

    receiver: InputChannelID
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentId:
    """``receiver`` wants ``subpartition`` to go on with this segment (tiered storage; counted from 1)."""

    receiver: InputChannelID
    subpartition: int
    segment: int


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of either side: which versions it speaks, what it is, and 32 bytes that were never used before."""

    version_min: int
    version_max: int
    role: int
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Proof:
    """That the sender knows the secret: 32 bytes that depend on both nonces."""

    mac: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The sender believes the proof and speaks this version from now on."""

    version: int


Message: TypeAlias = (
    BufferResponse
    | ErrorResponse
    | PartitionRequest
    | TaskEventRequest
    | CancelPartitionRequest
    | CloseRequest
    | AddCredit
    | ResumeConsumption
    | AckAllUserRecordsProcessed
    | BacklogAnnouncement
    | NewBufferSize
    | SegmentId
    | Hello
    | Proof
    | Ready
    | GateHello
    | PartitionOffer
    | OfferRefused
)
