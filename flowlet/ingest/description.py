"""The description of a remote gate for producers: ``GateDescription`` has its address and type, and a token for it, and
``PartitionOffer`` names the partition that is pushed; the errors of producers; checks of records against a gate's type.

Side:       shared.  Any thread.
Invariants: a description can be pickled and sent to the processes that push.  It holds the token of this one gate, and
            no secret; ``repr`` shows neither token nor blobs.
Units:      milliseconds since the epoch.
"""

import base64
import uuid
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from flowlet.columns import Columns
from flowlet.common.typeinfo import ArrowTypeInfo, TypeInformation
from flowlet.errors import FlowletError
from flowlet.graph.partitioner import Partitioner, Rebalance
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk
from flowlet.serde.deploy_blobs import load_object
from flowlet.serde.type_serializer import ValueMismatchError, preview
from flowlet.types.declared_records import DeclaredRecords, column_order
from netstack.late import dataclass


class GateError(FlowletError):
    """Base class of the errors of gates; every message names the gate and says what to do."""


class GateUnreachableError(GateError):
    """No JobManager answers, or one of the gate's TaskManagers cannot be reached."""

    is_one_line = True


class GateNotFoundError(GateError):
    """No job has a gate of this name, or its tasks do not run yet."""


class GateEndedError(GateError):
    """The gate's job has ended, or the gate accepts no more partitions."""


class GateAccessError(GateError):
    """The secret or the token is wrong."""

    is_one_line = True


class GateTypeError(GateError):
    """The producer's records are not of the gate's type; names the column if there is one."""


class AttemptRefusedError(GateError):
    """The gate does not accept this attempt of this partition; the message says why."""


class GateWriteError(GateError):
    """The gate does not commit a write: it was aborted, or has another number of partitions than the gate waits for."""


class GateLostError(GateError):
    """The connection to the gate was lost, or the gate did not answer in time.

    This attempt is aborted; the producer may start another.
    """


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """Identifies one attempt to push one partition.

    ``job`` names the producer's job, run or query.  (job, epoch) is one write: a gate with ``producers=N`` ends when
    one write has N partitions.  A gate accepts each (job, epoch, partition, attempt) once, unless it was aborted: a
    retry needs a new ``attempt``, and a new run a new ``job``.  ``nonce`` is new for every offer.  ``num_producers``:
    how many partitions the write has in all, if it is known.  ``is_retry``: whether the partition may be counted
    already; None: it may if ``attempt`` is above 0.
    """

    job: str
    partition: int
    attempt: int = 0
    epoch: int = 0
    nonce: uuid.UUID = field(default_factory=uuid.uuid4)
    num_producers: int | None = None
    is_retry: bool | None = None

    @property
    def may_be_counted(self) -> bool:
        """Whether an earlier attempt may have been complete."""
        return self.attempt > 0 if self.is_retry is None else self.is_retry

    def __str__(self) -> str:
        return f"partition {self.partition} (attempt {self.attempt}, epoch {self.epoch}) of {self.job!r}"


def checked_records(
    records: list[Any], timestamps: list[int] | None, declared: DeclaredRecords | None, gate: str
) -> Chunk:
    """Check records, at least one; return them in the form in which they are sent.  ``declared`` None: any objects.

    Raises:
        GateTypeError: a record is not of the gate's type; names the first one, its field, and shows the value.
    """
    if declared is None:
        return Chunk(records, timestamps)
    try:
        chunk = declared.chunk_of(records)
    except ValueMismatchError as error:
        raise GateTypeError(f"{error}; {gate} takes {declared.type_info!r}") from error
    return chunk if timestamps is None else chunk.with_timestamps(timestamps)


def checked_columns(columns: Columns, declared: DeclaredRecords | None, gate: str) -> Columns:
    """Check records in columns; return them in the shape of the gate's type.  Raises as ``checked_records``."""
    if declared is None:
        return columns
    if isinstance(declared.type_info, ArrowTypeInfo):
        raise GateTypeError(f"{gate} takes whole record batches, {declared.type_info!r}: use write_batch")
    try:
        return declared.fitting(columns)
    except ValueMismatchError as error:
        raise GateTypeError(f"{error}; {gate} takes {declared.type_info!r}") from error


def check_timestamps(timestamps: list[int] | None, num_records: int, gate: str) -> None:
    """Check that each record has a timestamp of 64 bits.  Raises GateTypeError: a record has none; names it."""
    if timestamps is None:
        return
    if len(timestamps) != num_records:
        raise GateTypeError(f"{len(timestamps)} timestamps for {num_records} records, for {gate}")
    if set(map(type, timestamps)) <= {int} and (
        not timestamps or (min(timestamps) >= MIN_TIMESTAMP and max(timestamps) <= MAX_TIMESTAMP)
    ):
        return
    for position, timestamp in enumerate(timestamps):
        if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            raise GateTypeError(
                f"record {position}: the timestamp {preview(timestamp)} is no int of 64 bits (milliseconds), for {gate}"
            )


def check_columns(names: Sequence[str], type_info: TypeInformation, gate: str) -> tuple[int, ...]:
    """The positions of the columns in the order of the fields.

    Raises GateTypeError: the columns are not the fields of the gate's type; names the first wrong one.
    """
    try:
        return column_order(names, type_info, gate)
    except ValueMismatchError as error:
        raise GateTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class GateEndpoint:
    """The data port of the TaskManager that runs one subtask of the gate."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class GateDescription:
    """One remote gate of one running job.

    ``endpoints`` has one entry per subtask.  ``producers``: how many partitions end the gate; None: ``finish_gate``
    ends it.  ``has_checkpoints``: whether its job takes checkpoints, so that a partition goes on after a failure.
    ``acknowledges_checkpointed``: whether a write returns only when a checkpoint holds it.
    """

    name: str
    jobmanager: str
    job_id: str
    job_name: str
    type_name: str
    fingerprint: bytes
    endpoints: tuple[GateEndpoint, ...]
    producers: int | None
    expires_ms: int
    token: bytes = field(repr=False)
    type_blob: bytes = field(repr=False)
    key_blob: bytes = field(repr=False)
    has_checkpoints: bool = False
    acknowledges_checkpointed: bool = False

    @property
    def type_info(self) -> TypeInformation:
        """The type of the gate's records.  Raises DeploymentError: the type needs a module that is missing here."""
        found: TypeInformation = load_object(self.type_blob, f"the type of gate {self.name!r}")
        return found

    @property
    def partitioner(self) -> Partitioner:
        """How records are routed to the gate's subtasks: by key, or in turn.

        Raises:
            DeploymentError: the key selector needs a module that is missing here.
        """
        if not self.key_blob:
            return Rebalance()
        found: Partitioner = load_object(self.key_blob, f"the key selector of gate {self.name!r}")
        return found

    @property
    def is_keyed(self) -> bool:
        """Whether records are routed by key."""
        return bool(self.key_blob)

    def __str__(self) -> str:
        return f"gate {self.name!r} of job {self.job_name!r} at JobManager {self.jobmanager}"

    @classmethod
    def of_document(cls, document: dict[str, Any], jobmanager: str) -> "GateDescription":
        """The description in the JobManager's answer to ``GET /gates/{name}``."""
        same = "name job_id job_name producers expires_ms has_checkpoints acknowledges_checkpointed"
        return cls(
            **{each: document[each] for each in same.split()},
            jobmanager=jobmanager,
            type_name=document["type"],
            fingerprint=bytes.fromhex(document["fingerprint"]),
            endpoints=tuple(GateEndpoint(each["host"], each["port"]) for each in document["endpoints"]),
            token=bytes.fromhex(document["token"]),
            type_blob=base64.b64decode(document["type_blob"]),
            key_blob=base64.b64decode(document["key_blob"]),
        )
