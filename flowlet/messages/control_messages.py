"""The control protocol: the messages between client, JobManager (JM) and TaskManagers (TM).

Side:   pure.
Rules:  plain data only (msgspec, MessagePack).  Operators and partitioners are opaque blobs, which only a TaskManager
        opens.  Every message about a task has the 40-byte id of its attempt; a message about an unknown attempt is
        ignored.
Units:  times in milliseconds since the epoch, durations in milliseconds, sizes in bytes.
"""

from typing import Any, Final, NamedTuple, TypeVar, Union

import msgspec

from flowlet.common.job_settings import JobSettings
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.program_bundle import ProgramBundle
from flowlet.splits.split_kinds import AnySplit, SplitSet

# It rises with each new or changed message: JobManagers and TaskManagers of two versions refuse each other by name.
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


class StateHandle(msgspec.Struct, frozen=True):
    """The place of a part of a checkpoint: a file of the checkpoint's storage, or, if it is small, ``inline``."""

    num_bytes: int
    sha256: bytes
    path: str | None = None  # within the storage of the job; None: the state is ``inline``
    inline: bytes = b""


class SubtaskEntry(msgspec.Struct, frozen=True):
    """A subtask's part of a checkpoint: from its task into the manifest, and to the tasks that begin with it."""

    vertex_id: str
    subtask: int
    state: StateHandle | None = None  # of its operators; None: they have none
    is_finished: bool = False  # its operators had finished, and do not run again
    channels: StateHandle | None = None  # its data in flight, of inputs and outputs; None: there was none
    # Files that earlier or later checkpoints use, too, and that ``state`` names; they are not removed with this one.
    shared: list[StateHandle] = []
    has_union_state: bool = False  # every subtask needs this part at a restart
    # All state belongs to keys: with another parallelism only subtasks with some of its key groups need it.
    is_by_key: bool = False
    operators: list[str] = []  # the ids of the operators that have state, in hex


class CheckpointPlace(NamedTuple):
    """The place of a checkpoint: below a directory of its job, or a ``savepoint``, which is a directory of its own."""

    directory: str
    job_id: str
    checkpoint_id: int
    savepoint: str = ""

    def __str__(self) -> str:
        return self.savepoint or f"{self.directory.rstrip('/')}/{self.job_id}/chk-{self.checkpoint_id}"


class RestoredVertex(msgspec.Struct, frozen=True):
    """A vertex of the checkpoint that had some operators of the subtask's vertex."""

    parallelism: int
    operators: list[str]  # their ids, in hex; empty: those of the subtask
    parts: list[SubtaskEntry]  # only those with state or data in flight that the subtask may need
    finished: list[int] = []  # subtasks that had read and processed everything, and whose share others take


class RestoredEdge(msgspec.Struct, frozen=True):
    """The data in flight of one input of an operator: the part that its former producers had in their partition
    ``output`` (an index), by subtask.

    The part that its former consumers had in their gate ``gate`` is in the ``channels`` of ``consumers`` or, if these
    are None, of the first of ``RestoredState.vertices``.
    """

    edge_id: str  # of the edge that leads to the operator now; empty: it is inside a chain
    gate: int  # the index of the former edge among those that led into its vertex
    output: int
    producers: list[SubtaskEntry]  # only those with ``channels``
    former_producers: int  # the number of subtasks that the producers had
    former_consumers: int  # the number of subtasks that the vertex had
    num_producers: int  # their number now; 0: the operator that feeds it is another one
    is_pointwise: bool = False
    partitioner: bytes = b""  # cloudpickled; only if the number of consumers is another one now, or ``is_by_key_now``
    new_gate: int | None = None  # the index of the edge now; None: as before
    operator: int = 0  # the index of the reader in its chain; above 0: there is no edge any more
    consumers: list[SubtaskEntry] | None = None  # only those with ``channels``
    is_by_key_now: bool = False  # and was not: each record in flight may be any subtask's


class RestoredState(msgspec.Struct, frozen=True):
    """The state that a subtask begins with, after a restart or from another job's checkpoint.

    If a vertex has its parallelism of the checkpoint, and no part has union state, a subtask gets the part with its
    number.  Otherwise it gets all parts, and takes its key groups and its share of the rest.
    """

    checkpoint_id: int
    vertices: list[RestoredVertex] = []  # the subtask's own vertex comes first
    is_finished: bool = False  # its operators had finished, and do not run again
    edges: list[RestoredEdge] = []  # those with data in flight
    former: CheckpointPlace | None = None  # another job's, where the handles name files; None: of this job


class RemoteGateMessage(msgspec.Struct, frozen=True):
    """The remote gate that a vertex begins with: producers outside the cluster push records into it."""

    name: str
    type_name: str  # for people
    fingerprint: bytes  # of the type, 16 bytes
    type_blob: bytes  # the cloudpickled type, which only producers open
    key_blob: bytes = b""  # the cloudpickled partitioner that producers route by; empty: round robin
    producers: int | None = None  # how many partitions the gate waits for; None: until it is told to finish


class VertexMessage(msgspec.Struct, frozen=True):
    """One vertex of a submitted job; ``chain`` is the cloudpickled list of its chained operators."""

    id: str  # 32 hex digits
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operator_names: list[str]
    chain: bytes
    watermark_alignment: WatermarkAlignment | None = None  # of the source that it begins with
    remote_gate: RemoteGateMessage | None = None
    # Of the source that it begins with; the JobManager hands them out.  None: readers know their shares.
    split_set: SplitSet | None = None
    operator_ids: list[str] = []  # 32 hex digits each, in the order of the chain: whose state is whose
    operator_uids: list[str] = []  # the user's names of them, in that order; empty texts: none


class EdgeMessage(msgspec.Struct, frozen=True):
    """One edge; ``partitioner`` is cloudpickled.  ``target`` None: the client reads it."""

    id: str  # 32 hex digits, also the intermediate data set's id
    source: str
    source_operator: int  # index in the source's chain
    target: str | None
    is_pointwise: bool
    ship_strategy: str  # for people: HASH, REBALANCE, FORWARD, ...
    partitioner: bytes
    buffer_timeout_ms: int  # -1: never by timer, 0: after every chunk
    tag: str | None = None  # the side output; None: the main output
    input_id: int = 1  # of the target's head operator, from 1
    is_blocking: bool = False  # its results are written completely before they are read


class JobGraphMessage(msgspec.Struct, frozen=True):
    """A submitted job; vertices in topological order."""

    job_id: str  # 32 hex digits
    name: str
    vertices: list[VertexMessage]
    edges: list[EdgeMessage]
    code: ProgramBundle = ProgramBundle()
    # So long it goes on without a sign of life from its client; None: for ever.
    client_heartbeat_timeout_ms: int | None = None
    settings: JobSettings = JobSettings()


class InputChannelDescriptor(msgspec.Struct, frozen=True):
    """The source of one input channel: partition (20 B), producer attempt (40 B), and the data address of the
    producer's TaskManager.
    """

    partition: bytes
    producer: bytes
    subpartition: int
    tm_id: str
    host: str
    port: int


class InputGateDescriptor(msgspec.Struct, frozen=True):
    """One gate: all channels of one input edge."""

    edge_id: str
    channels: list[InputChannelDescriptor]
    input_id: int = 1  # of the head operator, from 1


class ResultPartitionDescriptor(msgspec.Struct, frozen=True):
    """One subtask's partition of an output edge."""

    edge_id: str
    partition: bytes
    num_subpartitions: int
    source_operator: int
    partitioner: bytes
    buffer_timeout_ms: int
    tag: str | None = None
    is_blocking: bool = False  # kept until the JobManager releases it


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
