"""What one task produces for one edge: a subpartition per consumer.

Side:       shared.  ``emit_record``, ``broadcast_*``, ``notify_end_of_data``, ``finish`` and ``close`` on the task thread; ``flush*``,
            ``fail``, ``release``, checkpoints, views and numbers from any thread.
Hot path:   ``emit_record``, per serialized chunk.
Invariants: an open builder is the last element of its subpartition; there are builders of single subpartitions or one for all, never both;
            the partition is released when every subpartition was consumed and the task closed it (users = subpartitions + 1), or at once
            by ``fail`` and ``release``.
            A subpartition whose consumer left early drops what is emitted to it and counts as processed: a consumer that is gone never
            holds up its producer.
Units:      sizes in bytes, times in nanoseconds.
Lock order: ``ResultPartition._lock`` is a leaf: subpartitions, pool, futures and listeners are called after it.
Source:     Flink ``BufferWritingResultPartition``, ``PipelinedResultPartition``.  A buffer is added to its subpartition with its first
            bytes in it (Flink adds it empty); no reader can tell, since the first unfinished buffer is never announced.
Absent:     addition of recovered state.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from netstack.availability import AvailabilityFuture
from netstack.buffer.blocked_time import BlockingObserver
from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.content_consumer import ContentConsumer
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import BufferContent, recycle_segments
from netstack.buffer.segment_consumer import SegmentConsumer
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.partition.buffer_availability_listener import BufferAvailabilityListener
from netstack.partition.channel_state import ChannelStateWriter, ResultSubpartitionInfo
from netstack.partition.pipelined_approximate_subpartition import PipelinedApproximateSubpartition
from netstack.partition.pipelined_subpartition import NO_BUFFER_SIZE, PipelinedSubpartition
from netstack.partition.result_partition_type import ResultPartitionType
from netstack.partition.result_subpartition import ResultSubpartition
from netstack.partition.result_subpartition_view import ResultSubpartitionView
from netstack.partition.union_result_subpartition_view import UnionResultSubpartitionView
from netstack.wakeups import run_all
from netstack.wire.events import EndOfData, Event, StopMode, event_data_type, serialize_event


@dataclass(frozen=True, slots=True)
class ResultPartitionStatistics:
    """The numbers of one partition; bytes and buffers count when a buffer is finished."""

    num_bytes_out: int
    num_buffers_out: int
    num_queued_buffers: int
    num_queued_bytes: int
    hard_blocked_ns: int
    num_bytes_by_subpartition: tuple[int, ...]


class ResultPartition:
    """A pipelined partition.

    Life cycle: open -> ``finish`` -> ``close``; ``fail`` or ``release`` at any time.  A task closes its partition in any case.
    Ownership: owns its buffer pool, which ends with ``close`` or ``release``; buffers in flight go home when they are recycled.

    Args:
        partition_type: how it is consumed and released.
        partition_index: which output of its task it is; channel state is kept under it.
        sends_empty_buffers: whether its receivers have no exclusive buffers, and so have to see empty buffers too.
        compressor: makes buffers smaller on their way to the reader (an extension: Flink compresses blocking partitions only).
        new_subpartition: makes the subpartitions of another kind of partition.
    """

    def __init__(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        buffer_pool: LocalBufferPool,
        owner: str,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        partition_index: int = 0,
        sends_empty_buffers: bool = False,
        compressor: BufferCompressor | None = None,
        new_subpartition: "Callable[[int, ResultPartition], ResultSubpartition] | None" = None,
    ) -> None:
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        self.partition_id = partition_id
        self.partition_type = partition_type
        self.owner = owner
        self.all_data_processed = AvailabilityFuture()
        self._pool = buffer_pool
        if new_subpartition is None:
            kind = PipelinedApproximateSubpartition if partition_type.is_reconsumable else PipelinedSubpartition
            new_subpartition = partial(
                kind, sends_empty_buffers=sends_empty_buffers, partition_index=partition_index, compressor=compressor
            )
        self._subpartitions: list[ResultSubpartition] = [new_subpartition(index, self) for index in range(num_subpartitions)]
        # Written by the task thread only.
        self._builders: list[BufferBuilder | None] = [None] * num_subpartitions
        self._broadcast_builder: BufferBuilder | None = None
        self._trimmed_segment_bytes = 0  # how large a builder was before it was made smaller, 0 if none was
        self._is_finished = False  # takes nothing more, even if the end could not be written
        self._has_end = False  # in every subpartition
        self._has_notified_end_of_data = False
        self._num_bytes = [0] * num_subpartitions
        self._num_buffers_out = 0
        self._lock = threading.Lock()
        # Guarded by _lock for writes; read bare, one pass stale is fine.
        self._is_released = False
        self._is_closed = False
        self._failure_cause: ProducerFailedError | None = None
        # Guarded by _lock.
        self._unconsumed = set(range(num_subpartitions))
        self._unprocessed = set(range(num_subpartitions))
        self._release_listeners: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "released" if self._is_released else "closed" if self._is_closed else "finished" if self._is_finished else "open"
        return (
            f"<ResultPartition {self.partition_id} of {self.owner}: {state}, {len(self._unconsumed)} of {self.num_subpartitions} "
            f"subpartitions unconsumed, {self._pool!r}>"
        )

    @property
    def num_subpartitions(self) -> int:
        """How many consumers it has."""
        return len(self._subpartitions)

    @property
    def is_finished(self) -> bool:
        """Whether the end of the partition was written."""
        return self._has_end

    @property
    def is_released(self) -> bool:
        """Whether nothing of it can be read any more."""
        return self._is_released

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why it was released before it was consumed, if it was."""
        return self._failure_cause

    @property
    def is_available(self) -> bool:
        """Whether a buffer is free, so that emitting does not block at once."""
        return self._pool.is_available

    def available_future(self) -> AvailabilityFuture:
        """Done while a buffer is free (or the pool is gone), else completed when one comes."""
        return self._pool.available_future()

    def observe_blocking(self, observer: BlockingObserver) -> None:
        """Tell ``observer`` whenever an emit waits for a buffer; called before the first one."""
        self._pool.blocking_observer = observer

    # ---------------------------------------------------------------- task thread

    def emit_record(self, record: bytes | memoryview, subpartition: int) -> None:
        """Append ``record`` (single bytes), over as many buffers as it takes; may block for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        builder = self._builders[subpartition]
        if builder is not None:
            written = builder.append_and_commit(record)
        else:
            written = self._start_buffer(subpartition, record, is_continuation=False)
        if written < len(record):
            self._emit_rest(memoryview(record)[written:], subpartition)
        elif builder is None and self._builders[subpartition] is None:
            return  # it filled its buffer
        builder = self._builders[subpartition]
        if builder is not None and builder.is_full and not self._make_room(builder, 0):
            self._finish_builder(subpartition)

    def takes_contents(self, subpartition: int) -> bool:
        """Whether ``emit_content`` would take a content."""
        return self._subpartitions[subpartition].takes_contents

    def emit_content(self, content: BufferContent, subpartition: int) -> bool:
        """Append whole records that are no bytes yet, behind all that was emitted, if the consumer takes them so; may block for a buffer.

        Ownership: the content is taken over, unless False is returned: then ``emit_record`` its bytes.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        target = self._subpartitions[subpartition]
        if not target.takes_contents:
            return False
        if self._broadcast_builder is not None:
            self._finish_broadcast_builder()
        self._finish_builder(subpartition)
        segment = self._pool.request_segment_blocking(subpartition)
        if target.add(ContentConsumer(segment, self._pool.recycler(subpartition), content)) >= 0:
            self._num_bytes[subpartition] += content.size_bytes
            self._num_buffers_out += 1
        return True

    def reserve_segments(self, max_segments: int, subpartition: int) -> list[MemorySegment]:
        """Between one and ``max_segments`` whole segments to fill in place; may block.

        Ownership: they are the caller's, who gives all of them to ``emit_segments``, whatever happens.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        return self._pool.request_segments_blocking(max_segments, subpartition)

    def emit_segments(self, segments: Sequence[MemorySegment], subpartition: int) -> None:
        """Append segments that ``reserve_segments`` gave for ``subpartition``, each full and at the start of a record.

        They are as large as they are: a consumer that asked for smaller buffers gets whole ones.

        Raises:
            ResourceClosedError: the partition was released or closed; the segments went back.
            LocalProtocolError: the partition is finished; likewise.
        """
        recycler = self._pool.recycler(subpartition)
        if self._is_released or self._is_finished:
            recycle_segments(segments, recycler)
            self._refuse()
        if self._broadcast_builder is not None:
            self._finish_broadcast_builder()
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
        """Open a builder with ``data`` in it; returns how much of it was taken, all if its consumer has gone."""
        if self._broadcast_builder is not None:
            self._finish_broadcast_builder()
        subpartition = self._subpartitions[index]
        if subpartition.is_released:
            return len(data)
        pool, wanted = self._pool, subpartition.desired_buffer_size
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
        if is_refused:
            builder.close()
            return len(data)
        self._builders[index] = builder
        return written

    def _fill_buffers(self, subpartition: ResultSubpartition, data: bytes | memoryview, *, is_continuation: bool) -> int:
        """Whole buffers at once, no builder needed; returns how much of ``data`` was taken, all if its consumer has gone."""
        index, pool = subpartition.index, self._pool
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
        except BaseException:
            run_all([partial(recycler.recycle, segment) for segment in segments])
            raise
        consumers = [SegmentConsumer(segment, recycler, size) for segment in segments]
        if not is_continuation:
            consumers[0].partial_record_length = 0
        if subpartition.add_all(consumers) < 0:
            return len(data)
        self._num_bytes[index] += num_bytes
        self._num_buffers_out += len(segments)
        return num_bytes

    def _fill_buffer(self, subpartition: ResultSubpartition, data: bytes | memoryview, partial_record_length: int) -> int:
        """One whole buffer."""
        index, pool = subpartition.index, self._pool
        segment = pool.request_segment_blocking(index)
        view = segment.view
        size = len(view)
        recycler = pool.recycler(index)
        try:
            view[:] = data if len(data) == size else memoryview(data)[:size]
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
        self._num_bytes[index] += builder.close()
        self._num_buffers_out += 1

    def _trim(self, builder: BufferBuilder, wanted: int, num_bytes: int) -> None:
        """Make the buffer as small as its consumer wants, but let what is to be written now fit."""
        if wanted > 0:
            self._trimmed_segment_bytes = builder.capacity_bytes
            builder.trim(max(wanted, num_bytes))

    def _make_room(self, builder: BufferBuilder, num_missing: int) -> bool:
        """Let a full buffer that was made smaller grow again, rather than wait for another one.

        By one byte more than is missing, so that the next record finds it open and can ask again.  Not inside a record if a consumer may
        take another one's place: what it can read of a buffer begins with a record.
        """
        if builder.capacity_bytes >= self._trimmed_segment_bytes or self._pool.is_available:
            return False
        if num_missing and self.partition_type.is_reconsumable:
            return False
        builder.trim(builder.capacity_bytes + num_missing + 1)
        return True

    # ---------------------------------------------------------------- to everybody

    def broadcast_record(self, record: bytes | memoryview) -> None:
        """Append ``record`` (single bytes) to every subpartition, written once into buffers that all share; may block for a buffer.

        Raises:
            ResourceClosedError: the partition was released or closed, before or meanwhile.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        builder = self._broadcast_builder
        written = builder.append_and_commit(record) if builder is not None else self._start_broadcast_buffer(record, is_continuation=False)
        if written < len(record):
            self._broadcast_rest(memoryview(record)[written:])
        builder = self._broadcast_builder
        if builder is not None and builder.is_full and not self._make_room(builder, 0):
            self._finish_broadcast_builder()

    def _broadcast_rest(self, rest: memoryview) -> None:
        while rest:
            builder = self._broadcast_builder
            if builder is not None and self._make_room(builder, len(rest)):
                written = builder.append_and_commit(rest)
            else:
                self._finish_broadcast_builder()
                written = self._start_broadcast_buffer(rest, is_continuation=True)
            rest = rest[written:]

    def _start_broadcast_buffer(self, data: bytes | memoryview, *, is_continuation: bool) -> int:
        """Open a builder for all with ``data`` in it; returns how much of it was taken, all if every consumer has gone."""
        for index in range(self.num_subpartitions):
            self._finish_builder(index)
        readers = [subpartition for subpartition in self._subpartitions if not subpartition.is_released]
        if not readers:
            return len(data)
        builder = self._pool.request_builder_blocking(0)  # Flink counts it for the first one
        try:
            wanted = min(reader.desired_buffer_size or NO_BUFFER_SIZE for reader in readers)
            if wanted != NO_BUFFER_SIZE:
                self._trim(builder, wanted, len(data))
            written = builder.append_and_commit(data)
            with closing(builder.create_buffer_consumer(written if is_continuation else 0)) as consumer:
                for reader in readers:
                    reader.add(consumer.copy())
        except BaseException:  # of the data, or of a file that it goes to
            builder.close()
            raise
        self._broadcast_builder = builder
        return written

    def _finish_broadcast_builder(self) -> None:
        builder = self._broadcast_builder
        if builder is None:
            return
        self._broadcast_builder = None
        num_bytes = builder.finish()
        self._num_bytes = [number + num_bytes for number in self._num_bytes]
        self._num_buffers_out += self.num_subpartitions
        builder.close()

    def _finish_builders(self) -> None:
        self._finish_broadcast_builder()
        for index in range(self.num_subpartitions):
            self._finish_builder(index)

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Append ``event`` to every subpartition, behind all that was emitted (or before it, with priority); readers are told at once.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        self._finish_builders()
        data, data_type = serialize_event(event), event_data_type(event, has_priority=is_priority)
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
            self._has_notified_end_of_data = True

    def finish(self) -> None:
        """Append the end of the partition to every subpartition.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished already.
        """
        if self._is_released or self._is_finished:
            self._refuse()
        self._is_finished = True
        self._finish_builders()
        for subpartition in self._subpartitions:
            subpartition.finish()
        self._has_end = True

    def close(self) -> None:
        """The task is done with it; the second call does nothing.  An unfinished partition fails, so that no consumer waits for ever."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._finish_builders()
        if not self._has_end:
            self.release(ResourceClosedError("it was closed before it was finished"))
        self._pool.destroy()
        self._release_if_unused()

    def _refuse(self) -> None:
        name = f"partition {self.partition_id} of {self.owner}"
        if self._is_released:
            raise ResourceClosedError(f"{name} was released: {self._failure_cause or 'everything was consumed'}")
        raise LocalProtocolError(f"{name} is finished and takes nothing more")

    # ---------------------------------------------------------------- any thread

    def flush(self, subpartition: int) -> None:
        """Make what was emitted to ``subpartition`` readable, its unfinished buffer included."""
        self._subpartitions[subpartition].flush()

    def flush_all(self) -> None:
        """Make everything emitted readable."""
        for subpartition in self._subpartitions:
            subpartition.flush()

    def set_channel_state_writer(self, writer: ChannelStateWriter, partition_index: int | None = None) -> None:
        """Hand what barriers overtake to ``writer`` from now on; called before the first barrier.

        ``partition_index``: which output of its task this is; None: what it was made with.
        """
        for subpartition in self._subpartitions:
            subpartition.channel_state = writer
            if partition_index is not None:
                subpartition.info = ResultSubpartitionInfo(partition_index, subpartition.index)

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let the barriers of ``checkpoint_id`` that were not consumed yet overtake what is queued before them."""
        run_all([partial(subpartition.aligned_barrier_timeout, checkpoint_id) for subpartition in self._subpartitions])

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """The data before the barriers of ``checkpoint_id`` is not wanted any more."""
        run_all([partial(subpartition.abort_checkpoint, checkpoint_id, cause) for subpartition in self._subpartitions])

    def create_subpartition_view(self, index: int, listener: BufferAvailabilityListener, last: int | None = None) -> ResultSubpartitionView:
        """A view of subpartition ``index``, or of all from ``index`` to ``last``: for pipelined types the one view there is.

        A range is read as a whole or refused as a whole: of one that is refused nothing is lost or consumed.

        Raises:
            PartitionNotFoundError: the partition or subpartition was released.
            LocalProtocolError: there is no such subpartition, it is read already, or it is not finished (blocking types).
        """
        last = index if last is None else last
        if not 0 <= index <= last < self.num_subpartitions:
            what = f"{index} is" if index == last else f"{index} to {last} are"
            raise LocalProtocolError(f"partition {self.partition_id} has {self.num_subpartitions} subpartitions, {what} none of them")
        if index == last:
            return self._create_view(index, listener)
        union = UnionResultSubpartitionView(listener, range(index, last + 1))
        try:
            for number in range(index, last + 1):
                union.add_view(number, self._create_view(number, union.listener_of(number)))
        except BaseException:
            union.hand_back()
            raise
        union.start()
        return union

    def _create_view(self, index: int, listener: BufferAvailabilityListener) -> ResultSubpartitionView:
        view = self._subpartitions[index].create_read_view(listener)
        if view is None:
            reason = self._failure_cause or f"its subpartition {index} was consumed"
            raise PartitionNotFoundError(f"partition {self.partition_id} was released at its producer: {reason}")
        return view

    def add_release_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once when the partition is released, at once if it was."""
        with self._lock:
            if not self._is_released:
                self._release_listeners.append(listener)
                return
        listener()

    def fail(self, error: BaseException) -> None:
        """Release it; readers learn that the producer failed, and why.  Writers wake up with an error."""
        self.release(error)

    def release(self, cause: BaseException | None = None) -> None:
        """Drop everything, from any state; views that are still read report ``cause``.  The second call does nothing."""
        failure = self._producer_failed(cause)  # asks for the text of an exception, which may be a user's: not under the lock
        with self._lock:
            if self._is_released:
                return
            calls = self._release_locked(failure)
        run_all(calls)

    def on_consumed_subpartition(self, index: int) -> None:
        """For the view of ``index``: it was released."""
        with self._lock:
            self._unconsumed.discard(index)
        self.on_all_data_processed(index)
        self._release_if_unused()

    def on_all_data_processed(self, index: int) -> None:
        """For the view of ``index``: its consumer processed everything up to the end of data."""
        with self._lock:
            self._unprocessed.discard(index)
            is_last = not self._unprocessed
        if is_last:
            self.all_data_processed.complete()

    def statistics(self) -> ResultPartitionStatistics:
        """The numbers so far."""
        return ResultPartitionStatistics(
            num_bytes_out=sum(self._num_bytes),
            num_buffers_out=self._num_buffers_out,
            num_queued_buffers=sum(subpartition.num_queued_buffers for subpartition in self._subpartitions),
            num_queued_bytes=sum(subpartition.num_queued_bytes for subpartition in self._subpartitions),
            hard_blocked_ns=self._pool.hard_blocked_ns,
            num_bytes_by_subpartition=tuple(self._num_bytes),
        )

    def check_invariants(self) -> None:
        """Assert the invariants of this module and of the subpartitions."""
        for subpartition in self._subpartitions:
            subpartition.check_invariants()
        with self._lock:
            assert self._is_released or self._unconsumed or not self._is_closed, "nobody uses it and it is not released"
            assert self._unprocessed <= self._unconsumed, "a consumed subpartition counts as processed"
        assert self._broadcast_builder is None or not any(self._builders), "a builder for all and one for a single subpartition"

    # ---------------------------------------------------------------- helpers

    def _release_if_unused(self) -> None:
        with self._lock:
            if self._is_released or self._unconsumed or not self._is_closed:
                return
            calls = self._release_locked(None)
        run_all(calls)

    def _release_locked(self, cause: ProducerFailedError | None) -> list[Callable[[], None]]:
        self._failure_cause = cause
        self._is_released = True
        listeners, self._release_listeners = self._release_listeners, []
        releases: list[Callable[[], None]] = [subpartition.release for subpartition in self._subpartitions]
        return [*listeners, *releases, self._pool.destroy, self.all_data_processed.complete]

    def _producer_failed(self, cause: BaseException | None) -> ProducerFailedError:
        if isinstance(cause, ProducerFailedError):
            return cause
        what = "it was released before it was consumed" if cause is None else f"{type(cause).__name__}: {cause}"
        error = ProducerFailedError(f"the producer of partition {self.partition_id}, {self.owner}, failed: {what}")
        error.__cause__ = cause
        return error
