"""The control protocol: what client, JobManager and TaskManagers say to each other.

Side:   pure.
Rules:  plain data only (msgspec, MessagePack).  Operators and partitioners travel as opaque blobs, which only a TaskManager opens.
        Every message about a task carries the 40-byte id of the attempt; a stale id is counted and ignored, never acted upon.
Units:  times in milliseconds since the epoch, durations in milliseconds, sizes in bytes.
"""

from typing import Final

import msgspec

from flowlet.graph.execution_state import ExecutionState
from flowlet.splits.file_split import FileSet, FileSplit

PROTOCOL_VERSION: Final = 1


class WatermarkAlignmentMessage(msgspec.Struct, frozen=True):
    """The sources of one group wait for each other."""

    group: str
    max_drift_ms: int
    update_interval_ms: int


class RemoteGateMessage(msgspec.Struct, frozen=True):
    """What a vertex begins with if producers outside the cluster push into it."""

    name: str
    type_name: str  # for people
    fingerprint: bytes  # of the type, 16 bytes
    type_blob: bytes  # the cloudpickled type, for producers alone
    key_blob: bytes = b""  # the cloudpickled partitioner by which producers route; empty: in turns
    producers: int | None = None  # how many partitions there will be


class VertexMessage(msgspec.Struct, frozen=True):
    """One vertex of a submitted job; ``chain`` is the cloudpickled list of its chained operators."""

    id: str  # 32 hex digits
    name: str
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    operator_names: list[str]
    chain: bytes
    watermark_alignment: WatermarkAlignmentMessage | None = None  # of a vertex that begins with a source
    remote_gate: RemoteGateMessage | None = None
    files: FileSet | None = None  # of the source that it begins with, which the JobManager hands out; None: readers know their shares


class EdgeMessage(msgspec.Struct, frozen=True):
    """One edge; ``partitioner`` is cloudpickled.  ``target`` None: an external consumer (the client) reads it."""

    id: str  # 32 hex digits, also the intermediate data set's id
    source: str
    source_operator: int  # index in the source's chain
    target: str | None
    is_pointwise: bool
    ship_strategy: str  # for people: HASH, REBALANCE, FORWARD, ...
    partitioner: bytes
    buffer_timeout_ms: int  # -1: never by timer, 0: after every chunk
    tag: str | None = None  # a side output of the operator
    input_id: int = 1  # of the target's head, from 1


class JobGraphMessage(msgspec.Struct, frozen=True):
    """A submitted job; vertices in topological order."""

    job_id: str  # 32 hex digits
    name: str
    vertices: list[VertexMessage]
    edges: list[EdgeMessage]


class InputChannelDescriptor(msgspec.Struct, frozen=True):
    """Where one input channel reads: partition (20 B) of producer attempt (40 B), and the producer's TaskManager."""

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
    input_id: int = 1  # of the head, from 1


class ResultPartitionDescriptor(msgspec.Struct, frozen=True):
    """One produced partition of one output edge."""

    edge_id: str
    partition: bytes
    num_subpartitions: int
    source_operator: int
    partitioner: bytes
    buffer_timeout_ms: int
    tag: str | None = None


class TaskDeploymentDescriptor(msgspec.Struct, frozen=True):
    """All a TaskManager needs to run one subtask."""

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


class LatencyMetrics(msgspec.Struct, frozen=True):
    """How long markers took from a source to an operator: its last values, in milliseconds."""

    name: str  # below the scope of the job, as Flink's
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


class OperatorMetrics(msgspec.Struct, frozen=True):
    """Counters and gauges of one operator of a task."""

    name: str
    operator_id: str  # 32 hex digits
    num_records_in: int
    num_records_out: int
    num_records_from_the_future: int
    current_input_watermark: int  # the smallest of all inputs
    current_input_watermarks: list[int]  # of each input; empty for a source
    current_output_watermark: int
    latencies: list[LatencyMetrics] = []


class TaskMetrics(msgspec.Struct, frozen=True):
    """Counters of one task since its start; names follow Flink's task metrics."""

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
    accumulated_back_pressured_ms: int = 0  # soft + hard
    current_input_watermark: int = -(2**63)
    waiting_for: str | None = None  # the name of what a parked task waits for
    source_progress: float | None = None  # 0 to 1, of a source that knows how much there is to read
    accumulated_soft_back_pressured_ms: int = 0  # parked in the mailbox for want of room
    accumulated_hard_back_pressured_ms: int = 0  # blocked inside a write for want of a buffer
    idle_ms_per_second: int = 0  # these four: of the last minute; together 1000 while the task runs
    busy_ms_per_second: int = 0
    soft_back_pressured_ms_per_second: int = 0
    hard_back_pressured_ms_per_second: int = 0
    max_soft_back_pressure_ms: int = 0  # the longest single wait of the last 5 s
    max_hard_back_pressure_ms: int = 0
    is_back_pressured: bool = False  # at this moment
    checkpoint_alignment_ms: int = 0  # of the alignment that is under way, else of the last one
    checkpoint_start_delay_ms: int = 0  # from the trigger to the first barrier here
    num_checkpoints: int = 0  # acknowledged
    num_declined_checkpoints: int = 0
    last_checkpoint_id: int = -1  # the last one that was acknowledged; these four are its
    last_checkpoint_sync_ms: int = 0
    last_checkpoint_async_ms: int = 0
    last_checkpoint_in_flight_bytes: int = 0
    operators: list[OperatorMetrics] = []
    watermark_held_back_by: list[str] = []  # input channels without which the watermark would have advanced for a minute
    watermark_alignment_drift_ms: int | None = None  # how far a source is ahead of what its alignment group allows


class FailureInfo(msgspec.Struct, frozen=True):
    """Why a task failed, as text: nothing of the user's exception is unpickled anywhere."""

    exception_type: str
    message: str
    traceback: str  # the user's frames; of an engine error all frames
    operator: str | None
    task_name: str
    subtask: int
    record_preview: str | None
    tm_id: str
    timestamp_ms: int


class RegisterTaskManager(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM, first message on the WebSocket."""

    tm_id: str
    num_slots: int
    data_host: str
    data_port: int
    pid: int
    protocol_version: int = PROTOCOL_VERSION


class Registered(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: welcome."""

    jm_id: str
    heartbeat_interval_ms: int


class RegistrationRefused(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: go away, and why."""

    reason: str


class TaskReport(msgspec.Struct, frozen=True):
    """The metrics of one running task inside a heartbeat."""

    attempt: bytes
    metrics: TaskMetrics


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM, every interval; with the metrics of the tasks that run there."""

    tm_id: str
    tasks: list[TaskReport]


class TaskStateChanged(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM: a task moved to another state; the last message carries its final metrics."""

    attempt: bytes
    state: ExecutionState
    failure: FailureInfo | None = None
    metrics: TaskMetrics | None = None


class DeployTask(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: run this."""

    task: TaskDeploymentDescriptor


class CancelTask(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: end this attempt; unknown attempts are ignored."""

    attempt: bytes


class SourceWatermarkReported(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM: where a subtask of a source with an alignment group is; 2**63 - 1: nobody must wait for it."""

    attempt: bytes
    timestamp: int


class AllowSourceWatermark(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: the source must not read on while its watermark is above this; unknown attempts are ignored."""

    attempt: bytes
    max_allowed: int


class SplitsRequested(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM: a subtask of a source wants more splits."""

    attempt: bytes


class AddSplits(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: splits for the source of this task, which asked for them; unknown attempts are ignored."""

    attempt: bytes
    splits: list[FileSplit]
    waiting_bytes: int  # the size of what nobody has got yet


class NoMoreSplits(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: the source of this task asked for splits, and there are none left; unknown attempts are ignored."""

    attempt: bytes


class GateCounts(msgspec.Struct, frozen=True):
    """What one subtask of a remote gate has taken so far."""

    num_open: int = 0
    num_completed: int = 0  # partitions
    num_aborted: int = 0  # attempts
    num_refused: int = 0  # offers


class GateReported(msgspec.Struct, frozen=True, tag=True):
    """TM -> JM: a partition that was pushed into this subtask's gate, or an attempt to push one, came to its end."""

    attempt: bytes
    counts: GateCounts


class FinishGate(msgspec.Struct, frozen=True, tag=True):
    """JM -> TM: the gate of this task takes no more offers, and ends with those that are open; unknown attempts are ignored."""

    attempt: bytes


ToJobManager = RegisterTaskManager | Heartbeat | TaskStateChanged | SourceWatermarkReported | GateReported | SplitsRequested
ToTaskManager = Registered | RegistrationRefused | DeployTask | CancelTask | AllowSourceWatermark | FinishGate | AddSplits | NoMoreSplits
