"""Pushes partitions into a remote gate of a running job, from any process outside the cluster.

Side:       shared.  Calls block the thread that has the data; the network runs on one background loop per process.
Invariants: ``finish`` returns only when all tasks of the gate's job have processed every record, and each subtask of the gate has
            counted the partition.  An attempt that ends in any other way is aborted, but records that it sent may have been processed.
            A call that waits fails, with an error that names the gate, when the gate, its job or the connection is gone; the error has
            the cause of the job's failure, if the JobManager knows one.
            A retry of a partition that is counted already succeeds, and sends nothing.
            Records that wait to be sent take at most the process's network memory.
Promises:   docs/remote-gates.md.
"""

import os
import random
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from flowlet.columns import Columns
from flowlet.common.typeinfo import ArrowTypeInfo
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
from flowlet.ingest.gate_type import check_columns, check_timestamps, checked_columns, checked_records
from flowlet.ingest.runtime import ProducerRuntime, producer_runtime
from flowlet.ingest.stall import StallWatch
from flowlet.io.create_record_writer import create_record_writer
from flowlet.records import Chunk
from flowlet.rpc.control_messages import CountedPartition, GateOutcome
from flowlet.serde.declared.declared_records import declared_records
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.errors import AuthenticationError, ConnectError, NetstackError, ResourceClosedError
from netstack.flow.offer_progress import Stage
from netstack.handlers.offering_handler import OfferRefusedError
from netstack.ids import ConnectionID, ExecutionAttemptID, ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.log_lines import LogLines
from netstack.offering_network import GateAccess, OfferedPartition
from netstack.wire import offer_messages
from netstack.wire.events import StopMode
from netstack.wire.gate_access import GateIdentity
from netstack.wire.offer_messages import RefusalCode

if TYPE_CHECKING:
    import pyarrow

_log = LogLines(__name__)
DEFAULT_TIMEOUT_S: Final = 5.0
_AWAITED: Final = {
    Stage.PROCESSED: "all operators and sinks of the gate's job, which have not processed everything",
    Stage.ENDED: "the gate, which has not counted the partition",
}
DEFAULT_WAIT_FOR_ROOM_S: Final = 300.0  # a producer holds its place until its partition ends
_OUTCOME_TIMEOUT_S: Final = 3.0  # the JobManager waits up to 2 s for the cause of a failure
_FIRST_PAUSE_S: Final = 0.05  # before an offer is repeated; doubled each time
_MAX_PAUSE_S: Final = 1.0
_JOB_ENDED: Final = (GateEndedError, GateLostError, GateUnreachableError)  # the job may have failed


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """Identifies one attempt to push one partition.

    ``job`` names the producer's job, run or query.  (job, epoch) is one write: a gate with ``producers=N`` ends when one write has N
    partitions.  A gate accepts each (job, epoch, partition, attempt) once, unless it was aborted: a retry needs a new ``attempt``, and a
    new run a new ``job``.  ``nonce`` is new for every offer.  ``num_producers``: how many partitions the write has in all, if it is known.
    ``is_retry``: the partition may be counted already; None: it may if ``attempt`` is above 0.
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


def open_gate(
    gate: str,
    *,
    jobmanager: str,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    secret_file: str | Path | None = None,
    wait_for_gate_s: float = 0.0,
    wait_for_room_s: float = DEFAULT_WAIT_FOR_ROOM_S,
    committed_job: str | None = None,
) -> "GateClient":
    """Look up a remote gate.

    Args:
        gate: the name given to ``env.from_remote_gate``.
        jobmanager: host:port.
        timeout_s: of the look-up, and of each offer.
        secret_file: of the cluster; None: ``$FLOWLET_SECRET_FILE``, else ``~/.flowlet/secret``.
        wait_for_gate_s: how long to ask again if there is no JobManager yet, or no running job with this gate.
        wait_for_room_s: as for ``GateClient``.
        committed_job: the writes of this ``PartitionOffer.job`` count only once they are committed (``GateClient.commit``).

    Raises:
        GateNotFoundError: no job has it, or its tasks did not run within ``timeout_s``.
        GateEndedError: its job has ended.
        GateAccessError: the secret is not the JobManager's.
        GateUnreachableError: no JobManager answers there.
    """
    from flowlet.ingest.lookup import await_gate, secret_of  # here, because a process with a description may need no HTTP client

    asked = await_gate(gate, jobmanager, timeout_s, secret_of(secret_file), wait_for_gate_s, committed_job)
    return GateClient(producer_runtime().run(asked), timeout_s=timeout_s, wait_for_room_s=wait_for_room_s)


def finish_gate(gate: str, *, jobmanager: str, timeout_s: float = DEFAULT_TIMEOUT_S, secret_file: str | Path | None = None) -> None:
    """Tell ``gate`` to accept no more partitions and end after the open ones.  Returns without waiting for that.

    Raises:
        GateNotFoundError, GateEndedError, GateAccessError, GateUnreachableError: as ``open_gate``.
    """
    from flowlet.ingest.lookup import request_finish, secret_of  # as in ``open_gate``

    producer_runtime().run(request_finish(gate, jobmanager, timeout_s, secret_of(secret_file)))


class GateClient:
    """One gate, for the partitions of this process.  Threading: any thread.

    With a ``GateDescription`` from elsewhere it needs no secret, and asks the JobManager only about failures, retries and commits.

    Args:
        description: of the gate.
        timeout_s: of each offer and each question.
        wait_for_room_s: how long an offer waits while the gate has as many producers as it may have, or no memory for another one.
    """

    def __init__(
        self,
        description: GateDescription,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        wait_for_room_s: float = DEFAULT_WAIT_FOR_ROOM_S,
    ) -> None:
        self.description = description
        self._timeout_s = timeout_s
        self._wait_for_room_s = wait_for_room_s

    def __repr__(self) -> str:
        return f"<GateClient of {self.description}>"

    def open_partition(self, offer: PartitionOffer) -> "PartitionWriter":
        """Offer a partition to every subtask of the gate; returns when all have accepted, or the partition is counted already.

        Raises:
            AttemptRefusedError: the gate has seen this attempt before, or had no room for another producer within ``wait_for_room_s``.
            GateEndedError: it accepts no more partitions.
            GateTypeError: its type has changed since the description was made.
            GateAccessError: the token is wrong or has expired.
            GateUnreachableError: a TaskManager cannot be reached.
            GateLostError: a TaskManager did not answer in time, or the connection was lost.
        """
        return PartitionWriter(producer_runtime(), self.description, offer, self._timeout_s, self._wait_for_room_s)

    def commit(self, job: str, num_partitions: int, epoch: int = 0) -> None:
        """Say that a write is complete with so many partitions.  May be repeated.

        Raises:
            GateWriteError: it was aborted, or the gate waits for another number of partitions.
            GateEndedError: the gate's job has failed or was cancelled, so the records are lost; says why.
            GateError: the JobManager does not answer, has forgotten the job, or does not accept the token.
        """
        self._end_write(job, epoch, num_partitions)

    def abort_write(self, job: str, epoch: int = 0) -> None:
        """Count no partition of a write, unless it is committed; its records stay processed.  Raises GateError: as ``commit``."""
        self._end_write(job, epoch, None)

    def _end_write(self, job: str, epoch: int, num_partitions: int | None) -> None:
        from flowlet.ingest.lookup import end_write  # as in ``open_gate``

        producer_runtime().run(end_write(self.description, job, epoch, self._timeout_s, num_partitions=num_partitions))


class PartitionWriter:
    """One attempt to push one partition.  Threading: one thread.

    Life cycle: ``write_records`` and ``write_batch``, then ``finish`` or ``abort``.  As a context manager it aborts on an error, and if
    ``finish`` was not called.
    """

    def __init__(
        self, runtime: ProducerRuntime, description: GateDescription, offer: PartitionOffer, timeout_s: float, wait_for_room_s: float
    ) -> None:
        self._runtime = runtime
        self._description = description
        self._offer = offer
        self._timeout_s = timeout_s
        self._wait_for_room_s = wait_for_room_s
        self._name = f"{offer} to {description}"
        self._is_ended = False
        self._is_counted = False  # by an earlier attempt, or by this one although its end was not heard of
        self._stall = StallWatch(time.monotonic)
        self._create_partition()
        try:
            self._type_info = description.type_info
            self._declared = declared_records(self._type_info)
            serializer = StreamElementSerializer(declared=self._declared)
            partitioner, subtask = description.partitioner, offer.partition
            self._open()
            if self._is_counted:
                return
            self._writer = create_record_writer(self._partition, partitioner, buffer_timeout_ms=0, subtask=subtask, serializer=serializer)
        except BaseException as error:
            self._give_up(error)
            raise
        runtime.watch(self._stall, self._name, self._why_in_vain, self._offered.abort)

    def __repr__(self) -> str:
        return f"<PartitionWriter of {self._name}{', ended' if self._is_ended else ''}>"

    @property
    def description(self) -> GateDescription:
        """The gate that it writes to."""
        return self._description

    @property
    def offer(self) -> PartitionOffer:
        """What it offers; with the nonce of the offer that the gate took."""
        return self._offer

    @property
    def is_counted(self) -> bool:
        """Whether the partition is counted already: what is written is dropped, and ``finish`` succeeds."""
        return self._is_counted

    def write_records(self, records: list[Any], timestamps: list[int] | None = None) -> None:
        """Push records in order; blocks while the gate grants no credit.  The caller must not change the list any more.

        Args:
            records: of the gate's type.
            timestamps: of the records, in milliseconds since the epoch; None: they have none.

        Raises:
            GateTypeError: a record or a timestamp is not of its type; names the first such record and its field.  Nothing of the list was
                sent.
            GateEndedError: the gate's job has ended.
            GateLostError: the connection was lost.
            UserFunctionError: the gate's key selector failed.
            SerdeError: a record cannot be serialized.
        """
        self._check_open()
        check_timestamps(timestamps, len(records), str(self._description))
        if isinstance(self._type_info, ArrowTypeInfo):
            self._write_whole(records, timestamps)
        elif records:
            self._write(checked_records(records, timestamps, self._declared, str(self._description)))

    def write_batch(self, batch: "pyarrow.RecordBatch") -> None:
        """Push the rows of a batch as records of the gate's type, without a loop over them; blocks and raises as ``write_records``.

        The columns must be the fields of the type, in any order if they have names.  A gate without a declared type gets tuples; one with
        an Arrow schema gets the batch as one record.

        Raises:
            GateTypeError: the columns are not those of the type; names one.  Nothing of the batch was sent.
        """
        from flowlet.ingest.batches import columns_of_batch  # here, because it imports pyarrow, which most producers do not need

        type_info = self._type_info
        order = check_columns(batch.schema.names, type_info, str(self._description))
        if not batch.num_rows:
            return
        batch = batch.select(order)
        if isinstance(type_info, ArrowTypeInfo):
            self._write_whole([batch], None)
        else:
            self.write_columns(columns_of_batch(batch, type_info))

    def write_columns(self, columns: Columns) -> None:
        """Push records that are in columns; blocks and raises as ``write_records``.  The caller must not change the columns any more.

        Rows go by the names of their fields.
        """
        if columns.num_rows:
            self._write(Chunk.of_columns(checked_columns(columns, self._declared, str(self._description))))

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until every operator and sink of the gate's job has processed every record; then the partition counts as complete.

        Windows, sums and timers keep records as state: their results may come later.

        Raises:
            GateLostError: the connection was lost, or it took longer than ``timeout_s``; the attempt is aborted.
            GateEndedError: the gate's job has ended.
        """
        self._check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._is_counted:
            try:
                self._partition.notify_end_of_data(StopMode.DRAIN)
                self._wait_for(Stage.PROCESSED, deadline)
                self._partition.finish()
                self._partition.close()
                self._wait_for(Stage.ENDED, deadline)
            except (NetstackError, GateError) as error:
                self._fail_unless_counted(error)
        self._end()

    def abort(self, reason: str) -> None:
        """Abort the attempt; the gate is told the reason.  Does nothing after ``finish`` or another ``abort``."""
        if not self._is_ended and self._runtime.pid == os.getpid():
            self._give_up(GateError(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.abort("the producer ended without finish()" if value is None else f"the producer failed: {type(value).__name__}: {value}")

    def _create_partition(self) -> None:
        num_subtasks = len(self._description.endpoints)
        name = f"the producer of {self._name}"
        self._partition = self._runtime.environment.create_result_partition(name, _partition_id(self._offer), num_subtasks)
        self._partition.observe_blocking(self._stall)
        self._offered = OfferedPartition(self._partition, num_subtasks)

    def _open(self) -> None:
        """Offer the partition until the gate has room for it, unless it is counted already."""
        if self._offer.may_be_counted and self._is_counted_already():
            self._release(GateError("the partition is counted already"))
            return
        room_deadline = time.monotonic() + self._wait_for_room_s
        pause_s = _FIRST_PAUSE_S
        while (busy := self._try_offer(room_deadline)) is not None and not self._is_counted:
            self._release(busy)
            if time.monotonic() + pause_s > room_deadline:
                raise self._no_room(str(busy)) from busy
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that producers do not come again all at once
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            self._offer = replace(self._offer, nonce=uuid.uuid4())  # messages about the last offer may still be on their way
            self._create_partition()

    def _try_offer(self, room_deadline: float) -> OfferRefusedError | None:
        """Offer the partition to all subtasks; returns the refusal of one that has no room."""
        try:
            self._offer_to_all(room_deadline)
        except OfferRefusedError as error:
            if error.code is RefusalCode.BUSY:
                return error
            self._fail_unless_counted(error)
        except (NetstackError, GateLostError) as error:
            self._fail_unless_counted(error)
        return None

    def _offer_to_all(self, room_deadline: float) -> None:
        description, offered = self._description, self._offered
        identity = GateIdentity(bytes.fromhex(description.job_id), description.name, description.expires_ms)
        access = GateAccess(identity, description.token)
        places = [
            (ConnectionID(endpoint.host, endpoint.port), self._message(subtask)) for subtask, endpoint in enumerate(description.endpoints)
        ]
        # The first subtask is the door.  Were all asked at once, two producers could each have a place that the other one waits for.
        for new in (slice(1), slice(1, None)) if len(places) > 1 else (slice(1),):
            deadline = time.monotonic() + self._timeout_s
            self._runtime.run(self._runtime.offering.offer(access, places[new], offered, self._timeout_s))
            if not offered.wait_for(Stage.QUEUED, max(0.0, deadline - time.monotonic()), new.stop):
                late = offered.late_subtasks(Stage.QUEUED)[: new.stop]
                raise GateLostError(f"{self._offer}: subtasks {late} of {description} did not answer within {self._timeout_s:g} s")
            if not offered.wait_for(Stage.REQUESTED, max(0.0, room_deadline - time.monotonic()), new.stop):
                late = offered.late_subtasks(Stage.REQUESTED)[: new.stop]
                raise self._no_room(f"subtasks {late} take as many producers as they may")

    def _no_room(self, reason: str) -> AttemptRefusedError:
        return AttemptRefusedError(
            f"{self._offer}: no room at {self._description} within {self._wait_for_room_s:g} s (wait_for_room_s, in Spark waitForRoom): "
            f"{reason}; push fewer partitions at a time, or start its TaskManager with a larger limit (--max-producers-per-gate: "
            "NetstackConfig.max_producers_per_gate)"
        )

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

    async def _why_in_vain(self) -> GateError | None:
        from flowlet.ingest.no_credit import why_in_vain  # as in ``open_gate``

        return await why_in_vain(self._description)

    def _write_whole(self, batches: "list[pyarrow.RecordBatch]", timestamps: list[int] | None) -> None:
        from flowlet.ingest.batches import whole_batches  # as in write_batch

        self._check_open()
        type_info = self._type_info
        assert isinstance(type_info, ArrowTypeInfo), "the callers checked"
        chunks = [  # one element for each, because batches are large; all are checked before the first one is sent
            whole_batches([batch], None if timestamps is None else [timestamps[number]], type_info, str(self._description))
            for number, batch in enumerate(batches)
        ]
        for chunk in chunks:
            self._write(chunk)

    def _write(self, chunk: Chunk) -> None:
        self._check_open()
        if self._is_counted:
            return
        try:
            self._writer.collect(chunk)
            self._writer.flush_pending()
        except NetstackError as error:
            self._fail_unless_counted(error)

    def _wait_for(self, stage: Stage, deadline: float | None) -> None:
        awaited = _AWAITED[stage]
        self._stall.mark_start(awaited)
        try:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._offered.wait_for(stage, left_s):  # waits for the gate's tasks; ended by them, the JobManager, or heartbeats
                late = self._offered.late_subtasks(stage)
                raise GateLostError(f"{self._name}: no more time to wait for {awaited}; subtasks {late} have not confirmed it")
        finally:
            self._stall.mark_end()

    def _check_open(self) -> None:
        if self._runtime.pid != os.getpid():
            raise GateLostError(f"{self._name} was made before this process was forked: open a partition in this process")
        if self._is_ended:
            failure = self._offered.failure
            raise GateLostError(f"{self._name}: the writer has ended{'' if failure is None else f': {failure}'}")

    def _fail_unless_counted(self, error: Exception) -> None:
        """Abort the attempt and raise its error, which names the gate, unless the JobManager says that the partition is counted."""
        cause = self._offered.failure
        known = next((each for each in (error, cause) if isinstance(each, GateError)), None)
        found = known or self._translated(cause if isinstance(cause, NetstackError) else error)
        self._release(found)
        if isinstance(found, _JOB_ENDED):
            found = self._explained(found)
        if not self._is_counted:
            self._give_up(found)
            raise found from error

    def _is_counted_already(self) -> bool:
        try:
            self._is_counted = self._ask_outcome(has_failed=False).is_counted
        except GateError as error:  # at least once: push it again
            _log.warning("the JobManager does not say whether a partition is counted", offer=self._name, error=str(error))
        return self._is_counted

    def _explained(self, error: GateError) -> GateError:
        """The error with what the JobManager knows of the job; also learns whether the partition is counted."""
        try:
            outcome = self._ask_outcome(has_failed=True)
        except GateError as second:
            return type(error)(f"{error} (why is not known: {second})")
        self._is_counted = outcome.is_counted
        if outcome.cause is not None:
            return type(error)(f"{error}; job {self._description.job_name!r} is {outcome.status}, because of {outcome.cause}")
        return error

    def _ask_outcome(self, *, has_failed: bool) -> GateOutcome:
        from flowlet.ingest.lookup import ask_outcome  # as in ``open_gate``

        partition = CountedPartition(self._offer.job, self._offer.epoch, self._offer.partition)
        try:
            return self._runtime.run(ask_outcome(self._description, partition, _OUTCOME_TIMEOUT_S, has_failed=has_failed))
        except ResourceClosedError as error:
            raise GateLostError(f"the producers of this process were closed: {error}") from error

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
        self._release(error)
        self._is_ended = True

    def _release(self, error: BaseException) -> None:
        """Abort this offer; another one may follow.  Again: does nothing."""
        self._offered.abort(error if isinstance(error, Exception) else GateError(f"{type(error).__name__}: {error}"))
        self._partition.close()
        self._withdraw()

    def _end(self) -> None:
        self._is_ended = True
        self._withdraw()

    def _withdraw(self) -> None:
        try:
            self._runtime.unwatch(self._stall)
            self._runtime.loop.execute_threadsafe(self._offered.withdraw)
        except ResourceClosedError:
            return  # the runtime was closed meanwhile, and with it this partition


def _partition_id(offer: PartitionOffer) -> ResultPartitionID:
    """The partition's id in this process; unique, because the nonce is."""
    producer: ExecutionAttemptID = execution_attempt_id(offer.nonce.bytes, offer.nonce.bytes, offer.partition, offer.attempt)
    return ResultPartitionID(intermediate_partition_id(offer.nonce.bytes, offer.partition), producer)
