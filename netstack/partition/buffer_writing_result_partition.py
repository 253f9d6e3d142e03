"""How records get into the buffers of a partition.

The kinds of result partitions, and what follows from each.

Side:       shared.
Source:     Flink 2.x ``ResultPartitionType``.  Flink ``BufferWritingResultPartition``.  There the partition that can be
            read and released is the base of the one that writes; here it is the other way round, since only
            ``ResultPartition`` is named by others.  A buffer is added to its subpartition with its first bytes in it
            (Flink adds it empty); no reader can tell, since the first unfinished buffer is never announced.
Absent:     the hybrid types (tiered storage).
Hot path:   ``emit_record``, per serialized chunk.
Invariants: an open builder is the last element of its subpartition; there are builders of single subpartitions or one
            for all, never both.  A subpartition whose consumer left early drops what is emitted to it.
Units:      sizes in bytes, times in nanoseconds.
"""

from collections.abc import Sequence
from contextlib import closing
from enum import Enum, unique
from typing import Final

from netstack.availability import AvailabilityFuture
from netstack.buffer.buffer_builder import BufferBuilder, BufferConsumer, ContentConsumer, SegmentConsumer
from netstack.buffer.local_buffer_pool import BlockingObserver, LocalBufferPool
from netstack.buffer.network_buffer import BufferContent, MemorySegment, recycle_segments
from netstack.errors import LocalProtocolError, ProducerFailedError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.late import dataclass
from netstack.partition.pipelined_subpartition import NO_BUFFER_SIZE
from netstack.partition.result_subpartition import ResultSubpartition, SubpartitionState
from netstack.wire.events import EndOfData, Event, StopMode, event_data_type, serialize_event


@unique
class ResultPartitionType(Enum):
    """How a partition is produced, consumed and released.

    =====================  =======  ==========  =================  =================  ==============
    type                   bounded  persistent  must be pipelined  can be pipelined   released by
    =====================  =======  ==========  =================  =================  ==============
    BLOCKING               yes      no          no                 no                 scheduler
    BLOCKING_PERSISTENT    yes      yes         no                 no                 scheduler
    PIPELINED              no       no          yes                yes                its consumers
    PIPELINED_BOUNDED      yes      no          yes                yes                its consumers
    PIPELINED_APPROXIMATE  yes      no          no                 yes                scheduler
    =====================  =======  ==========  =================  =================  ==============
    """

    BLOCKING = "blocking"
    BLOCKING_PERSISTENT = "blocking persistent"
    PIPELINED = "pipelined"
    PIPELINED_BOUNDED = "pipelined bounded"
    PIPELINED_APPROXIMATE = "pipelined approximate"

    @property
    def is_bounded(self) -> bool:
        """Whether the number of its buffers is limited."""
        return self is not ResultPartitionType.PIPELINED

    @property
    def is_persistent(self) -> bool:
        """Whether it outlives its job."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT

    @property
    def is_blocking(self) -> bool:
        """Whether it is read only when it is finished, and then any number of times."""
        return self in _BLOCKING

    @property
    def must_be_pipelined_consumed(self) -> bool:
        """Whether producer and consumer have to run side by side."""
        return self in _MUST_BE_PIPELINED

    @property
    def can_be_pipelined_consumed(self) -> bool:
        """Whether it may be read while it is written."""
        return self not in _BLOCKING

    @property
    def is_released_by_scheduler(self) -> bool:
        """Whether it stays until it is released by name, instead of ending with its last consumer."""
        return self not in _MUST_BE_PIPELINED

    @property
    def is_reconsumable(self) -> bool:
        """Whether another reader may come after the first."""
        return self not in _MUST_BE_PIPELINED

    @property
    def supports_compression(self) -> bool:
        """Whether its buffers are compressed by default (those of pipelined types only if a job asks for it)."""
        return self.is_blocking

    def max_pool_buffers(self, num_subpartitions: int, buffers_per_channel: int, floating_buffers: int) -> int | None:
        """How many buffers its pool may hold; None if there is no limit."""
        return num_subpartitions * buffers_per_channel + floating_buffers if self.is_bounded else None


_BLOCKING = frozenset({ResultPartitionType.BLOCKING, ResultPartitionType.BLOCKING_PERSISTENT})
_MUST_BE_PIPELINED = frozenset({ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED})


@unique
class ResultPartitionState(Enum):
    """The life of a partition.

    It takes data only while it is ``OPEN``; ``FINISHING`` stays if the end cannot be written.  A finished partition is
    released when every subpartition was consumed and its task closed it; one that fails, or is closed unfinished, at
    once::

        OPEN -- finish --> FINISHING -- end written --> FINISHED -- close --> CLOSED -- all consumed --> RELEASED
          |                  |                            |                     |                           ^
          `------------------+------ release, fail, ------+- close unfinished --+---------------------------'
    """

    OPEN = "open"
    FINISHING = "finishing"
    FINISHED = "finished"
    CLOSED = "closed"
    RELEASED = "released"


_OPEN: Final = ResultPartitionState.OPEN
ALL: Final = -1  # in place of a subpartition: data that is written once for all of them
_SUBPARTITION_RELEASED: Final = SubpartitionState.RELEASED


@dataclass(frozen=True, slots=True)
class ResultPartitionStatistics:
    """The numbers of one partition; bytes and buffers count when a buffer is finished."""

    num_bytes_out: int
    num_buffers_out: int
    num_queued_buffers: int
    num_queued_bytes: int
    hard_blocked_ns: int
    num_bytes_by_subpartition: tuple[int, ...]


class BufferWritingResultPartition:
    """The writing side of a partition: builders, buffers and their numbers.

    State: all of ``_builders``, ``_trimmed_segment_bytes`` and the numbers is the task thread's; ``statistics`` reads
        the numbers without a lock, one buffer stale.  It also reads ``_state`` and ``_failure_cause``, which
        ``ResultPartition`` writes under its lock, without that lock, one buffer stale: the subpartitions drop data that
        is emitted meanwhile.
    Ownership: owns ``buffer_pool``, which says whether emitting would block, and ends with ``close`` or ``release``;
               buffers in flight go home when they are recycled.
    """

    def __init__(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        buffer_pool: LocalBufferPool,
        owner: str,
        *,
        partition_type: ResultPartitionType,
    ) -> None:
        self.partition_id = partition_id
        self.partition_type = partition_type
        self.owner = owner
        self.buffer_pool = buffer_pool
        self._subpartitions: list[ResultSubpartition] = []  # Complete when the partition is made.
        self._state = _OPEN
        self._failure_cause: ProducerFailedError | None = None
        # The last one is for ``ALL``.  The one before it stays None, so that a number that is one too large fails.
        self._builders: list[BufferBuilder | None] = [None] * (num_subpartitions + 2)
        self._trimmed_segment_bytes = 0  # how large a builder was before it was made smaller, 0 if none was
        self._has_notified_end_of_data = False
        self._num_bytes = [0] * num_subpartitions
        self._num_buffers_out = 0

    @property
    def num_subpartitions(self) -> int:
        """How many consumers it has."""
        return len(self._subpartitions)

    @property
    def is_available(self) -> bool:
        """Whether a buffer is free, so that emitting does not block at once."""
        return self.buffer_pool.is_available

    @property
    def num_obtainable(self) -> int:
        """How many buffers can be had without a wait, overdraft included; a guess while others request and recycle."""
        return self.buffer_pool.num_obtainable

    @property
    def num_buffers_out(self) -> int:
        """How many buffers were filled for consumers so far; one for all counts once for each."""
        return self._num_buffers_out

    def available_future(self) -> AvailabilityFuture:
        """Return the future that is done while a buffer is free (or the pool is gone), else completed
        when one comes.
        """
        return self.buffer_pool.available_future()

    def observe_blocking(self, observer: BlockingObserver) -> None:
        """Tell ``observer`` whenever an emit waits for a buffer; called before the first one."""
        self.buffer_pool.observe_blocking(observer)

    # ---------------------------------------------------------------- task thread

    def emit_record(self, record: bytes | memoryview, subpartition: int) -> None:
        """Append ``record`` (single bytes), over as many buffers as it takes; may block for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        # Without the lock: after a release that comes just now the subpartition drops the record.
        if self._state is not _OPEN:
            self._refuse()
        builder = self._builders[subpartition]
        # Fast path: a record that fits into the open buffer needs neither the pool nor a lock.
        if builder is not None:
            written = builder.append_and_commit(record)
        else:
            written = self._start_buffer(subpartition, record, is_continuation=False)
        if written < len(record):
            self._emit_rest(memoryview(record)[written:], subpartition)
        elif builder is None and self._builders[subpartition] is None:
            return  # it filled its buffer
        builder = self._builders[subpartition]
        # Finished now, not with the next record: the reader of a full buffer that is not finished is not told of it.
        if builder is not None and builder.is_full and not self._make_room(builder, 0):
            self._finish_builder(subpartition)

    def takes_contents(self, subpartition: int) -> bool:
        """Whether ``emit_content`` would take a content."""
        return self._subpartitions[subpartition].takes_contents

    def emit_content(self, content: BufferContent, subpartition: int) -> bool:
        """Append whole records that are no bytes yet, behind everything emitted before, if the consumer takes them so;
        may block for a buffer.

        Ownership: the content is taken over, unless False is returned: then ``emit_record`` its bytes.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._state is not _OPEN:
            self._refuse()
        target = self._subpartitions[subpartition]
        # Before anything changes: the caller then emits bytes.
        if not target.takes_contents:
            return False
        # Both must be complete before the content stands behind them: only the last element may be unfinished.
        if self._builders[ALL] is not None:
            self._finish_builder(ALL)
        self._finish_builder(subpartition)
        # Stays empty: the content takes the place of one buffer, so that the pool bounds contents, too.
        segment = self.buffer_pool.request_segment_blocking(subpartition)
        if target.add(ContentConsumer(segment, self.buffer_pool.recycler(subpartition), content)) >= 0:
            self._num_bytes[subpartition] += content.size_bytes
            self._num_buffers_out += 1
        return True

    def reserve_segments(self, max_segments: int, subpartition: int) -> list[MemorySegment]:
        """Take between one and ``max_segments`` whole segments to fill in place; may block.

        Ownership: they are the caller's, who gives all of them to ``emit_segments``, whatever happens.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._state is not _OPEN:
            self._refuse()
        return self.buffer_pool.request_segments_blocking(max_segments, subpartition)

    def emit_segments(self, segments: Sequence[MemorySegment], subpartition: int) -> None:
        """Append segments that ``reserve_segments`` gave for ``subpartition``, each full and at the start of a record.

        They are as large as they are: a consumer that asked for smaller buffers gets whole ones.

        Raises:
            ResourceClosedError: the partition was released or closed; the segments went back.
            LocalProtocolError: the partition is finished; likewise.
        """
        recycler = self.buffer_pool.recycler(subpartition)
        if self._state is not _OPEN:
            # Released since they were reserved: the pool's segments have no other owner.
            recycle_segments(segments, recycler)
            self._refuse()
        # What was written for all is older: it must be complete before a segment stands behind it.
        if self._builders[ALL] is not None:
            self._finish_builder(ALL)
        self._finish_builder(subpartition)
        if self._subpartitions[subpartition].add_all([SegmentConsumer(segment, recycler) for segment in segments]) >= 0:
            self._num_bytes[subpartition] += sum(len(segment.view) for segment in segments)
            self._num_buffers_out += len(segments)

    def _emit_rest(self, rest: memoryview, subpartition: int) -> None:
        while rest:
            builder = self._builders[subpartition]
            if builder is not None and self._make_room(builder, len(rest)):
                written = builder.append_and_commit(rest)
            else:
                self._finish_builder(subpartition)
                written = self._start_buffer(subpartition, rest, is_continuation=True)
            rest = rest[written:]

    def _start_buffer(self, index: int, data: bytes | memoryview, *, is_continuation: bool) -> int:
        """Open a builder with ``data`` in it; returns how many bytes were taken, all if its consumer has gone."""
        if index == ALL:
            return self._start_broadcast_buffer(data, is_continuation=is_continuation)
        if self._builders[ALL] is not None:
            self._finish_builder(ALL)
        subpartition = self._subpartitions[index]
        # Before a buffer is asked for: a producer without consumer must not wait for the pool.  ``add`` catches a stale
        # read.
        if subpartition.state is _SUBPARTITION_RELEASED:
            return len(data)
        pool = self.buffer_pool
        wanted = subpartition.desired_buffer_size
        # Fast path: whole segments need no builder, and several are added in one lock round, which their reader takes
        # as a run.
        if wanted == NO_BUFFER_SIZE and len(data) >= pool.segment_size_bytes:
            return self._fill_buffers(subpartition, data, is_continuation=is_continuation)
        builder = pool.request_builder_blocking(index)
        try:
            if wanted != NO_BUFFER_SIZE:
                self._trim(builder, wanted, len(data))
            written = builder.append_and_commit(data)
            is_refused = subpartition.add(builder.create_buffer_consumer(written if is_continuation else 0)) < 0
        except BaseException:  # of the data, or of the file that it goes to
            builder.close()
            raise
        # ``add`` closed the consumer; the builder has a reference of its own.
        if is_refused:
            builder.close()
            return len(data)
        self._builders[index] = builder
        return written

    def _fill_buffers(
        self, subpartition: ResultSubpartition, data: bytes | memoryview, *, is_continuation: bool
    ) -> int:
        """Write whole buffers at once, without a builder; returns how many bytes of ``data`` were taken, all if its
        consumer has gone.
        """
        index = subpartition.index
        pool = self.buffer_pool
        size = pool.segment_size_bytes
        if len(data) < 2 * size:
            return self._fill_buffer(subpartition, data, size if is_continuation else 0)
        segments = pool.request_segments_blocking(len(data) // size, index)
        recycler = pool.recycler(index)
        num_bytes = size * len(segments)
        try:
            rest = memoryview(data)
            for segment, start in zip(segments, range(0, num_bytes, size), strict=True):
                segment.view[:] = rest[start : start + size]
        # No consumer holds them yet: the pool would miss them for ever.
        except BaseException:
            recycler.recycle_run(segments)
            raise
        consumers = [SegmentConsumer(segment, recycler, size) for segment in segments]
        # Only the first one begins with the record: who takes a failed consumer's place skips the others as a whole.
        if not is_continuation:
            consumers[0].partial_record_length = 0
        if subpartition.add_all(consumers) < 0:
            return len(data)
        self._num_bytes[index] += num_bytes
        self._num_buffers_out += len(segments)
        return num_bytes

    def _fill_buffer(
        self, subpartition: ResultSubpartition, data: bytes | memoryview, partial_record_length: int
    ) -> int:
        """Make one whole buffer of ``data``."""
        index = subpartition.index
        pool = self.buffer_pool
        segment = pool.request_segment_blocking(index)
        view = segment.view
        size = len(view)
        recycler = pool.recycler(index)
        try:
            view[:] = data if len(data) == size else memoryview(data)[:size]
        # No consumer holds it yet: the pool would miss it for ever.
        except BaseException:
            recycler.recycle(segment)
            raise
        if subpartition.add(SegmentConsumer(segment, recycler, partial_record_length)) < 0:
            return len(data)
        self._num_bytes[index] += size
        self._num_buffers_out += 1
        return size

    def _finish_builder(self, index: int) -> None:
        builder = self._builders[index]
        if builder is None:
            return
        self._builders[index] = None
        num_bytes = builder.close()
        if index == ALL:
            # A new list: ``statistics``, on another thread, sums either none or all of these bytes.
            self._num_bytes = [number + num_bytes for number in self._num_bytes]
            self._num_buffers_out += self.num_subpartitions
        else:
            self._num_bytes[index] += num_bytes
            self._num_buffers_out += 1

    def _trim(self, builder: BufferBuilder, wanted: int, num_bytes: int) -> None:
        """Make the buffer as small as its consumer wants, but large enough for the bytes to be written now."""
        if wanted > 0:
            self._trimmed_segment_bytes = builder.capacity_bytes
            builder.trim(max(wanted, num_bytes))

    def _make_room(self, builder: BufferBuilder, num_missing: int) -> bool:
        """Let a full buffer that was made smaller grow again, rather than wait for another one.

        By one byte more than is missing, so that the next record finds it open and can ask again.  Not inside a record
        if a consumer may take another one's place: what it can read of a buffer begins with a record.
        """
        # While the pool has a buffer, the size that the consumer asked for holds.
        if builder.capacity_bytes >= self._trimmed_segment_bytes or self.buffer_pool.is_available:
            return False
        if num_missing and self.partition_type.is_reconsumable:
            return False
        builder.trim(builder.capacity_bytes + num_missing + 1)
        return True

    # ---------------------------------------------------------------- to everybody

    def broadcast_record(self, record: bytes | memoryview) -> None:
        """Append ``record`` (single bytes) to every subpartition, written once into buffers that all share; may block
        for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        self.emit_record(record, ALL)

    def _start_broadcast_buffer(self, data: bytes | memoryview, *, is_continuation: bool) -> int:
        """Open a builder for all consumers with ``data`` in it; returns how many bytes were taken, all if every
        consumer has gone.
        """
        # What was written for single subpartitions is older: it must not stay open while newer bytes stand behind it.
        for index in range(self.num_subpartitions):
            self._finish_builder(index)
        # Consumers that left do not count: a buffer size that one of them asked for is nobody's wish any more.
        readers = [
            subpartition for subpartition in self._subpartitions if subpartition.state is not _SUBPARTITION_RELEASED
        ]
        if not readers:
            return len(data)
        builder = self.buffer_pool.request_builder_blocking(0)  # Flink counts it for the first one
        try:
            wanted = min(reader.desired_buffer_size or NO_BUFFER_SIZE for reader in readers)
            if wanted != NO_BUFFER_SIZE:
                self._trim(builder, wanted, len(data))
            written = builder.append_and_commit(data)
            # Every reader gets a copy, which has a position of its own; the first consumer only serves to be copied.
            with closing(builder.create_buffer_consumer(written if is_continuation else 0)) as consumer:
                for reader in readers:
                    reader.add(consumer.copy())
        except BaseException:  # of the data, or of a file that it goes to
            builder.close()
            raise
        self._builders[ALL] = builder
        return written

    def _finish_builders(self) -> None:
        for index in range(ALL, self.num_subpartitions):
            self._finish_builder(index)

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Append ``event`` to every subpartition, behind everything emitted before (or in front of it, with priority);
        readers are told at once.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished.
        """
        if self._state is not _OPEN:
            self._refuse()
        # Only the last element of a subpartition may be unfinished, and that is the event now.
        self._finish_builders()
        data = serialize_event(event)
        data_type = event_data_type(event, has_priority=is_priority)
        # A consumer each, over one text: every reader has a position of its own.
        for subpartition in self._subpartitions:
            subpartition.add(BufferConsumer.of_event(data, data_type))

    def notify_end_of_data(self, mode: StopMode) -> None:
        """Tell every consumer that the last record was emitted; the second call does nothing.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished.
        """
        if not self._has_notified_end_of_data:
            self.broadcast_event(EndOfData(mode))
            # Behind the events: a call that was refused does not count as made.
            self._has_notified_end_of_data = True

    def finish_buffer(self, subpartition: int) -> None:
        """End the buffer that is being filled: the next record begins a new one, and the reader may have this one at
        once.
        """
        self._finish_builder(ALL)
        self._finish_builder(subpartition)
        self._subpartitions[subpartition].flush()

    def flush(self, subpartition: int) -> None:
        """Make everything emitted to ``subpartition`` readable, its unfinished buffer included."""
        self._subpartitions[subpartition].flush()

    def flush_all(self) -> None:
        """Make everything emitted readable."""
        for subpartition in self._subpartitions:
            subpartition.flush()

    def statistics(self) -> ResultPartitionStatistics:
        """Return the numbers so far."""
        return ResultPartitionStatistics(
            num_bytes_out=sum(self._num_bytes),
            num_buffers_out=self._num_buffers_out,
            num_queued_buffers=sum(subpartition.num_queued_buffers for subpartition in self._subpartitions),
            num_queued_bytes=sum(subpartition.num_queued_bytes for subpartition in self._subpartitions),
            hard_blocked_ns=self.buffer_pool.hard_blocked_ns,
            num_bytes_by_subpartition=tuple(self._num_bytes),
        )

    def _refuse(self) -> None:
        name = f"partition {self.partition_id} of {self.owner}"
        if self._state is ResultPartitionState.RELEASED:
            raise ResourceClosedError(f"{name} was released: {self._failure_cause or 'everything was consumed'}")
        raise LocalProtocolError(f"{name} is finished and takes nothing more")
