"""Descriptions of a job, of its tasks' inputs and outputs, and of the parts of its checkpoints, as messages carry them.

Side:   pure.
Rules:  plain data only, as in ``control_messages``.
Units:  as there.
"""

from typing import NamedTuple

import msgspec

from flowlet.common.job_settings import JobSettings
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.messages.program_bundle import ProgramBundle
from flowlet.splits.split_kinds import SplitSet


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
