"""The control protocol: the messages between client, JobManager (JM) and TaskManagers (TM).

Side:   pure.
Rules:  plain data only (msgspec, MessagePack).  Operators and partitioners are opaque blobs, which only a TaskManager
        opens.  Every message about a task has the 40-byte id of its attempt; a message about an unknown attempt is
        ignored.
Units:  times in milliseconds since the epoch, durations in milliseconds, sizes in bytes.
"""

from typing import Any, Final, TypeVar, Union

import msgspec

from flowlet.common.job_settings import JobSettings
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import InputGateDescriptor, RestoredState, ResultPartitionDescriptor, SubtaskEntry
from flowlet.messages.program_bundle import ProgramBundle
from flowlet.splits.split_kinds import AnySplit

# It rises with each new or changed message, and with each struct or settings class in one: JobManagers and TaskManagers
# of two versions refuse each other by name.
# How older versions differ:
# 8: parts of checkpoints field by field; 7: deployments and metrics in messages of their own; 5: no pieces of blobs;
# 4: modules in every deployment, other messages about splits, none before the last checkpoint; 3: no shipped files, no
# blocking results; 2: no savepoints, no positions of remote gates; 1: no marks, no signed messages
PROTOCOL_VERSION: Final = 9
TASK_MANAGER_LOST: Final = "TaskManagerLost"  # the exception_type of a FailureInfo
_MessageT = TypeVar("_MessageT", bound=msgspec.Struct)


class ToTaskManager(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM."""


class ToTask(ToTaskManager, frozen=True):
    """JM -> TM: for one attempt, whose task has a row for it in its table of handlers."""

    attempt: bytes


class ToJobManager(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM."""


class FromTask(ToJobManager, frozen=True):
    """TM -> JM: from one attempt, whose job has a row for it in its table of handlers."""

    attempt: bytes


class TaskDeploymentDescriptor(ToTaskManager, frozen=True):
    """JM -> TM: run this subtask; everything that is needed for that."""

    job_id: str
    job_name: str
    vertex_id: str
    task_name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: bytes  # 40 bytes
    chain: bytes
    gates: list[InputGateDescriptor]
    partitions: list[ResultPartitionDescriptor]
    code: ProgramBundle = ProgramBundle()
    settings: JobSettings = JobSettings()
    restored: RestoredState | None = None  # None: it begins anew


class LatencyMetrics(msgspec.Struct, frozen=True):
    """Statistics of the latest latencies from a source to an operator, in milliseconds."""

    name: str  # within the scope of the job, as in Flink
    count: int  # of all values so far
    min: float
    max: float
    mean: float
    stddev: float
    p50: float
    p75: float
    p95: float
    p98: float
    p99: float
    p999: float


class UserMetric(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a metric of a user's function; see ``flowlet.metrics.metricbase.MetricValue``."""

    name: str  # with its groups: ``group.name``
    kind: str  # counter, gauge, meter or distribution
    value: int | float | str | bool | None = None
    rate: float | None = None
    sum: int | float | None = None
    min: int | float | None = None
    max: int | float | None = None


class OperatorMetrics(msgspec.Struct, frozen=True):
    """Metrics of one operator of a task."""

    name: str
    operator_id: str  # 32 hex digits
    num_records_in: int
    num_records_out: int
    num_records_from_the_future: int
    current_input_watermark: int  # the smallest of all inputs
    current_input_watermarks: list[int]  # one per input; empty for a source
    current_output_watermark: int
    latencies: list[LatencyMetrics] = []
    num_lost_committables: int = 0
    user_metrics: list[UserMetric] = []
    num_refused_user_metrics: int = 0  # metrics over the limit of an operator, which are not shown
    num_late_records_dropped: int = 0
    num_unassigned_records_dropped: int = 0
    num_null_records_dropped: int = 0
    num_unparsable_records_dropped: int = 0
    num_schema_records_dropped: int = 0
    num_unparsable_fields_nulled: int = 0


class TaskMetrics(msgspec.Struct, frozen=True):
    """Metrics of one task since its start, under the names of Flink's task metrics."""

    num_records_in: int = 0
    num_records_out: int = 0
    num_bytes_in_local: int = 0
    num_bytes_in_remote: int = 0
    num_buffers_in: int = 0
    num_bytes_out: int = 0
    num_buffers_out: int = 0
    num_credits_granted: int = 0
    accumulated_idle_ms: int = 0
    accumulated_busy_ms: int = 0
    accumulated_back_pressured_ms: int = 0  # soft and hard together
    current_input_watermark: int = -(2**63)
    waiting_for: str | None = None  # the name of the wait of a suspended task
    source_progress: float | None = None  # 0 to 1; None: the source does not know how much there is to read
    accumulated_soft_back_pressured_ms: int = 0  # suspended in the mailbox, because no buffer is available
    accumulated_hard_back_pressured_ms: int = 0  # blocked inside a write, because no buffer is available
    # This and the next three are of the last minute, and add up to 1000 while the task runs.
    idle_ms_per_second: int = 0
    busy_ms_per_second: int = 0
    soft_back_pressured_ms_per_second: int = 0
    hard_back_pressured_ms_per_second: int = 0
    max_soft_back_pressure_ms: int = 0  # the longest single wait of the last 5 s
    max_hard_back_pressure_ms: int = 0
    is_back_pressured: bool = False  # now
    checkpoint_alignment_ms: int = 0  # of the current alignment, else of the last one
    checkpoint_start_delay_ms: int = 0  # from the trigger to the first barrier here
    num_checkpoints: int = 0  # acknowledged
    num_declined_checkpoints: int = 0
    last_checkpoint_id: int = -1  # the last one that was acknowledged; the next three are of this checkpoint
    last_checkpoint_sync_ms: int = 0
    last_checkpoint_async_ms: int = 0
    last_checkpoint_in_flight_bytes: int = 0
    operators: list[OperatorMetrics] = []
    watermark_held_back_by: list[str] = []  # input channels that alone have held back the watermark for a minute
    watermark_alignment_drift_ms: int | None = None  # how far a source is ahead of its allowed watermark


class FailureInfo(msgspec.Struct, frozen=True):
    """Why a task failed, as text: the user's exception is not pickled."""

    exception_type: str
    message: str
    traceback: str = ""  # the user's frames; for an error of the engine all frames
    operator: str | None = None
    task_name: str = ""
    subtask: int = -1
    record_preview: str | None = None
    tm_id: str = ""
    timestamp_ms: int = 0
    suppresses_restarts: bool = False  # a restart would only fail again, as with a state that cannot be restored


def exception_type_of(kind: type[BaseException]) -> str:
    """Return the name of an exception's class; with its module, unless that is of no use."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


class RegisterTaskManager(ToJobManager, frozen=True):
    """TM -> JM: the first message on the WebSocket: who it is, and where its data port is."""

    tm_id: str
    num_slots: int
    data_host: str
    data_port: int
    pid: int
    protocol_version: int = PROTOCOL_VERSION

    def __str__(self) -> str:
        return f"TaskManager {self.tm_id} ({self.data_host}:{self.data_port}, pid {self.pid})"


class Registered(ToTaskManager, frozen=True):
    """JM -> TM: the registration is accepted."""

    jm_id: str
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int = 50_000  # so long the TaskManager waits for a sign of life from the JobManager


class RegistrationRefused(ToTaskManager, frozen=True):
    """JM -> TM: the registration is refused; the connection closes."""

    reason: str


class TaskManagerHeartbeat(ToJobManager, frozen=True):
    """TM -> JM, at every interval: the TaskManager is alive, and these are the metrics of its tasks."""

    tm_id: str
    tasks: dict[bytes, TaskMetrics]  # by attempt


class JobManagerHeartbeat(ToTaskManager, frozen=True):
    """JM -> TM, after a heartbeat, once per interval: the JobManager is alive."""


class TaskStateChanged(FromTask, frozen=True):
    """TM -> JM: a task is in a new state; with a terminal state come its final metrics."""

    state: ExecutionState
    failure: FailureInfo | None = None
    metrics: TaskMetrics | None = None


class TaskStuck(FromTask, frozen=True):
    """TM -> JM: a cancelled task has not ended; ``stack`` shows where its thread stands, the user's calls alone if
    there are any.
    """

    waited_ms: int  # since it was cancelled
    operator: str | None  # the operator whose function the thread is in, if that is known
    stack: str


class TaskManagerEnding(ToJobManager, frozen=True):
    """TM -> JM, the last message: the TaskManager is about to end, and its tasks with it."""

    reason: str


class CancelTask(ToTask, frozen=True):
    """JM -> TM: cancel this attempt."""


class ReleaseResults(ToTaskManager, frozen=True):
    """JM -> TM: nobody reads the results of this attempt, which has finished, any more."""

    attempt: bytes


class SourceWatermarkReported(FromTask, frozen=True):
    """TM -> JM: the watermark of an aligned source; 2**63 - 1: no other source needs to wait for it."""

    timestamp: int


class AllowSourceWatermark(ToTask, frozen=True):
    """JM -> TM: the source must not read on while its watermark is above ``max_allowed``."""

    max_allowed: int


class SplitsRequested(FromTask, frozen=True):
    """TM -> JM: a source asks for splits."""


class AddSplits(ToTask, frozen=True):
    """JM -> TM: splits for the source of this task, as it asked."""

    splits: list[AnySplit]
    waiting_bytes: int  # the size of the splits that are still unassigned


class NoMoreSplits(ToTask, frozen=True):
    """JM -> TM: no splits are left for the source of this task."""


class GateCounts(msgspec.Struct, frozen=True):
    """The numbers of partitions that one subtask of a remote gate has received so far."""

    num_open: int = 0
    num_completed: int = 0  # attempts
    num_aborted: int = 0  # attempts
    num_refused: int = 0  # offers


class CountedPartition(msgspec.Struct, frozen=True):
    """A partition, as its producer names it; ``job`` and ``epoch`` name the write that it belongs to."""

    job: str
    epoch: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} (epoch {self.epoch}) of {self.job!r}"


class GateReported(FromTask, frozen=True):
    """TM -> JM: in this subtask's gate a partition, or an attempt to push one, has ended."""

    counts: GateCounts
    completed: list[CountedPartition] = []  # since the last report


class GateOutcome(msgspec.Struct, frozen=True):
    """JM -> producer: the outcome of a partition and of the gate's job."""

    status: str  # of the job
    is_counted: bool  # every subtask has completed the partition, and the job has not failed
    cause: str | None  # of the job's failure
    is_finishing: bool = False  # the gate takes no more partitions


class FinishGate(ToTask, frozen=True):
    """JM -> TM: the gate of this task accepts no more offers, and ends after the open partitions."""


class MarkRequested(FromTask, frozen=True):
    """TM -> JM: a subtask of a remote gate wants a completion mark with a higher number than ``after``, the last one
    that it emitted.
    """

    after: int


class EmitMark(ToTask, frozen=True):
    """JM -> TM: this source emits the completion mark behind everything that it has emitted."""

    number: int


class MarkPassed(FromTask, frozen=True):
    """TM -> JM: the completion mark has passed all operators of this task, and everything before it was processed."""

    number: int


class MarkCompleted(ToTask, frozen=True):
    """JM -> TM: the completion mark has passed every task of the job; for the subtasks of remote gates."""

    number: int


class TriggerCheckpoint(ToTask, frozen=True):
    """JM -> TM: take a checkpoint; for sources, and for tasks all of whose inputs have ended.

    The job's settings say how.

    ``snapshot_type``: the value of a ``SnapshotType``.  ``location``: the directory of a savepoint, else empty.
    """

    checkpoint_id: int
    timestamp_ms: int
    snapshot_type: int = 0
    location: str = ""


class CheckpointCompleted(ToTask, frozen=True):
    """JM -> TM: every subtask has acknowledged the checkpoint, and its manifest is written."""

    checkpoint_id: int


class CheckpointAborted(ToTask, frozen=True):
    """JM -> TM: the checkpoint has failed."""

    checkpoint_id: int


class CheckpointDurations(msgspec.Struct, frozen=True):
    """The times of one subtask's part of a checkpoint, in milliseconds, and its data in flight, in bytes."""

    start_delay_ms: int = 0
    alignment_ms: int = 0
    sync_ms: int = 0
    async_ms: int = 0
    bytes_processed_during_alignment: int = 0
    bytes_persisted_during_alignment: int = 0
    is_unaligned: bool = False


class CheckpointAcknowledged(FromTask, frozen=True):
    """TM -> JM: this subtask's part of the checkpoint is written and synced."""

    checkpoint_id: int
    part: SubtaskEntry
    durations: CheckpointDurations = CheckpointDurations()


class CheckpointDeclined(FromTask, frozen=True):
    """TM -> JM: this subtask could not take its part; ``reason`` is the name of a ``CheckpointFailureReason``."""

    checkpoint_id: int
    reason: str
    message: str


class FinalCheckpointAwaited(FromTask, frozen=True):
    """TM -> JM: this subtask has processed everything, and ends with the next checkpoint."""


CheckpointReport = CheckpointAcknowledged | CheckpointDeclined | FinalCheckpointAwaited
CheckpointOrder = TriggerCheckpoint | CheckpointCompleted | CheckpointAborted
MarkReport = MarkRequested | MarkPassed
MarkOrder = EmitMark | MarkCompleted
SourceOrder = AllowSourceWatermark | AddSplits | NoMoreSplits | MarkOrder


def union_of(base: type[_MessageT]) -> Any:
    """Return the type of the messages that derive from ``base``, for a decoder."""
    return Union[tuple(kinds_of(base))]  # noqa: UP007 - of as many as there are


def kinds_of(base: type[_MessageT]) -> list[type[_MessageT]]:
    """List the messages that derive from ``base``: every class from which no other one derives."""
    derived = base.__subclasses__()
    return [kind for each in derived for kind in kinds_of(each)] if derived else [base]
