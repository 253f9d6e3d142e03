"""``RemoteGateSource``: reads the partitions that producers outside the cluster push into a gate.

Side:       task.  The source is created in the user's program and pickled; a TaskManager binds each subtask's copy to
            its gate.
Invariants: a producer's end of data is acknowledged only when a completion mark that follows it has passed every task
            of the job, or, as the job's settings say, when a complete checkpoint holds it.  A partition counts once its
            producer knows that every subtask has acknowledged it, or a checkpoint holds it.  In a job with checkpoints
            records go into the job once (``PartitionLedger``); in one without, records of an aborted attempt stay
            processed, and come again (at least once).  A gate with a declared type reads values of this type and
            unpickles nothing, so nobody can run code here with its token, or pass on anything else.  A gate of any
            objects trusts the holders of its token as it trusts the job's own program.  With an event time column a
            record without a time is refused, and a time is rounded down to milliseconds.
Units:      event time in milliseconds since 1970 in UTC; a time without a zone is in UTC.
"""

from __future__ import annotations

import datetime
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import astuple

from flowlet.columns import Column
from flowlet.common.job_settings import RetryRule
from flowlet.common.time import Instant
from flowlet.common.typeinfo import ArrowTypeInfo, TypeInformation
from flowlet.connectors.gates.partition_ledger import (
    AttemptCursor,
    HeldPartition,
    PartitionLedger,
    UnfitAttemptError,
    merged,
)
from flowlet.errors import FlowletError, SerdeError, StateRestoreError
from flowlet.graph.partitioner import KeyGroups
from flowlet.messages.control_messages import CountedPartition, GateCounts
from flowlet.operators.source_reader import ReaderElement, Source, SourceReaderBase
from flowlet.records import Chunk
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.serde.type_serializer import preview
from flowlet.state.state_snapshots import StateShare
from flowlet.types.declared_records import DeclaredRecords, declared_records
from netstack.availability import AvailabilityFuture
from netstack.errors import RemoteProtocolError
from netstack.flow.offer_book import GateShape
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.offered_input_gate import OfferedInputGate
from netstack.late import dataclass
from netstack.late import numpy as np
from netstack.log_lines import limited_log
from netstack.wire.events import EndOfData, EndOfPartition
from netstack.wire.offer_messages import FINGERPRINT_BYTES, RefusalCode

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

GateReport = Callable[[GateCounts, list[CountedPartition]], None]
"""Takes the counts of a gate and the partitions that were completed since the last report."""
_STATE_VERSION: Final = 1
_MAX_REPORTED: Final = 1_000  # partitions in one message to the JobManager
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_MICROS_PER_MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class EventTimeColumn:
    """Gives records the time in their column, field ``position``; without a step per record if that is an array.

    Threading: any; it has no state.
    """

    name: str
    position: int

    def stamped(self, chunk: Chunk) -> Chunk:
        """The records with timestamps; do not use the given chunk any more.

        Raises:
            SerdeError: a record has no such column, or no time in it.
        """
        columns = chunk.columns
        if not len(chunk):
            return chunk
        if columns is None:
            return chunk.with_timestamps([self._time_of(self._value_of(record)) for record in chunk.values])
        if self.position >= len(columns.fields):
            raise SerdeError(f"the records have {len(columns.fields)} fields, but no column {self.name!r}")
        return chunk.with_timestamps(self._of_column(columns.fields[self.position]))

    def _value_of(self, record: Any) -> Any:
        try:
            return record[self.position]
        except (TypeError, LookupError) as error:
            raise SerdeError(f"the record {preview(record)} has no column {self.name!r}") from error

    def _of_column(self, column: Column) -> NDArray[np.int64] | list[int]:
        numbers = column.numbers()
        is_exact = numbers is not None and numbers.is_valid is None and numbers.kind.arrow_type is None
        if numbers is None or not is_exact or numbers.array.dtype != np.int64:
            return list(map(self._time_of, column.to_list()))
        return numbers.array // _MICROS_PER_MILLI if numbers.kind.is_instant else numbers.array.copy()

    def _time_of(self, value: Any) -> int:
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, Instant):
            return value.to_epoch_milli()
        if isinstance(value, datetime.datetime) and value.tzinfo is None:
            return (value - _EPOCH) // _MILLISECOND
        raise SerdeError(f"column {self.name!r} holds {preview(value)}, which is no time of a record")


@dataclass(eq=False)
class RemoteGateSource(Source):
    """A named gate into which any number of producers push.

    Args:
        name: by which producers find it; unique among running jobs.
        type_info: of its records.
        producers: how many partitions end the gate; None: ``finish_gate`` ends it.
        key_groups: how producers route records to the subtasks; None: in turn.
        event_time: gives the records their timestamps; None: they keep the producer's timestamps, if any.
    """

    is_bounded = False
    name: str
    type_info: TypeInformation
    producers: int | None = None
    key_groups: KeyGroups | None = None
    event_time: EventTimeColumn | None = None
    # Set by the TaskManager: makes the reader of the gate of a subtask.
    open_gate: Callable[..., RemoteGateReader] | None = field(default=None, init=False)

    @property
    def fingerprint(self) -> bytes:
        """The fingerprint of the gate's type, 16 bytes, which a producer must send.

        Equal types have equal fingerprints in every process.
        """
        text = f"{type(self.type_info).__name__} {self.type_info!r}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=FINGERPRINT_BYTES).digest()

    def shape(self, num_subtasks: int) -> GateShape:
        """The properties that offers are checked against."""
        return GateShape(self.name, repr(self.type_info), self.fingerprint, num_subtasks, self.producers)

    def redistribute_positions(self, positions: Sequence[object | None], share: StateShare) -> object:
        """The state of every subtask after a change of the parallelism; see ``partition_ledger.merged``."""
        return _state_of(merged([None if each is None else _held_in(each, self.name) for each in positions]))

    def create_reader(self, subtask: int, parallelism: int) -> RemoteGateReader:
        """The reader of the gate of this subtask.  Raises FlowletError: there is no gate."""
        if self.open_gate is None:
            raise FlowletError(
                f"gate {self.name!r}: only a TaskManager can open a remote gate; run the job on a cluster"
            )
        restore = None if self.event_time is None else self.event_time.stamped
        if isinstance(self.type_info, ArrowTypeInfo):
            restore = partial(_batches_of_messages, schema=self.type_info.schema)
        return self.open_gate(declared=declared_records(self.type_info), restore=restore)


def _batches_of_messages(chunk: Chunk, schema: pa.Schema) -> Chunk:
    """A chunk of the record batches that were sent as Arrow messages.

    Raises SerdeError: a record is no message of this schema.
    """
    # Here, because it imports pyarrow, which most jobs do not need.
    from pyarrow import py_buffer

    from flowlet.serde.arrow_serializer import batch_of_message

    for message in chunk.values:
        if type(message) is not bytes:
            raise SerdeError(f"a {type(message).__name__} where a record batch should be")
    return Chunk([batch_of_message(py_buffer(message), schema) for message in chunk.values], chunk.timestamps)


@dataclass(eq=False, repr=False)
class RemoteGateReader(SourceReaderBase):
    """The reader of one subtask.  Threading: the task thread.

    Args:
        gate: gives the records.
        report: called whenever a partition or an attempt has ended.
        request_mark: asks the JobManager for a completion mark with a higher number than this.
        declared: the format of the records; None: any objects, and the producers are trusted.
        restore: makes the records from the sent chunk, and raises SerdeError if it cannot; None: the chunk has the
            records themselves.
        retries: which attempts have equal records.
        takes_checkpoints: whether records that a checkpoint or another attempt has brought are left out; also done if
            the job begins with a checkpoint.
        waits_for_checkpoints: whether ``request_mark`` asks for a checkpoint instead, and a checkpoint that holds the
            end of data acknowledges it.
    """

    never_waits = True

    _gate: OfferedInputGate
    _report: GateReport
    _request_mark: Callable[[int], None]
    _: KW_ONLY
    declared: DeclaredRecords | None
    restore: Callable[[Chunk], Chunk] | None = None
    retries: RetryRule = RetryRule.SAME_ROWS
    takes_checkpoints: bool = False
    waits_for_checkpoints: bool = False

    def __post_init__(self) -> None:
        self._ledger = PartitionLedger(self.retries) if self.takes_checkpoints else None
        # By index of an open channel that has received data, if there is a ledger.
        self._cursors: dict[int, AttemptCursor] = {}
        # Below, a mark is a completion mark, or a checkpoint, which is emitted when it is taken.
        self._last_mark = 0  # the number of the last mark that was emitted
        self._is_mark_requested = False  # since then
        # Channels whose end of data waits for a mark, by index; None: it was not emitted yet.
        self._ended: dict[int, int | None] = {}
        self._deserializers: dict[int, ElementDeserializer] = {}  # by index of an open channel that has received data
        self._elements: deque[tuple[int, AttemptCursor | None, Chunk]] = deque()  # with the channel
        # Limited, because producers can abort as many attempts as they like; the gate's counts have all of them.
        self._log = limited_log(__name__, time.monotonic)
        self._gate.request_partitions()

    def __repr__(self) -> str:
        return (
            f"<RemoteGateReader of {self._gate!r}, {len(self._elements)} elements wait, {len(self._ended)} "
            "partitions wait for a mark>"
        )

    def snapshot_position(self) -> object:
        """The state that says which records of which partitions were given out."""
        assert self._ledger is not None, "the job takes checkpoints"
        return _state_of(self._ledger.held())

    def restore_position(self, position: object) -> None:
        """Go on with the state of a checkpoint, and tell the JobManager which partitions are complete."""
        self._ledger = PartitionLedger(self.retries, _held_in(position, self._gate.shape.name))
        self._report_ended(self._ledger.ended())

    def position_taken(self, checkpoint_id: int, num_waiting: int) -> None:
        """Note that a checkpoint holds the records given out so far."""
        if self._ledger is not None:
            self._ledger.take(checkpoint_id)
        if self.waits_for_checkpoints:
            self._follow(checkpoint_id)

    def position_kept(self, checkpoint_id: int) -> None:
        """Acknowledge the records and the ends that a complete checkpoint holds."""
        if self._ledger is None:
            return
        ended = self._ledger.complete(checkpoint_id)
        for index, cursor in self._cursors.items():
            if cursor.entry.kept > cursor.told:
                cursor.told = cursor.entry.kept
                self._gate.tell_held(index, cursor.entry.kept)
        if self.waits_for_checkpoints:
            self._report_ended(ended)
            self._acknowledge(checkpoint_id)

    def position_lost(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that has failed, and ask for another one if ends of partitions wait for one."""
        if self._ledger is not None:
            self._ledger.abort(checkpoint_id)
        if self.waits_for_checkpoints and self._ended:
            self._want_mark()

    def poll_chunk(self) -> ReaderElement | None:
        """The next records; an empty chunk if there are none yet, None when the gate is finished."""
        elements = self._elements
        gate = self._gate
        while not elements:
            item = gate.poll_next()
            self._forget_aborted()
            if item is None:
                return None if gate.is_finished else Chunk([])
            self._process_item(item)
        index, cursor, chunk = elements.popleft()
        if cursor is None:
            return chunk
        # An empty chunk tells the caller that no element waits here, so it must not be given while one does.
        while not len(chunk := self._new_records(index, cursor, chunk)) and elements:
            index, cursor, chunk = elements.popleft()
            assert cursor is not None, "all channels have one, or none has"
        return chunk

    def _new_records(self, index: int, cursor: AttemptCursor, chunk: Chunk) -> Chunk:
        """The records that no checkpoint and no other attempt has brought."""
        assert self._ledger is not None, "it made the cursor"
        try:
            num_known = self._ledger.admit(cursor, len(chunk))
        except UnfitAttemptError as error:
            if self._cursors.get(index) is cursor:  # else the attempt has ended already
                self._refuse(index, error)
            return Chunk([])
        return chunk.slice(num_known, len(chunk)) if num_known else chunk

    def available_future(self) -> AvailabilityFuture:
        """A future that is done when the gate has data, or is finished."""
        return self._gate.available_future()

    def close(self) -> None:
        """Drop incomplete elements; the task closes the gate."""
        for deserializer in self._deserializers.values():
            deserializer.close()
        self._deserializers.clear()

    def _process_item(self, item: BufferOrEvent) -> None:
        index = item.channel_index
        if item.buffer is not None:
            try:
                self._feed(index, item.buffer.view)
            finally:
                # Before the records are processed, so that the credit is on its way while the chain works.
                item.buffer.recycle()
        elif isinstance(item.event, EndOfData):
            self._end_data(index)
        elif isinstance(item.event, EndOfPartition):
            self._deserializers.pop(index, None)
            self._close_cursor(index)
            self._report_counts()
        else:
            self._abort(index, f"it sent {item.event}, which producers must not send")

    def _feed(self, index: int, view: memoryview) -> None:
        deserializer = self._deserializers.get(index)
        if deserializer is None:
            name = f"gate {self._gate.shape.name!r}, {self._gate.offer_of(index)}"
            deserializer = self._deserializers[index] = ElementDeserializer(name, declared=self.declared)
        try:
            # Watermarks of producers are ignored: the source makes its own.
            chunks = [element for element in deserializer.feed(view) if isinstance(element, Chunk)]
            if self.restore is not None:
                chunks = list(map(self.restore, chunks))
            cursor = self._cursor_of(index) if chunks else None
        except SerdeError as error:
            self._abort(index, str(error))
            return
        except UnfitAttemptError as error:
            self._refuse(index, error)
            return
        self._elements.extend((index, cursor, chunk) for chunk in chunks)

    def _cursor_of(self, index: int) -> AttemptCursor | None:
        """The cursor of the attempt on an open channel; None: the job takes no checkpoints.

        Raises UnfitAttemptError: nobody can tell which of its records are held.
        """
        if self._ledger is None:
            return None
        cursor = self._cursors.get(index)
        if cursor is None:
            offer = self._gate.offer_of(index)
            key = CountedPartition(offer.job, offer.epoch, offer.partition)
            cursor = self._cursors[index] = self._ledger.open(key, offer.attempt, offer.first_record)
        return cursor

    def _close_cursor(self, index: int) -> None:
        cursor = self._cursors.pop(index, None)
        if cursor is not None and self._ledger is not None:
            self._ledger.close(cursor)

    def _end_data(self, index: int) -> None:
        deserializer = self._deserializers.get(index)
        if deserializer is not None and deserializer.has_partial:
            self._abort(index, "its data ended in the middle of a record")
            return
        is_kept = False
        if self._ledger is not None:
            try:
                cursor = self._cursor_of(index)
                assert cursor is not None, "there is a ledger"
                self._ledger.end(cursor)
            except UnfitAttemptError as error:
                self._refuse(index, error)
                return
            is_kept = self.waits_for_checkpoints and cursor.entry.is_end_kept
        if is_kept:
            self._gate.acknowledge_all_records_processed(index)
            return
        self._ended[index] = None
        self._want_mark()

    def _want_mark(self) -> None:
        if not self._is_mark_requested:
            self._is_mark_requested = True
            self._request_mark(self._last_mark)

    def mark_emitted(self, number: int) -> None:
        """Note that a completion mark follows the records of all partitions that have ended."""
        if not self.waits_for_checkpoints:
            self._follow(number)

    def mark_completed(self, number: int) -> None:
        """Acknowledge the partitions in front of a mark: the whole job has processed their records."""
        if not self.waits_for_checkpoints:
            self._acknowledge(number)

    def _follow(self, number: int) -> None:
        self._last_mark = number
        self._is_mark_requested = False
        for index, mark in self._ended.items():
            if mark is None:
                self._ended[index] = number

    def _acknowledge(self, number: int) -> None:
        for index in [index for index, mark in self._ended.items() if mark is not None and mark <= number]:
            del self._ended[index]
            self._gate.acknowledge_all_records_processed(index)

    def _refuse(self, index: int, error: UnfitAttemptError) -> None:
        self._gate.abort_channel(index, RemoteProtocolError(str(error)), RefusalCode.UNFIT_ATTEMPT)
        self._forget_aborted()

    def _abort(self, index: int, reason: str) -> None:
        self._gate.abort_channel(index, RemoteProtocolError(f"{self._gate.offer_of(index)}: {reason}"))
        self._forget_aborted()

    def _forget_aborted(self) -> None:
        for index, offer, error in self._gate.take_aborted():
            self._ended.pop(index, None)  # its place is given to the next partition
            self._close_cursor(index)
            deserializer = self._deserializers.pop(index, None)
            if deserializer is not None:
                deserializer.close()
            self._log.warning(
                "an attempt to push a partition was aborted",
                gate=self._gate.shape.name,
                offer=str(offer),
                error=str(error),
            )
            self._report_counts()

    def _report_counts(self) -> None:
        offers = self._gate.take_completed()
        self._report(self._counts(), [CountedPartition(each.job, each.epoch, each.partition) for each in offers])

    def _report_ended(self, ended: list[CountedPartition]) -> None:
        """Tell the JobManager which partitions a complete checkpoint holds."""
        for start in range(0, len(ended), _MAX_REPORTED):
            self._report(self._counts(), ended[start : start + _MAX_REPORTED])

    def _counts(self) -> GateCounts:
        counts = self._gate.counts()
        return GateCounts(counts.num_open, counts.num_completed, counts.num_aborted, counts.num_refused)


def _state_of(held: Sequence[HeldPartition]) -> object:
    return _STATE_VERSION, [
        (*astuple(each.key), each.attempt, each.num_records, each.has_ended, each.is_divided) for each in held
    ]


def _held_in(state: Any, gate: str) -> list[HeldPartition]:
    version, rows = state
    if version != _STATE_VERSION:
        raise StateRestoreError(
            f"the state of gate {gate!r} has version {version}, this flowlet reads {_STATE_VERSION}"
        )
    return [HeldPartition(CountedPartition(*row[:3]), *row[3:]) for row in rows]
