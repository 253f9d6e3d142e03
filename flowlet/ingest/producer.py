"""Pushes partitions into a gate of a running job, from any thread of any process outside the cluster.

Side:       shared.  Blocking calls for the thread that has the data; the network runs on one background loop per process.
Invariants: ``finish`` returns only when every record has been processed by the gate's tasks and each of them has counted the partition;
            a producer that ends in any other way made an aborted attempt, and what it sent may have been processed all the same.
            Every call that waits ends with an error that names the gate when the gate, its job or the connection is gone.
            What waits here is bounded by the process's network memory.
Units:      seconds.
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
from flowlet.ingest.description import GateDescription, GateEndpoint
from flowlet.ingest.errors import (
    AttemptRefusedError,
    GateAccessError,
    GateEndedError,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateTypeError,
    GateUnreachableError,
)
from flowlet.ingest.gate_type import check_columns, check_record
from flowlet.ingest.runtime import ProducerRuntime, close_producers, producer_runtime
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

__all__ = [
    "AttemptRefusedError",
    "GateAccessError",
    "GateClient",
    "GateDescription",
    "GateEndedError",
    "GateEndpoint",
    "GateError",
    "GateLostError",
    "GateNotFoundError",
    "GateTypeError",
    "GateUnreachableError",
    "PartitionOffer",
    "PartitionWriter",
    "close_producers",
    "finish_gate",
    "open_gate",
]

DEFAULT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """Which partition a producer has, and which attempt to push it this is.

    ``job`` names the producer's job, run or query; a gate takes each (job, epoch, partition, attempt) once, so a retry needs another
    ``attempt`` and another run another ``job``.  ``nonce`` is drawn for this very try.  ``num_producers``: how many partitions the job
    has in all, if it knows.
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
    """Ask the JobManager where ``gate`` is.

    Args:
        gate: the name in ``env.from_remote_gate``.
        jobmanager: host:port.
        timeout_s: of the question, and of each offer.
        secret_file: of the cluster; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.

    Raises:
        GateNotFoundError: no job has it, or its tasks did not run within ``timeout_s``.
        GateEndedError: its job has ended.
        GateAccessError: the secret is another one than the JobManager's.
        GateUnreachableError: no JobManager answers there.
    """
    from flowlet.ingest.lookup import describe_gate, secret_of  # the HTTP client: whoever has a description does without it

    runtime = producer_runtime()
    return GateClient(runtime.run(describe_gate(gate, jobmanager, timeout_s, secret_of(secret_file))), timeout_s=timeout_s)


def finish_gate(gate: str, *, jobmanager: str, timeout_s: float = DEFAULT_TIMEOUT_S, secret_file: str | Path | None = None) -> None:
    """Let ``gate`` end: it takes no new partitions, those that are open go on to their end.  Returns without waiting for that.

    Raises:
        GateNotFoundError: no job has it.
        GateEndedError: its job has ended.
        GateAccessError: the secret is another one than the JobManager's.
        GateUnreachableError: no JobManager answers there.
    """
    from flowlet.ingest.lookup import request_finish, secret_of  # as in ``open_gate``

    producer_runtime().run(request_finish(gate, jobmanager, timeout_s, secret_of(secret_file)))


class GateClient:
    """One gate, for the partitions of this process.

    Threading: any thread.  Whoever got a ``GateDescription`` from elsewhere needs neither the JobManager nor a secret.
    """

    def __init__(self, description: GateDescription, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.description = description
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<GateClient of {self.description}>"

    def open_partition(self, offer: PartitionOffer) -> "PartitionWriter":
        """Offer a partition to every subtask of the gate; returns when all of them take it.

        Raises:
            AttemptRefusedError: the gate was offered this attempt before, or has no room for one more producer.
            GateEndedError: it takes no more partitions.
            GateTypeError: it is of another type than when its description was made.
            GateAccessError: the token is not good (any more).
            GateUnreachableError: a TaskManager cannot be reached.
            GateLostError: it did not answer in time, or the connection was lost.
        """
        return PartitionWriter(producer_runtime(), self.description, offer, self._timeout_s)


class PartitionWriter:
    """One attempt to push one partition.

    Threading: one thread.
    Life cycle: ``write_records`` and ``write_batch``, then ``finish``; or ``abort``.  As a context manager it aborts on an error, and if
    ``finish`` was not called.
    """

    def __init__(self, runtime: ProducerRuntime, description: GateDescription, offer: PartitionOffer, timeout_s: float) -> None:
        self._runtime = runtime
        self._description = description
        self._offer = offer
        self._timeout_s = timeout_s
        self._name = f"{offer} to {description}"
        self._is_ended = False
        self._type_info: TypeInformation | None = None  # from the first batch on
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
        """Of the gate that it writes to."""
        return self._description

    def write_records(self, records: list[Any], timestamps: list[int] | None = None) -> None:
        """Push records in this order; blocks while the gate grants no credit.  The list is the writer's from now on.

        The first record of each call is held against the gate's type: a producer of other records is told at once.

        ``timestamps``: of the records, milliseconds since the epoch; None: they have none.

        Raises:
            GateTypeError: the first record is not of the gate's type; nothing of the list was sent.
            GateEndedError: the gate's job has ended.
            GateLostError: the connection was lost.
            UserFunctionError: the gate's key selector failed.
            SerdeError: a record cannot be sent.
        """
        self._check_open()
        if isinstance(self._declared_type(), ArrowTypeInfo):
            self._write_whole(records, timestamps)
        elif records:
            check_record(records[0], self._declared_type(), str(self._description))
            self._write(Chunk(records, timestamps))

    def write_batch(self, batch: "pyarrow.RecordBatch") -> None:
        """Push the rows of a batch as records of the gate's type, without a loop over them; blocks and raises as ``write_records``.

        Columns are the fields of the type, in its order; a gate without a declared type gets tuples, one of an Arrow schema batches.

        Raises:
            GateTypeError: the columns are not those of the type; names one.
        """
        from flowlet.ingest.batches import chunk_of_batch  # with it comes pyarrow, which most producers do without

        type_info = self._declared_type()
        check_columns(batch.schema.names, type_info, str(self._description))
        if not batch.num_rows:
            return
        if isinstance(type_info, ArrowTypeInfo):
            self._write_whole([batch], None)
        else:
            self._write(chunk_of_batch(batch, type_info))

    def write_columns(self, columns: Columns) -> None:
        """Push records that are in columns already; blocks and raises as ``write_records``.  Nobody changes the columns any more."""
        if columns.num_rows:
            self._write(Chunk.of_columns(columns))

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until every record was processed by the gate's tasks; the partition counts from now on.

        Raises:
            GateLostError: the connection was lost, or that took longer than ``timeout_s``: the attempt is aborted.
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
        """Give up; the gate learns why, and counts an aborted attempt.  A second call, or one after ``finish``, does nothing."""
        if not self._is_ended and self._runtime.pid == os.getpid():
            self._give_up(GateError(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.abort("the producer ended without finish()" if value is None else f"the producer failed: {type(value).__name__}: {value}")

    # ---------------------------------------------------------------- helpers

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
        from flowlet.ingest.batches import whole_batches  # as above

        self._check_open()
        type_info = self._declared_type()
        assert isinstance(type_info, ArrowTypeInfo), "the gate takes batches"
        for number, batch in enumerate(batches):  # one by one: each is large
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
        """End, and say why in words that name the gate."""
        cause = self._offered.failure
        found = error if isinstance(error, GateError) else self._translated(cause if isinstance(cause, NetstackError) else error)
        self._give_up(found)
        return found

    def _translated(self, error: Exception) -> GateError:
        gate, text = self._description, f"{self._offer}: {error}"
        match error:
            case OfferRefusedError(code=RefusalCode.GATE_ENDED):
                return GateEndedError(f"{text}; {gate} takes nothing more")
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
                return GateLostError(f"{text}; {gate} was lost, this attempt is aborted: push the partition again with another attempt")

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
            return  # closed meanwhile, and everything with it


def _partition_id(offer: PartitionOffer) -> ResultPartitionID:
    """A name for the partition in this process: unique, as the nonce is."""
    producer: ExecutionAttemptID = execution_attempt_id(offer.nonce.bytes, offer.nonce.bytes, offer.partition, offer.attempt)
    return ResultPartitionID(partition_id(offer.nonce.bytes, offer.partition), producer)
