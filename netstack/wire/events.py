"""The events of a subpartition, and their bytes.

Side:       pure.
Invariants: a decoded event encodes to its bytes again.  Bytes behind the event are refused, which Flink does not do,
            except the zeros that Flink leaves at the end of the arrays of barriers and watermarks and sends when it
            broadcasts them.
Units:      timestamps and timeouts in milliseconds.
Source:     Flink 2.3 ``EventSerializer`` (i32 type, then the fields, big endian), ``CheckpointOptions``,
            ``WatermarkEvent`` and ``Buffer.DataType.getDataType``; the tests hold bytes that Flink's own classes wrote.
"""

from collections.abc import Callable
from dataclasses import field, replace
from enum import IntEnum, unique
from functools import partial
from struct import Struct
from struct import error as struct_error
from typing import Final, TypeAlias, TypeVar

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.late import dataclass
from netstack.wire.java import FieldsOf, decode_utf, encode_utf
from netstack.wire.messages import DataType

NO_ALIGNED_TIMEOUT: Final = 2**63 - 1

_TYPE = Struct(">i")
_BARRIER_START = Struct(">iqqB")
_LOCATION_BYTES = Struct(">i")
_BARRIER_END = Struct(">Bq")
_WATERMARK_KIND = Struct(">Bi")
_BYTE = Struct(">B")
_LONG = Struct(">q")
_ANNOUNCEMENT_START = Struct(">ii")
_BARRIER = 1
_OTHER = 3
_ANNOUNCEMENT = 6
_WATERMARK = 11
# Flink writes a barrier to an array of this size plus its location, and other events to arrays of at least 128 bytes.
_BARRIER_ARRAY_BYTES = 38
_LEAST_ARRAY_BYTES = 128
_NO_LOCATION = -1
_LONG_WATERMARK = 0
_BOOL_WATERMARK = 1


@unique
class StopMode(IntEnum):
    """Whether windows and timers fire at the end of the data (Flink ``StopMode``)."""

    DRAIN = 0
    NO_DRAIN = 1


@unique
class SnapshotType(IntEnum):
    """The kind of snapshot that a barrier asks for; the values are Flink's."""

    CHECKPOINT = 0
    SAVEPOINT = 1
    SAVEPOINT_SUSPEND = 2
    SAVEPOINT_TERMINATE = 3
    FULL_CHECKPOINT = 4

    @property
    def is_savepoint(self) -> bool:
        """Whether a user asked for it and owns it; a savepoint is never unaligned."""
        return self in _SAVEPOINTS


_SAVEPOINTS = frozenset({SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE})


@unique
class SavepointFormat(IntEnum):
    """The layout of a savepoint (Flink ``SavepointFormatType``)."""

    CANONICAL = 0
    NATIVE = 1


@unique
class Alignment(IntEnum):
    """How a barrier treats the buffers before it; the values are the ordinals of Flink's ``AlignmentType``."""

    AT_LEAST_ONCE = 0
    ALIGNED = 1
    UNALIGNED = 2
    FORCED_ALIGNED = 3
    """Aligned, because the channel does not support an unaligned one."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How a checkpoint is taken, and where it is stored (``location`` None: the default place).

    Raises:
        LocalProtocolError: the fields contradict each other.
    """

    type: SnapshotType = SnapshotType.CHECKPOINT
    savepoint_format: SavepointFormat | None = None
    location: bytes | None = None
    alignment: Alignment = Alignment.ALIGNED
    aligned_timeout_ms: int = NO_ALIGNED_TIMEOUT

    def __post_init__(self) -> None:
        if self.type.is_savepoint != (self.savepoint_format is not None):
            raise LocalProtocolError(f"a {self.type.name} with the savepoint format {self.savepoint_format}")
        if self.type.is_savepoint and self.alignment is Alignment.UNALIGNED:
            raise LocalProtocolError("a savepoint cannot be unaligned")
        if self.alignment is Alignment.UNALIGNED and self.aligned_timeout_ms != NO_ALIGNED_TIMEOUT:
            raise LocalProtocolError(f"an unaligned checkpoint has no timeout, got {self.aligned_timeout_ms} ms")
        if self.location == b"":
            raise LocalProtocolError("the location of a checkpoint has no bytes")

    @property
    def needs_alignment(self) -> bool:
        """Whether a channel is blocked behind its barrier until the barriers of all others have arrived."""
        return self.alignment in (Alignment.ALIGNED, Alignment.FORCED_ALIGNED)

    @property
    def is_unaligned(self) -> bool:
        """Whether the barrier overtakes the buffers before it."""
        return self.alignment is Alignment.UNALIGNED

    @property
    def is_timeoutable(self) -> bool:
        """Whether the barrier becomes unaligned after ``aligned_timeout_ms``."""
        return self.alignment is Alignment.ALIGNED and 0 < self.aligned_timeout_ms < NO_ALIGNED_TIMEOUT

    @property
    def needs_channel_state(self) -> bool:
        """Whether the checkpoint contains, or may contain, buffers in flight."""
        return self.is_unaligned or self.is_timeoutable

    def as_unaligned(self) -> "CheckpointOptions":
        """Return these options as they are after the alignment timed out."""
        return replace(self, alignment=Alignment.UNALIGNED, aligned_timeout_ms=NO_ALIGNED_TIMEOUT)

    def with_unaligned_unsupported(self) -> "CheckpointOptions":
        """Return the options for a channel whose buffers in flight cannot be stored: FORCED_ALIGNED if they would be
        needed.
        """
        if not self.needs_channel_state:
            return self
        # The timeout stays: by it ``with_unaligned_supported`` tells which alignment this one replaces.
        return replace(self, alignment=Alignment.FORCED_ALIGNED)

    def with_unaligned_supported(self) -> "CheckpointOptions":
        """Undo ``with_unaligned_unsupported``."""
        if self.alignment is not Alignment.FORCED_ALIGNED:
            return self
        if self.aligned_timeout_ms == NO_ALIGNED_TIMEOUT:
            return self.as_unaligned()
        return replace(self, alignment=Alignment.ALIGNED)


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last event of a subpartition; then the channel can be released."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The last record was sent; other events may follow."""

    mode: StopMode


@dataclass(frozen=True, slots=True)
class EndOfSuperstep:
    """One round of an iteration is over."""


@dataclass(frozen=True, slots=True)
class EndOfOutputChannelState:
    """The producer has sent its recovered data in flight again."""


@dataclass(frozen=True, slots=True)
class EndOfInputChannelState:
    """The consumer has read its recovered data in flight again."""


@dataclass(frozen=True, slots=True)
class EndOfSegment:
    """A segment of tiered storage is complete."""


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Separates the records of the checkpoint, before it, from the later ones."""

    checkpoint_id: int
    timestamp_ms: int
    options: CheckpointOptions = field(default_factory=CheckpointOptions)

    def as_unaligned(self) -> "CheckpointBarrier":
        """Return this barrier as it is after its alignment timed out."""
        return self if self.options.is_unaligned else replace(self, options=self.options.as_unaligned())


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """The checkpoint was aborted; its barrier will not arrive."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SubtaskConnectionDescriptor:
    """The buffers that follow were in flight between these two subtasks before the job was rescaled."""

    input_subtask: int
    output_subtask: int


@dataclass(frozen=True, slots=True)
class RecoveryMetadata:
    """The subpartition of the last recovered buffer."""

    final_subpartition: int


@dataclass(frozen=True, slots=True)
class WatermarkEvent:
    """A generalized watermark: a long or a boolean."""

    identifier: str
    value: int | bool
    is_aligned: bool


@dataclass(frozen=True, slots=True)
class OtherEvent:
    """An event of a class unknown to this package, such as a task event: the class name and the bytes that the class
    wrote.

    If Flink broadcast the event, ``body`` may end with zeros that are not part of it; only its class can tell.
    """

    class_name: str
    body: bytes


@dataclass(frozen=True, slots=True)
class EventAnnouncement:
    """Announces, with priority, that ``event`` is queued behind other buffers under ``sequence_number``."""

    sequence_number: int
    event: "AnnouncedEvent"


AnnouncedEvent: TypeAlias = (
    EndOfPartition
    | EndOfData
    | EndOfSuperstep
    | EndOfOutputChannelState
    | EndOfInputChannelState
    | EndOfSegment
    | CheckpointBarrier
    | CancelCheckpointMarker
    | SubtaskConnectionDescriptor
    | RecoveryMetadata
    | WatermarkEvent
    | OtherEvent
)
Event: TypeAlias = AnnouncedEvent | EventAnnouncement


E = TypeVar("E", bound=IntEnum)


def _member(name: str, kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        raise RemoteProtocolError(f"{name} with the unknown {kind.__name__} {number}") from None


# Event type -> its fields, if all of them have a fixed size.
_PLAIN: Final = {
    0: FieldsOf[AnnouncedEvent](EndOfPartition),
    2: FieldsOf[AnnouncedEvent](EndOfSuperstep),
    4: FieldsOf[AnnouncedEvent](CancelCheckpointMarker, "checkpoint_id:q"),
    5: FieldsOf[AnnouncedEvent](EndOfOutputChannelState),
    7: FieldsOf[AnnouncedEvent](SubtaskConnectionDescriptor, "input_subtask:i output_subtask:i"),
    8: FieldsOf[AnnouncedEvent](EndOfData, "mode:B", mode=partial(_member, "EndOfData", StopMode)),
    9: FieldsOf[AnnouncedEvent](EndOfSegment),
    10: FieldsOf[AnnouncedEvent](RecoveryMetadata, "final_subpartition:i"),
    12: FieldsOf[AnnouncedEvent](EndOfInputChannelState),
}
_NUMBERS: Final[dict[object, int]] = {fields.kind: number for number, fields in _PLAIN.items()}


def serialize_event(event: Event) -> bytes:
    """Encode ``event`` in Flink's layout.

    Raises:
        LocalProtocolError: a number or a text does not fit its field.
    """
    try:
        return _serialize(event)
    except struct_error as error:
        raise LocalProtocolError(f"{event!r} cannot be encoded: {error}") from error


def _serialize(event: Event) -> bytes:
    match event:
        case CheckpointBarrier():
            return _serialize_barrier(event)
        case OtherEvent(class_name, body):
            return _TYPE.pack(_OTHER) + encode_utf(class_name) + body
        case EventAnnouncement(sequence_number, announced):
            return _ANNOUNCEMENT_START.pack(_ANNOUNCEMENT, sequence_number) + _serialize(announced)
        case WatermarkEvent():
            return _serialize_watermark(event)
        case _:
            number = _NUMBERS[type(event)]
            return _TYPE.pack(number) + _PLAIN[number].pack(event)


def _serialize_barrier(barrier: CheckpointBarrier) -> bytes:
    options = barrier.options
    start = _BARRIER_START.pack(_BARRIER, barrier.checkpoint_id, barrier.timestamp_ms, options.type)
    if options.savepoint_format is not None:
        start += bytes([options.savepoint_format])
    location = options.location
    end = _BARRIER_END.pack(options.alignment, options.aligned_timeout_ms)
    if location is None:
        return start + _LOCATION_BYTES.pack(_NO_LOCATION) + end
    return start + _LOCATION_BYTES.pack(len(location)) + location + end


def _serialize_watermark(event: WatermarkEvent) -> bytes:
    is_bool = isinstance(event.value, bool)
    kind = _WATERMARK_KIND.pack(event.is_aligned, _BOOL_WATERMARK if is_bool else _LONG_WATERMARK)
    value = (_BYTE if is_bool else _LONG).pack(event.value)
    return _TYPE.pack(_WATERMARK) + encode_utf(event.identifier) + kind + value


# ---------------------------------------------------------------- reading


def deserialize_event(view: memoryview) -> Event:
    """Decode the event in ``view``.

    Raises:
        RemoteProtocolError: the type or a field is unknown or out of range, or bytes are missing or left over.
    """
    if len(view) < _TYPE.size:
        raise RemoteProtocolError(f"an event of {len(view)} bytes has no type")
    (number,) = _TYPE.unpack_from(view)
    read = _READERS.get(number)
    if read is not None:
        return read(view)
    fields = _PLAIN.get(number)
    if fields is None:
        raise RemoteProtocolError(f"unknown event type {number}")
    num_bytes = _TYPE.size + fields.num_bytes
    if len(view) != num_bytes:
        raise RemoteProtocolError(f"{fields.kind.__name__} has {len(view)} bytes, expected {num_bytes}")
    return fields.unpack(view[_TYPE.size :])


def _read_barrier(view: memoryview) -> CheckpointBarrier:
    _, checkpoint_id, timestamp_ms, number = _unpack_start("CheckpointBarrier", _BARRIER_START, view, 0)
    at = _BARRIER_START.size
    snapshot = _member("CheckpointBarrier", SnapshotType, number)
    savepoint_format = None
    if snapshot.is_savepoint:
        (number,) = _unpack_start("CheckpointBarrier", _BYTE, view, at)
        savepoint_format = _member("CheckpointBarrier", SavepointFormat, number)
        at += 1
    (num_location_bytes,) = _unpack_start("CheckpointBarrier", _LOCATION_BYTES, view, at)
    at += _LOCATION_BYTES.size
    location = None
    if num_location_bytes != _NO_LOCATION:
        if not 0 < num_location_bytes <= len(view) - at:
            raise RemoteProtocolError(
                f"CheckpointBarrier announces a location of {num_location_bytes} bytes, {len(view) - at} bytes follow"
            )
        location = bytes(view[at : at + num_location_bytes])
        at += num_location_bytes
    view = _without_filling(view, at + _BARRIER_END.size, _BARRIER_ARRAY_BYTES + len(location or b""))
    number, timeout_ms = _unpack("the rest of CheckpointBarrier", _BARRIER_END, view[at:])
    alignment = _member("CheckpointBarrier", Alignment, number)
    try:
        options = CheckpointOptions(snapshot, savepoint_format, location, alignment, timeout_ms)
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"CheckpointBarrier {checkpoint_id}: {error}") from error
    return CheckpointBarrier(checkpoint_id, timestamp_ms, options)


def _read_other(view: memoryview) -> OtherEvent:
    class_name, num_bytes = decode_utf(view[_TYPE.size :])
    return OtherEvent(class_name, bytes(view[_TYPE.size + num_bytes :]))


def _read_announcement(view: memoryview) -> EventAnnouncement:
    _, sequence_number = _unpack_start("EventAnnouncement", _ANNOUNCEMENT_START, view, 0)
    announced = view[_ANNOUNCEMENT_START.size :]
    # Checked before it is decoded: a peer could nest announcements deeper than Python's recursion limit.
    if announced[: _TYPE.size] == _TYPE.pack(_ANNOUNCEMENT):
        raise RemoteProtocolError(f"EventAnnouncement {sequence_number} announces an announcement")
    event = deserialize_event(announced)
    assert not isinstance(event, EventAnnouncement), "checked above"
    return EventAnnouncement(sequence_number, event)


def _read_watermark(view: memoryview) -> WatermarkEvent:
    identifier, num_bytes = decode_utf(view[_TYPE.size :])
    at = _TYPE.size + num_bytes
    is_aligned, kind = _unpack_start("WatermarkEvent", _WATERMARK_KIND, view, at)
    at += _WATERMARK_KIND.size
    if len(view) >= _LEAST_ARRAY_BYTES:
        view = _without_filling(view, at + (1 if kind == _BOOL_WATERMARK else _LONG.size), len(view))
    rest = view[at:]
    if is_aligned > 1:
        raise RemoteProtocolError(f"WatermarkEvent {identifier!r} with the flag {is_aligned}")
    if kind == _LONG_WATERMARK:
        return WatermarkEvent(identifier, _unpack("the value of WatermarkEvent", _LONG, rest)[0], is_aligned == 1)
    if kind != _BOOL_WATERMARK:
        raise RemoteProtocolError(f"WatermarkEvent {identifier!r} of the unknown kind {kind}")
    (value,) = _unpack("the value of WatermarkEvent", _BYTE, rest)
    if value > 1:
        raise RemoteProtocolError(f"WatermarkEvent {identifier!r} with the condition {value}")
    return WatermarkEvent(identifier, value == 1, is_aligned == 1)


_READERS: Final[dict[int, Callable[[memoryview], Event]]] = {
    _BARRIER: _read_barrier,
    _OTHER: _read_other,
    _ANNOUNCEMENT: _read_announcement,
    _WATERMARK: _read_watermark,
}


def _unpack(name: str, layout: Struct, view: memoryview) -> tuple[int, ...]:
    if len(view) != layout.size:
        raise RemoteProtocolError(f"{name} has {len(view)} bytes, expected {layout.size}")
    return layout.unpack(view)


def _unpack_start(name: str, layout: Struct, view: memoryview, at: int) -> tuple[int, ...]:
    if len(view) < at + layout.size:
        raise RemoteProtocolError(f"{name} has {len(view)} bytes, expected at least {at + layout.size}")
    return layout.unpack_from(view, at)


def _without_filling(view: memoryview, num_bytes: int, num_array_bytes: int) -> memoryview:
    """Return ``view`` cut to ``num_bytes`` if it has ``num_array_bytes`` bytes and all behind the cut are zero; else
    ``view``.
    """
    if len(view) == num_array_bytes and not any(view[num_bytes:]):
        return view[:num_bytes]
    return view


# ---------------------------------------------------------------- the data type of an event's buffer


_DATA_TYPES: Final[dict[object, DataType]] = {
    EndOfPartition: DataType.END_OF_PARTITION,
    EndOfData: DataType.END_OF_DATA,
    EndOfOutputChannelState: DataType.RECOVERY_COMPLETION,
}


def event_data_type(event: Event, *, has_priority: bool = False) -> DataType:
    """Return the data type of the buffer of ``event``; it tells the receiver the kind of event without decoding it.

    ``EndOfSegment`` and ``RecoveryMetadata`` are EVENT_BUFFER, as in Flink, whose tiered storage and recovery set the
    type themselves.
    """
    if has_priority:
        return DataType.PRIORITIZED_EVENT_BUFFER
    match event:
        case WatermarkEvent():
            return DataType.ALIGNED_WATERMARK_EVENT if event.is_aligned else DataType.UNALIGNED_WATERMARK_EVENT
        # Before the aligned one: it needs alignment as well.
        case CheckpointBarrier(options=options) if options.is_timeoutable:
            return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
        case CheckpointBarrier(options=options) if options.needs_alignment:
            return DataType.ALIGNED_CHECKPOINT_BARRIER
        case _:
            return _DATA_TYPES.get(type(event), DataType.EVENT_BUFFER)
