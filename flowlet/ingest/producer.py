"""Pushes partitions into a remote gate of a running job, from any process outside the cluster.

Side:       shared.  Calls block the thread that has the data; the network runs on one background loop per process.
Invariants: ``finish`` returns only when the gate's tasks have processed every record and each of them has counted the partition.  An
            attempt that ends in any other way is aborted, but records that it sent may have been processed.
            A call that waits fails, with an error that names the gate, when the gate, its job or the connection is gone.
            Records that wait to be sent take at most the process's network memory.
Promises:   docs/remote-gates.md.
"""

import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from flowlet.columns import Columns
from flowlet.common.typeinfo import ArrowTypeInfo, TypeInformation
from flowlet.ingest.description import GateDescription
from flowlet.ingest.errors import (
    AttemptRefusedError,
    GateAccessError,
    GateEndedError,
    GateError,
    GateLostError,
    GateTypeError,
    GateUnreachableError,
)
from flowlet.ingest.gate_type import check_columns, check_record
from flowlet.ingest.runtime import ProducerRuntime, producer_runtime
from flowlet.ingest.stall import StallWatch
from flowlet.io.create_record_writer import create_record_writer
from flowlet.records import Chunk
from netstack.errors import AuthenticationError, ConnectError, NetstackError, ResourceClosedError
from netstack.flow.offer_progress import Stage
from netstack.handlers.offering_handler import OfferRefusedError
from netstack.ids import ConnectionID, ExecutionAttemptID, ResultPartitionID, execution_attempt_id, partition_id
from netstack.offering_network import GateAccess, OfferedPartition
from netstack.wire import offer_messages
from netstack.wire.events import StopMode
from netstack.wire.gate_access import GateIdentity
from netstack.wire.offer_messages import RefusalCode

if TYPE_CHECKING:
    import pyarrow

DEFAULT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """Identifies one attempt to push one partition.

    ``job`` names the producer's job, run or query.  A gate accepts each (job, epoch, partition, attempt) once: a retry needs a new
    ``attempt``, and a new run a new ``job``.  ``nonce`` is new for every offer.  ``num_producers``: how many partitions the job has in all,
    if it knows.
    """

    job: str
    partition: int
    attempt: int = 0
    epoch: int = 0
    nonce: uuid.UUID = field(default_factory=uuid.uuid4)
    num_producers: int | None = None

    def __str__(self) -> str:
        return f"partition {self.partition} (attempt {self.attempt}, epoch {self.epoch}) of {self.job!r}"


def open_gate(gate: str, *, jobmanager: str, timeout_s: float = DEFAULT_TIMEOUT_S, secret_file: str | Path | None = None) -> "GateClient":
    """Look up a remote gate.

    Args:
        gate: the name given to ``env.from_remote_gate``.
        jobmanager: host:port.
        timeout_s: of the look-up, and of each offer.
        secret_file: of the cluster; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.

    Raises:
        GateNotFoundError: no job has it, or its tasks did not run within ``timeout_s``.
        GateEndedError: its job has ended.
        GateAccessError: the secret is not the JobManager's.
        GateUnreachableError: no JobManager answers there.
    """
    from flowlet.ingest.lookup import describe_gate, secret_of  # here, because a process with a description needs no HTTP client

    runtime = producer_runtime()
    return GateClient(runtime.run(describe_gate(gate, jobmanager, timeout_s, secret_of(secret_file))), timeout_s=timeout_s)


def finish_gate(gate: str, *, jobmanager: str, timeout_s: float = DEFAULT_TIMEOUT_S, secret_file: str | Path | None = None) -> None:
    """Tell ``gate`` to accept no more partitions and end after the open ones.  Returns without waiting for that.

    Raises:
        GateNotFoundError, GateEndedError, GateAccessError, GateUnreachableError: as ``open_gate``.
    """
    from flowlet.ingest.lookup import request_finish, secret_of  # as in ``open_gate``

    producer_runtime().run(request_finish(gate, jobmanager, timeout_s, secret_of(secret_file)))


class GateClient:
    """One gate, for the partitions of this process.  Threading: any thread.

    With a ``GateDescription`` from elsewhere it needs neither the JobManager nor a secret.
    """

    def __init__(self, description: GateDescription, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.description = description
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<GateClient of {self.description}>"

    def open_partition(self, offer: PartitionOffer) -> "PartitionWriter":
        """Offer a partition to every subtask of the gate; returns when all have accepted.

        Raises:
            AttemptRefusedError: the gate has seen this attempt before, or accepts no more producers now.
            GateEndedError: it accepts no more partitions.
            GateTypeError: its type has changed since the description was made.
            GateAccessError: the token is wrong or has expired.
            GateUnreachableError: a TaskManager cannot be reached.
            GateLostError: a TaskManager did not answer in time, or the connection was lost.
        """
        return PartitionWriter(producer_runtime(), self.description, offer, self._timeout_s)


class PartitionWriter:
    """One attempt to push one partition.  Threading: one thread.

    Life cycle: ``write_records`` and ``write_batch``, then ``finish`` or ``abort``.  As a context manager it aborts on an error, and if
    ``finish`` was not called.
    """

    def __init__(self, runtime: ProducerRuntime, description: GateDescription, offer: PartitionOffer, timeout_s: float) -> None:
        self._runtime = runtime
        self._description = description
        self._offer = offer
        self._timeout_s = timeout_s
        self._name = f"{offer} to {description}"
        self._is_ended = False
        self._type_info: TypeInformation | None = None  # read from the description when the first records are written
        self._stall = StallWatch(time.monotonic)
        num_subtasks = len(description.endpoints)
        result_partition = runtime.environment.create_result_partition(f"the producer of {self._name}", _partition_id(offer), num_subtasks)
        result_partition.observe_blocking(self._stall)
        self._offered = OfferedPartition(result_partition, num_subtasks)
        self._partition = result_partition
        try:
            self._writer = create_record_writer(result_partition, description.partitioner, buffer_timeout_ms=0, subtask=offer.partition)
            self._open()
        except BaseException as error:
            self._give_up(error)
            raise
        runtime.watch(self._stall, self._name)

    def __repr__(self) -> str:
        return f"<PartitionWriter of {self._name}{', ended' if self._is_ended else ''}>"

    @property
    def description(self) -> GateDescription:
        """The gate that it writes to."""
        return self._description

    def write_records(self, records: list[Any], timestamps: list[int] | None = None) -> None:
        """Push records in order; blocks while the gate grants no credit.  The caller must not change the list any more.

        Only the first record of each call is checked against the gate's type.

        Args:
            records: of the gate's type.
            timestamps: of the records, in milliseconds since the epoch; None: they have none.

        Raises:
            GateTypeError: the first record is not of the gate's type; nothing of the list was sent.
            GateEndedError: the gate's job has ended.
            GateLostError: the connection was lost.
            UserFunctionError: the gate's key selector failed.
            SerdeError: a record cannot be serialized.
        """
        self._check_open()
        if isinstance(self._declared_type(), ArrowTypeInfo):
            self._write_whole(records, timestamps)
        elif records:
            check_record(records[0], self._declared_type(), str(self._description))
            self._write(Chunk(records, timestamps))

    def write_batch(self, batch: "pyarrow.RecordBatch") -> None:
        """Push the rows of a batch as records of the gate's type, without a loop over them; blocks and raises as ``write_records``.

        The columns must be the fields of the type, in order.  A gate without a declared type gets tuples; one with an Arrow schema gets the
        batch as one record.

        Raises:
            GateTypeError: the columns are not those of the type; names one.
        """
        from flowlet.ingest.batches import chunk_of_batch  # here, because it imports pyarrow, which most producers do not need

        type_info = self._declared_type()
        check_columns(batch.schema.names, type_info, str(self._description))
        if not batch.num_rows:
            return
        if isinstance(type_info, ArrowTypeInfo):
            self._write_whole([batch], None)
        else:
            self._write(chunk_of_batch(batch, type_info))

    def write_columns(self, columns: Columns) -> None:
        """Push records that are in columns; blocks and raises as ``write_records``.  The caller must not change the columns any more."""
        if columns.num_rows:
            self._write(Chunk.of_columns(columns))

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until the gate's tasks have processed every record; then the partition counts as complete.

        Raises:
            GateLostError: the connection was lost, or it took longer than ``timeout_s``; the attempt is aborted.
            GateEndedError: the gate's job has ended.
        """
        self._check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._partition.notify_end_of_data(StopMode.DRAIN)
            self._wait_for(Stage.PROCESSED, deadline)
            self._partition.finish()
            self._partition.close()
            self._wait_for(Stage.ENDED, deadline)
        except (NetstackError, GateError) as error:
            raise self._ended_by(error) from error
        self._end()

    def abort(self, reason: str) -> None:
        """Abort the attempt; the gate is told the reason.  Does nothing after ``finish`` or another ``abort``."""
        if not self._is_ended and self._runtime.pid == os.getpid():
            self._give_up(GateError(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.abort("the producer ended without finish()" if value is None else f"the producer failed: {type(value).__name__}: {value}")

    def _open(self) -> None:
        description, offer = self._description, self._offer
        identity = GateIdentity(bytes.fromhex(description.job_id), description.name, description.expires_ms)
        places = [
            (ConnectionID(endpoint.host, endpoint.port), self._message(subtask)) for subtask, endpoint in enumerate(description.endpoints)
        ]
        access = GateAccess(identity, description.token)
        deadline = time.monotonic() + self._timeout_s
        try:
            self._runtime.run(self._runtime.offering.offer(access, places, self._offered, self._timeout_s))
            if not self._offered.wait_for(Stage.REQUESTED, max(0.0, deadline - time.monotonic())):
                late = self._offered.late_subtasks(Stage.REQUESTED)
                raise GateLostError(f"{offer}: subtasks {late} of {description} did not answer within {self._timeout_s:g} s")
        except NetstackError as error:
            raise self._translated(error) from error

    def _message(self, subtask: int) -> offer_messages.PartitionOffer:
        offer, description = self._offer, self._description
        return offer_messages.PartitionOffer(
            offer_id=offer.nonce.bytes,
            result_partition=self._partition.partition_id,
            subtask=subtask,
            num_subtasks=len(description.endpoints),
            num_producers=offer.num_producers or 0,
            job=offer.job,
            epoch=offer.epoch,
            partition=offer.partition,
            attempt=offer.attempt,
            fingerprint=description.fingerprint,
        )

    def _declared_type(self) -> TypeInformation:
        if self._type_info is None:
            self._type_info = self._description.type_info
        return self._type_info

    def _write_whole(self, batches: "list[pyarrow.RecordBatch]", timestamps: list[int] | None) -> None:
        from flowlet.ingest.batches import whole_batches  # as in write_batch

        self._check_open()
        type_info = self._declared_type()
        assert isinstance(type_info, ArrowTypeInfo), "the callers checked"
        for number, batch in enumerate(batches):  # one element for each, because batches are large
            self._write(whole_batches([batch], None if timestamps is None else [timestamps[number]], type_info, str(self._description)))

    def _write(self, chunk: Chunk) -> None:
        self._check_open()
        try:
            self._writer.collect(chunk)
            self._writer.flush_pending()
        except NetstackError as error:
            raise self._ended_by(error) from error

    def _wait_for(self, stage: Stage, deadline: float | None) -> None:
        self._stall.mark_start()
        try:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._offered.wait_for(stage, left_s):
                late = self._offered.late_subtasks(stage)
                raise GateLostError(f"{self._name}: subtasks {late} have not processed everything in time")
        finally:
            self._stall.mark_end()

    def _check_open(self) -> None:
        if self._runtime.pid != os.getpid():
            raise GateLostError(f"{self._name} was made before this process was forked: open a partition in this process")
        if self._is_ended:
            failure = self._offered.failure
            raise GateLostError(f"{self._name}: the writer has ended{'' if failure is None else f': {failure}'}")

    def _ended_by(self, error: Exception) -> GateError:
        """Abort the attempt; return the error for the caller, which names the gate."""
        cause = self._offered.failure
        found = error if isinstance(error, GateError) else self._translated(cause if isinstance(cause, NetstackError) else error)
        self._give_up(found)
        return found

    def _translated(self, error: Exception) -> GateError:
        gate, text = self._description, f"{self._offer}: {error}"
        match error:
            case OfferRefusedError(code=RefusalCode.GATE_ENDED):
                return GateEndedError(f"{text}; {gate} accepts no more partitions")
            case OfferRefusedError(code=RefusalCode.WRONG_TYPE):
                return GateTypeError(f"{text}; look {gate} up again, its type is {gate.type_name} there")
            case OfferRefusedError(code=RefusalCode.TOKEN_EXPIRED):
                return GateAccessError(f"{text}; look {gate} up again for a new token")
            case OfferRefusedError():
                return AttemptRefusedError(f"{text} ({gate})")
            case AuthenticationError():
                return GateAccessError(f"{text}; {gate} does not accept the token: look the gate up again")
            case ConnectError():
                return GateUnreachableError(f"{text}; is the TaskManager of {gate} still there?")
            case ResourceClosedError():
                return GateLostError(f"{text}; the producers of this process were closed while they wrote to {gate}")
            case _:
                return GateLostError(f"{text}; {gate} was lost and this attempt is aborted: push the partition again with a new attempt")

    def _give_up(self, error: BaseException) -> None:
        self._offered.abort(error if isinstance(error, Exception) else GateError(f"{type(error).__name__}: {error}"))
        self._partition.close()
        self._end()

    def _end(self) -> None:
        self._is_ended = True
        try:
            self._runtime.unwatch(self._stall)
            self._runtime.loop.execute_threadsafe(self._offered.withdraw)
        except ResourceClosedError:
            return  # the runtime was closed meanwhile, and with it this partition


def _partition_id(offer: PartitionOffer) -> ResultPartitionID:
    """The partition's id in this process; unique, because the nonce is."""
    producer: ExecutionAttemptID = execution_attempt_id(offer.nonce.bytes, offer.nonce.bytes, offer.partition, offer.attempt)
    return ResultPartitionID(partition_id(offer.nonce.bytes, offer.partition), producer)
