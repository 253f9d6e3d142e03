"""``PartitionWriter``: pushes one partition into a remote gate, through failures of the gate's tasks and of its
JobManager.

Side:       shared.  Calls block the thread that has the data; the network runs on one background loop per process.
Invariants: ``finish`` returns only when the gate's job has processed every record, or, as its settings say, when a
            checkpoint holds it, and each subtask of the gate has counted the partition.  In a job with checkpoints,
            records that no checkpoint holds are kept, and sent again to a new run; the gate skips records that it has
            (``PartitionLedger``).  So one call goes on through failures, for ``resume_timeout_s`` at a time.  In a job
            without checkpoints, an attempt ends with its connection, but records that it sent may have been processed.
            A call that waits fails, with an error that names the gate, when the gate, its job or the connection is gone
            for good; the error has the cause of the job's failure, if the JobManager knows one.  A retry of a partition
            that is counted already succeeds, and sends nothing.  Records that wait to be sent take at most the
            process's network memory; those that wait for a checkpoint, ``max_kept_bytes``.
Promises:   docs/remote-gates.md.
"""

import os
import random
import time
import uuid
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from flowlet.columns import Columns
from flowlet.common.typeinfo import ArrowTypeInfo
from flowlet.ingest.description import (
    AttemptRefusedError,
    GateAccessError,
    GateDescription,
    GateEndedError,
    GateError,
    GateLostError,
    GateTypeError,
    GateUnreachableError,
    PartitionOffer,
    check_columns,
    check_timestamps,
    checked_columns,
    checked_records,
)
from flowlet.ingest.partition_push import PartitionPush, UnacknowledgedRows, no_room
from flowlet.ingest.runtime import ProducerRuntime, StallWatch, Watched
from flowlet.io.chunk_content import estimated_bytes
from flowlet.messages.control_messages import CountedPartition, GateOutcome
from flowlet.records import Chunk
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.types.declared_records import declared_records
from netstack.errors import AuthenticationError, ConnectError, NetstackError, ResourceClosedError
from netstack.flow.heartbeats import Backoff
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.offering_network import OfferRefusedError
from netstack.wire.offer_messages import RefusalCode

if TYPE_CHECKING:
    import pyarrow

_log = LogLines(__name__)
# The JobManager waits up to 2 s for the cause of a failure, and for tasks.
_OUTCOME_TIMEOUT_S: Final = 60.0
_BACKOFF_S: Final = Backoff(first=0.05, longest=1.0, jitter=0.5)  # before an offer is repeated
_JOB_ENDED: Final = (GateEndedError, GateLostError, GateUnreachableError)  # the job may have failed
_ENDS: Final = ("FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED")


@dataclass(frozen=True, slots=True)
class PushLimits:
    """How long a producer waits, in seconds, and how much it keeps.

    ``timeout_s``: for the answer to an offer or a question.  ``wait_for_room_s``: while the gate has as many producers
    as it may have, or no memory for another one.  ``resume_timeout_s``: for a gate that was lost, until it has the rows
    again.  ``max_kept_bytes``: of a partition's rows that no checkpoint holds.  The last two matter only if the gate's
    job takes checkpoints.
    """

    # A function in the gate's TaskManager may keep the interpreter's lock for 50 s, Flink's heartbeat.timeout.
    timeout_s: float = 60.0
    wait_for_room_s: float = 300.0  # a producer holds its place until its partition ends
    # A TaskManager that stands still is lost after 50 s, and a job that restarts waits up to a minute.
    resume_timeout_s: float = 120.0
    max_kept_bytes: int = 32 << 20  # not measured


DEFAULT_LIMITS: Final = PushLimits()


class PartitionWriter:
    """One attempt to push one partition.  Threading: one thread.

    Life cycle: ``write_records`` and ``write_batch``, then ``finish`` or ``abort``.  As a context manager it aborts on
        an error, and if ``finish`` was not called.
    """

    def __init__(
        self, runtime: ProducerRuntime, description: GateDescription, offer: PartitionOffer, limits: PushLimits
    ) -> None:
        self._runtime = runtime
        self._description = description
        self._offer = offer
        self._limits = limits
        self._name = f"{offer} to {description}"
        self._is_ended = False
        self._number = -1  # none yet: in the runtime's list of open partitions
        self._is_counted = False  # by an earlier attempt, or by this one although its end was not heard of
        self._stall = StallWatch(time.monotonic)
        num_subtasks = len(description.endpoints)
        self._rows = UnacknowledgedRows(num_subtasks, limits.max_kept_bytes) if description.has_checkpoints else None
        self._num_resumed = 0
        self._push = self._new_push()
        try:
            self._type_info = description.type_info
            self._declared = declared_records(self._type_info)
            if self._offer.may_be_counted and self._is_counted_already():
                self._push.release(GateError("the partition is counted already"))
                return
            try:
                self._open()
            except (NetstackError, GateLostError) as error:
                self._recover(error)
        except BaseException as error:
            self._give_up(error)
            raise
        self._number = runtime.opened(self.abort, self._name)

    def __repr__(self) -> str:
        return f"<PartitionWriter of {self._name}{', ended' if self._is_ended else ''}>"

    @property
    def num_resumed(self) -> int:
        """How often the partition was offered again after a failure, at the gate's place at that time, and went on."""
        return self._num_resumed

    @property
    def description(self) -> GateDescription:
        """The gate that this writer writes to."""
        return self._description

    @property
    def offer(self) -> PartitionOffer:
        """The partition and attempt, with the nonce of the offer that the gate took."""
        return self._offer

    @property
    def is_counted(self) -> bool:
        """Whether the partition is counted already: then written records are dropped, and ``finish`` succeeds."""
        return self._is_counted

    def write_records(self, records: list[Any], timestamps: list[int] | None = None) -> None:
        """Push records in order; blocks while the gate grants no credit.  The caller must not change the list any more.

        Args:
            records: of the gate's type.
            timestamps: of the records, in milliseconds since the epoch; None: they have none.

        Raises:
            GateTypeError: a record or a timestamp is not of its type; names the first such record and its field.
                No record of the list was sent.
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
        """Push the rows of a batch as records of the gate's type, without a loop over them; blocks and raises as
        ``write_records``.

        The columns must be the fields of the type, in any order if they have names.  A gate without a declared type
        gets tuples; one with an Arrow schema gets the batch as one record.

        Raises:
            GateTypeError: the columns are not those of the type; names one.  No row of the batch was sent.
        """
        # Here, because it imports pyarrow, which most producers do not need.
        from flowlet.columns.arrow_batches import column_of_array
        from flowlet.types.gate_forms import shaped

        type_info = self._type_info
        order = check_columns(batch.schema.names, type_info, str(self._description))
        if not batch.num_rows:
            return
        batch = batch.select(order)
        if isinstance(type_info, ArrowTypeInfo):
            self._write_whole([batch], None)
        else:
            self.write_columns(shaped(list(map(column_of_array, batch.columns)), type_info))

    def write_columns(self, columns: Columns) -> None:
        """Push records that are in columns; blocks and raises as ``write_records``.

        The caller must not change the columns any more.

        Rows go by the names of their fields.
        """
        if columns.num_rows:
            self._write(Chunk.of_columns(checked_columns(columns, self._declared, str(self._description))))

    def finish(self, timeout_s: float | None = None) -> None:
        """Wait until the partition counts as complete.

        It does when a checkpoint of the gate's job holds every record, or, without checkpoints and with
        ``flowlet.gate.acknowledge: processed``, when every operator and sink has processed every record.  Windows, sums
        and timers keep records as state: their results may come later.

        Raises:
            GateLostError: the connection was lost, for ``resume_timeout_s`` if the job takes checkpoints, or it took
                longer than ``timeout_s``; the attempt is aborted.
            GateEndedError: the gate's job has ended.
        """
        self._check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._is_counted:
            try:
                self._push.end(deadline)
                break
            except (NetstackError, GateError) as error:
                self._recover(error, deadline)
        self._end()
        self._push.withdraw()

    def abort(self, reason: str) -> None:
        """Abort the attempt, and tell the gate the reason.  Does nothing after ``finish`` or another ``abort``."""
        if not self._is_ended and self._runtime.pid == os.getpid():
            self._give_up(GateError(reason))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = f"the producer failed: {type(value).__name__}: {value}"
        self.abort("the producer ended without finish()" if value is None else failed)

    # ---------------------------------------------------------------- one offer

    def _new_push(self) -> PartitionPush:
        first = (0,) * len(self._description.endpoints) if self._rows is None else self._rows.first_records
        return PartitionPush(self._runtime, self._description, self._offer, self._stall, first)

    def _open(self) -> None:
        """Offer the partition until the gate has room for it; then records may be written.

        Raises:
            OfferRefusedError, GateLostError, NetstackError: the gate does not take it, or was lost.
            AttemptRefusedError: there was no room.
        """
        wait_for_room_s = self._limits.wait_for_room_s
        room_deadline = time.monotonic() + wait_for_room_s
        pauses_s = _BACKOFF_S.delays(random.random)
        while True:
            try:
                self._push.offer(self._limits.timeout_s, room_deadline, wait_for_room_s)
                break
            except OfferRefusedError as busy:
                if busy.code is not RefusalCode.BUSY:
                    raise
                self._push.release(busy)
                pause_s = next(pauses_s)
                if time.monotonic() + pause_s > room_deadline:
                    raise no_room(self._offer, self._description, wait_for_room_s, str(busy)) from busy
            time.sleep(pause_s)
            self._renew_push()
        self._push.begin(self._declared, None if self._rows is None else self._rows.num_before)
        self._runtime.watch(self._stall, Watched(self._name, self._why_in_vain, self._push.offered.abort))

    def _renew_push(self) -> None:
        # Messages about the last offer may still be on their way.
        self._offer = replace(self._offer, nonce=uuid.uuid4())
        self._push = self._new_push()

    async def _why_in_vain(self) -> GateError | None:
        from flowlet.ingest.lookup import why_in_vain

        return await why_in_vain(self._description)

    # ---------------------------------------------------------------- records

    def _write_whole(self, batches: "list[pyarrow.RecordBatch]", timestamps: list[int] | None) -> None:
        self._check_open()
        type_info = self._type_info
        assert isinstance(type_info, ArrowTypeInfo), "the callers checked"
        # One element for each, because batches are large; all are checked before the first one is sent.
        messages = [_message_of(batch, type_info, str(self._description)) for batch in batches]
        for number, message in enumerate(messages):
            self._write(Chunk([message], None if timestamps is None else [timestamps[number]]))

    def _write(self, chunk: Chunk) -> None:
        self._check_open()
        if self._is_counted:
            return
        kept = None
        if self._rows is not None:
            num_bytes = estimated_bytes(chunk)
            self._make_room(self._rows, num_bytes)
            if self._is_counted:
                return
            kept = self._rows.add(chunk, num_bytes)
        try:
            self._push.write(chunk)
            if kept is not None:
                kept.num_sent = self._push.num_sent
        except NetstackError as error:
            self._recover(error)

    def _make_room(self, rows: UnacknowledgedRows, num_bytes: int) -> None:
        """Wait until so many more bytes may be kept: until checkpoints hold enough of the kept ones."""
        rows.acknowledge(self._push.offered.num_held())
        while not rows.has_room(num_bytes) and not self._is_counted:
            needed = rows.next_needed
            assert needed is not None, "what was sent before is sent wholly"
            try:
                self._want_checkpoint()
                self._push.wait_until_held(needed)
            except NetstackError as error:
                self._recover(error)
            rows.acknowledge(self._push.offered.num_held())

    def _want_checkpoint(self) -> None:
        from flowlet.ingest.lookup import want_checkpoint  # as in ``open_gate``

        try:
            self._runtime.run(want_checkpoint(self._description, _OUTCOME_TIMEOUT_S))
        except GateError as error:  # there are others
            _log.info("the JobManager cannot be asked for a checkpoint", gate=str(self._description), error=str(error))

    def _check_open(self) -> None:
        if self._runtime.pid != os.getpid():
            raise GateLostError(
                f"{self._name} was made before this process was forked: open a partition in this process"
            )
        if self._is_ended:
            failure = self._push.offered.failure
            raise GateLostError(f"{self._name}: the writer has ended{'' if failure is None else f': {failure}'}")

    # ---------------------------------------------------------------- failures

    def _recover(self, error: Exception, deadline: float | None = None) -> None:
        """Go on at the gate's new place, or find that the partition is counted; else abort the attempt and raise.

        The error names the gate; without checkpoints there is no second try.
        """
        if self._rows is None or (deadline is not None and time.monotonic() >= deadline):
            self._fail_unless_counted(error)
            return
        give_up_s = time.monotonic() + self._limits.resume_timeout_s
        give_up_s = give_up_s if deadline is None else min(give_up_s, deadline)
        pauses_s = _BACKOFF_S.delays(random.random)
        while True:
            found = self._found(error)
            self._push.release(found)
            if not self._may_pass(error, found):
                self._fail_unless_counted(error)
                return
            try:
                if self._find_gate(found):
                    self._resume(self._rows)
                    return
            except (NetstackError, GateError) as next_error:
                if self._is_ended:
                    raise
                error = next_error
            if self._is_counted:
                return
            if time.monotonic() >= give_up_s:
                limit = f"{self._limits.resume_timeout_s:g} s (resume_timeout_s, in Spark resumeTimeout)"
                lost = GateLostError(f"{self._name}: lost for {limit}; at last: {self._found(error)}")
                self._fail_unless_counted(lost)
            time.sleep(next(pauses_s))

    def _may_pass(self, error: Exception, found: GateError) -> bool:
        """Whether a new run of the job may take the partition that this one did not take."""
        cause = self._push.offered.failure
        if isinstance(error if cause is None else cause, ResourceClosedError):
            return False  # the producers of this process were closed
        refusal = next((each for each in (error, cause) if isinstance(each, OfferRefusedError)), None)
        if refusal is not None and refusal.code is RefusalCode.REPEATED_ATTEMPT:
            return True  # the gate has not noticed the end of the last connection, or has counted the partition
        # A plain GateError is the JobManager's answer while it starts.
        return isinstance(found, _JOB_ENDED) or type(found) is GateError

    def _find_gate(self, found: GateError) -> bool:
        """Ask for the gate's place; False if the gate runs nowhere just now, or the partition is counted.

        Raises:
            GateError: its job has ended, or the JobManager does not answer.
        """
        from flowlet.ingest.lookup import ask_place  # as in ``open_gate``

        outcome = self._ask_outcome(has_failed=False)
        self._is_counted = outcome.is_counted
        if self._is_counted:
            return False
        if outcome.status in _ENDS or (outcome.is_finishing and isinstance(found, GateEndedError)):
            self._fail_unless_counted(found)
            return False
        endpoints = self._runtime.run(ask_place(self._description, _OUTCOME_TIMEOUT_S))
        if endpoints is None:
            return False
        if len(endpoints) != len(self._description.endpoints):
            self._fail_unless_counted(GateLostError(f"{self._name}: the gate has {len(endpoints)} subtasks now"))
            return False
        self._description = replace(self._description, endpoints=endpoints)
        return True

    def _resume(self, rows: UnacknowledgedRows) -> None:
        """Offer the partition at the gate's present place, and send records again that no checkpoint holds."""
        rows.acknowledge(self._push.offered.num_held())
        self._renew_push()
        self._open()
        for kept in rows.kept:
            kept.num_sent = None
        for kept in rows.kept:
            self._push.write(kept.chunk)
            kept.num_sent = self._push.num_sent
        self._num_resumed += 1
        _log.info(
            "a producer goes on at a new run of the gate's job",
            offer=self._name,
            chunks=len(rows.kept),
            left_out=rows.num_before,
        )

    def _found(self, error: Exception) -> GateError:
        cause = self._push.offered.failure
        known = next((each for each in (error, cause) if isinstance(each, GateError)), None)
        return known or self._translated(cause if isinstance(cause, NetstackError) else error)

    def _fail_unless_counted(self, error: Exception) -> None:
        """Abort the attempt and raise its error, which names the gate, unless the JobManager says that the partition is
        counted.
        """
        found = self._found(error) if not isinstance(error, GateError) else error
        self._push.release(found)
        if isinstance(found, _JOB_ENDED):
            found = self._explained(found)
        if not self._is_counted:
            self._give_up(found)
            raise found from error

    def _is_counted_already(self) -> bool:
        try:
            self._is_counted = self._ask_outcome(has_failed=False).is_counted
        except GateError as error:  # at least once: push it again
            _log.warning(
                "the JobManager does not say whether a partition is counted", offer=self._name, error=str(error)
            )
        return self._is_counted

    def _explained(self, error: GateError) -> GateError:
        """The error, with the cause that the JobManager knows; also finds out whether the partition is counted."""
        try:
            outcome = self._ask_outcome(has_failed=True)
        except GateError as second:
            return type(error)(f"{error} (why is not known: {second})")
        self._is_counted = outcome.is_counted
        if outcome.cause is not None:
            return type(error)(
                f"{error}; job {self._description.job_name!r} is {outcome.status}, because of {outcome.cause}"
            )
        return error

    def _ask_outcome(self, *, has_failed: bool) -> GateOutcome:
        from flowlet.ingest.lookup import ask_outcome  # as in ``open_gate``

        partition = CountedPartition(self._offer.job, self._offer.epoch, self._offer.partition)
        try:
            return self._runtime.run(
                ask_outcome(self._description, partition, _OUTCOME_TIMEOUT_S, has_failed=has_failed)
            )
        except ResourceClosedError as error:
            raise GateLostError(f"the producers of this process were closed: {error}") from error

    def _translated(self, error: Exception) -> GateError:
        gate = self._description
        text = f"{self._offer}: {error}"
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
                return GateLostError(
                    f"{text}; {gate} was lost and this attempt is aborted: push the partition again with a new attempt"
                )

    def _give_up(self, error: BaseException) -> None:
        self._push.release(error)
        self._end()

    def _end(self) -> None:
        self._is_ended = True
        self._runtime.ended(self._number)


def _message_of(batch: "pyarrow.RecordBatch", type_info: ArrowTypeInfo, gate: str) -> bytes:
    """The batch as an Arrow message, so that its reader unpickles nothing.

    Raises:
        GateTypeError: it does not have the gate's schema; names the column.
    """
    import pyarrow as pa  # as in write_batch

    from flowlet.serde.arrow_serializer import message_of_batch

    schema = type_info.schema
    if isinstance(batch, pa.RecordBatch) and batch.schema.names == schema.names and batch.schema.types == schema.types:
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)  # they differ in nullability at most
    try:
        message: bytes = message_of_batch(batch, schema).to_pybytes()
    except ValueMismatchError as error:
        column = f"column {error.path!r}: " if error.path else ""
        raise GateTypeError(f"{column}{error.reason}; {gate} takes {type_info!r}") from error
    return message
