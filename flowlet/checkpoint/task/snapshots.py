"""The parts of one subtask's checkpoint, and its metrics.

``RecoveredStream``: the data in flight of one channel of a checkpoint, for the task that reads it now.
``HeadedBytes``: how the parts are written.

Side:   pure.
Units:  timestamps in milliseconds of the wall clock, durations in nanoseconds, sizes in bytes.
Source: Flink ``OperatorSnapshotFutures``, ``TaskStateSnapshot``, ``ChannelStateWriteResult``.
Absent: handles to files: without a storage, state is kept as objects.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

import msgspec

from flowlet.checkpoint.task.barrier_orders import Channel
from flowlet.errors import StateRestoreError
from flowlet.records import Chunk
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot, OperatorStateSnapshot
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class RecoveredStream:
    """The data that was under way from one former producer to one former consumer: a whole number of elements.

    Args:
        gate: the index of the gate that would have got it.
        channel: the index of the stream's channel in that gate; None: the channel is no more, so only the records
            count.
        pieces: the serialized elements, cut anywhere.
        select: which of the records are this subtask's; None: all.
        operator: the index of the operator in the chain that reads it; above 0, the gate is no more.
        find_class: gives the running class for one that the records of another program refer to; None: this program
            wrote them.
    """

    gate: int
    channel: int | None
    pieces: tuple[bytes, ...]
    select: Callable[[Chunk], Chunk] | None = None
    operator: int = 0
    find_class: Callable[[bytes], Any] | None = None


@dataclass(slots=True)
class AlignmentMetrics:
    """Metrics of the alignment of one checkpoint.

    Written by the task thread; complete when all barriers have arrived, for an unaligned checkpoint after its snapshot.
    """

    start_delay_ms: int = 0
    duration_ns: int = 0
    bytes_processed: int = 0


@dataclass(frozen=True, slots=True)
class ChannelStateSnapshot:
    """The in-flight data per input channel and per output subpartition, in stream order."""

    inputs: Mapping[Channel, tuple[bytes, ...]] = field(default_factory=dict)
    outputs: Mapping[Channel, tuple[bytes, ...]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """The size of the data."""
        return sum(len(each) for part in (self.inputs, self.outputs) for pieces in part.values() for each in pieces)


NO_CHANNEL_DATA = ChannelStateSnapshot()


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator; immutable.

    Args:
        own: the result of the operator's ``snapshot_state``; None: it has no state.
        timers: by key group, then by the name of the timer service.
        version: ``state_version`` of the operator that gave ``own``.
        keyed: the keyed state of the operator's functions, by key group; None: they have none.  A sequence, only in a
            restore: those of former subtasks, of which the back end takes its own key groups.
        by_subtask: the operator state of its functions; None: they have none.
    """

    own: object | None = None
    timers: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    version: int = 1
    keyed: KeyedStateSnapshot | IncrementalSnapshot | Sequence[KeyedStateSnapshot | IncrementalSnapshot] | None = None
    by_subtask: OperatorStateSnapshot | None = None

    def check_version(self, operator: str, version: int) -> None:
        """Raise StateRestoreError unless the operator reads this version."""
        # Without state of its own an operator may have any version.
        if self.own is not None and self.version != version:
            raise StateRestoreError(
                f"the state of operator {operator!r} has version {self.version}, this flowlet reads version {version}; "
                "restore it with the flowlet that wrote it"
            )


@dataclass(frozen=True, slots=True)
class OperatorSnapshotFuture:
    """The result of the synchronous part for one operator.

    Args:
        finish: the asynchronous part, which returns the state; runs on the snapshot pool and must not use what the
            operator changes.
        discard: releases what the synchronous part holds, instead of or after ``finish``.
    """

    finish: Callable[[], OperatorState]
    discard: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """The state that a subtask acknowledges.

    Args:
        operators: their states by operator id.
        channels: the in-flight data.
        is_finished: whether the operators have finished; the subtask is then not run again after a restore.
        location: the directory of a savepoint, where the state is to be kept; empty: where the job keeps its
            checkpoints.
    """

    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    channels: ChannelStateSnapshot = NO_CHANNEL_DATA
    is_finished: bool = False
    location: str = ""

    @property
    def has_union_state(self) -> bool:
        """Whether every subtask needs this one's state at a restart."""
        return any(each.by_subtask is not None and each.by_subtask.has_union for each in self.operators.values())


_START: Final = struct.Struct(">4sHI")
_FORMAT_VERSION: Final = 1
Head = TypeVar("Head")


@dataclass(eq=False, slots=True)
class HeadedBytes(Generic[Head]):
    """Bytes that begin with a magic number (4 bytes), the version (u16), the size of the head (u32) and the head.

    Args:
        magic: the number.
        decoder: of the head, a ``msgspec.Struct``.
        name: of the content, for messages.
        full_name: of the content, for the message that the bytes are something else.
    """

    _magic: bytes
    _decoder: msgspec.msgpack.Decoder[Head]
    _name: str
    _full_name: str

    def joined(self, head: Head, pieces: Iterable[bytes | memoryview]) -> bytes:
        """Join the head and the pieces that it lists."""
        encoded = msgspec.msgpack.encode(head)
        # One copy of each piece: they may be as large as the memory allows.
        return b"".join((_START.pack(self._magic, _FORMAT_VERSION, len(encoded)), encoded, *pieces))

    def head_of(self, content: bytes) -> tuple[Head, int]:
        """Decode the head; returns it, and the position of the first piece.

        Raises:
            StateRestoreError: the bytes are of another version, or of another kind.
        """
        # Before anything is decoded: the bytes may be of any file.
        if len(content) < _START.size or not content.startswith(self._magic):
            raise StateRestoreError(f"the bytes are no {self._full_name}; restore another checkpoint")
        # Outside of the head, in a place that no version moves.
        _, version, size = _START.unpack_from(content)
        # A later format may have another head: the decoder would read nonsense.
        if version != _FORMAT_VERSION:
            raise StateRestoreError(
                f"the {self._name} has format version {version}, this flowlet reads {_FORMAT_VERSION}: restore it with "
                "the flowlet that wrote it"
            )
        end = _START.size + size
        try:
            return self._decoder.decode(content[_START.size : end]), end
        except msgspec.DecodeError as error:
            raise StateRestoreError(
                f"the head of the {self._name} cannot be read ({error}); restore another checkpoint"
            ) from error
