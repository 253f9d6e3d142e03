"""What a checkpoint of one subtask consists of, and what is known about it.

Side:   pure.
Units:  timestamps in milliseconds of the wall clock, durations in nanoseconds, sizes in bytes.
Source: Flink ``CheckpointMetaData``, ``CheckpointMetrics``, ``OperatorSnapshotFutures``, ``TaskStateSnapshot`` and
        ``ChannelStateWriteResult``.
Absent: handles to files: state is held as it is until there is a storage.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flowlet.checkpoint.barrier_orders import Channel


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Which checkpoint, when the coordinator triggered it, and when the task learnt of it."""

    checkpoint_id: int
    timestamp_ms: int
    receive_timestamp_ms: int


@dataclass(slots=True)
class AlignmentMetrics:
    """How long the barriers of one checkpoint took.

    Written by the task thread; complete when all barriers are here, which for an unaligned checkpoint is after the snapshot was taken.
    """

    start_delay_ns: int = 0
    duration_ns: int = 0
    bytes_processed: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointMetrics:
    """What one subtask's checkpoint cost."""

    start_delay_ns: int = 0
    alignment_duration_ns: int = 0
    bytes_processed_during_alignment: int = 0
    bytes_persisted_during_alignment: int = 0
    sync_duration_ns: int = 0
    async_duration_ns: int = 0
    is_unaligned: bool = False


@dataclass(frozen=True, slots=True)
class ChannelStateSnapshot:
    """The data in flight: per input channel and per subpartition of an output, in the order of the stream."""

    inputs: Mapping[Channel, tuple[bytes, ...]] = field(default_factory=dict)
    outputs: Mapping[Channel, tuple[bytes, ...]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """How much data that is."""
        return sum(len(each) for part in (self.inputs, self.outputs) for pieces in part.values() for each in pieces)


NO_CHANNEL_DATA = ChannelStateSnapshot()


def _do_nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class OperatorState:
    """What one operator needs to go on from a checkpoint; nobody changes it any more.

    Args:
        own: what ``snapshot_state`` of the operator gave; None: nothing.
        timers: by key group, then by the name of the timer service.
        version: ``state_version`` of the operator that gave ``own``.
    """

    own: object | None = None
    timers: Mapping[int, Mapping[str, object]] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """One operator after the synchronous part.

    Args:
        finish: the asynchronous part, on a thread of the snapshot pool; returns the state.  It must not touch what the operator goes on
            changing.
        discard: gives up what the synchronous part holds, instead of or after ``finish``.
    """

    finish: Callable[[], object]
    discard: Callable[[], None] = _do_nothing


@dataclass(frozen=True, slots=True)
class SubtaskState:
    """What a subtask acknowledges.

    Args:
        operators: state by operator id (``OperatorState``).
        channels: data in flight.
        is_finished: the subtask had seen the end of its data and finished its operators: it is not run again after a restore.
    """

    operators: Mapping[str, object] = field(default_factory=dict)
    channels: ChannelStateSnapshot = NO_CHANNEL_DATA
    is_finished: bool = False
